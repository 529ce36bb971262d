//! Output: text for people, or JSON for programs.

use std::io::{self, Write as _};

use anyhow::Context as _;
use host::printable::{printable, printable_json, printable_line};
use serde::Serialize;

/// How results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Text,
    Json,
}

/// Prints a value as JSON, or what `text` makes of it.
pub(crate) fn print<T: Serialize>(
    format: Format,
    value: &T,
    text: impl FnOnce(&T) -> String,
) -> anyhow::Result<()> {
    match format {
        Format::Json => print_json(value),
        Format::Text => print_text(&printable(&text(value))),
    }
}

/// Prints a value as JSON.
pub(crate) fn print_json<T: Serialize>(value: &T) -> anyhow::Result<()> {
    let json = serde_json::to_string_pretty(value).context("writing JSON")?;
    print_text(&printable_json(&json))
}

/// Prints a text with one line break at its end, and nothing if it is empty.
fn print_text(text: &str) -> anyhow::Result<()> {
    match text.trim_end() {
        "" => Ok(()),
        text => write_out(&format!("{text}\n")),
    }
}

/// Writes to standard output as it is. A closed pipe (`| head`) is no failure.
pub(crate) fn write_out(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("writing to standard output"),
    }
}

/// Writes a line to standard error, and ignores errors.
pub(crate) fn complain(line: &str) {
    let _unread = io::stderr().write_all(format!("{}\n", printable(line)).as_bytes());
}

/// Settings of the daemon in messages of libraries, and the flags of `sandbox serve` that set them.
const SETTINGS: &[(&str, &str)] = &[
    ("`bridge`", "sandbox serve --bridge"),
    ("`run_dir`", "--run-dir"),
    ("`subnet`", "sandbox serve --subnet"),
];

/// Writes the flags in the place of settings.
pub(crate) fn with_flags(message: &str) -> String {
    let mut text = message.to_owned();
    for (setting, flag) in SETTINGS {
        text = text.replace(setting, flag);
    }
    text
}

/// Lays rows out in columns; the first row is the heading.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    // A command with a line break must not look like two rows.
    let cells = |row: &Vec<String>| -> Vec<String> {
        row.iter()
            .map(|cell| printable_line(cell).into_owned())
            .collect()
    };
    let rows: Vec<Vec<String>> = rows.iter().map(cells).collect();
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let cells = row.iter().zip(&widths);
        let line: String = cells
            .map(|(cell, width)| format!("{cell:<width$}  "))
            .collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_of_others_has_one_line_and_no_orders_for_the_terminal() {
        let row = |cell: &str| vec![cell.to_owned(), "end".to_owned()];
        let text = table(&[row("COMMAND"), row("sh\nid-2  running\r\u{1b}[2J")]);
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(
            text.contains("sh\\nid-2  running\\r\\u{1b}[2J  end"),
            "{text}"
        );
    }
}
