// Sorts a table by the column whose heading is pressed. Without this the tables stand as they are.
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0];
  if (body.rows.length < 2) continue;
  const value = (row, column) => {
    const cell = row.cells[column];
    const number = cell?.dataset.value;
    return number === undefined ? cell?.textContent ?? "" : Number(number);
  };
  const compare = (a, b) => typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
  [...table.tHead.rows[0].cells].forEach((heading, column) => {
    if (!heading.textContent) return;
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      // Numbers are asked for largest first, words from A.
      const first = typeof value(body.rows[0], column) === "number" ? "descending" : "ascending";
      const second = first === "ascending" ? "descending" : "ascending";
      const order = heading.getAttribute("aria-sort") === first ? second : first;
      for (const other of heading.parentNode.cells) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", order);
      const sign = order === "ascending" ? 1 : -1;
      const rows = [...body.rows].sort((a, b) => sign * compare(value(a, column), value(b, column)));
      body.append(...rows);
    });
  });
}
