//! Tables: headings, cells, and the number of omitted rows.

use super::chart::{self, Bar};
use super::markup::Markup;
use super::numbers;

/// A column's heading, and the alignment of its cells.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column(pub(super) &'static str, pub(super) Alignment);

/// The alignment of a column's cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Alignment {
    /// At the left: text.
    Left,
    /// At the right: numbers.
    Right,
    /// At the left, and as wide as possible: names of files, bars.
    Wide,
}

impl Alignment {
    const fn class(self) -> &'static str {
        match self {
            Self::Left => "left",
            Self::Right => "right",
            Self::Wide => "wide",
        }
    }
}

/// Writes a table, in a box that scrolls where the window is too narrow.
pub(super) fn table(
    out: &mut Markup,
    caption: &str,
    columns: &[Column],
    rows: impl FnOnce(&mut Markup),
) {
    let frame = [
        ("class", "scroll"),
        ("tabindex", "0"),
        ("role", "region"),
        ("aria-label", caption),
    ];
    out.tag("div", &frame, |out| {
        out.tag("table", &[], |out| {
            out.leaf("caption", &[], caption);
            out.tag("thead", &[], |out| {
                out.tag("tr", &[], |out| {
                    for Column(heading, stands) in columns {
                        let attributes = [("scope", "col"), ("class", stands.class())];
                        out.leaf("th", &attributes, heading);
                    }
                });
            });
            out.tag("tbody", &[], rows);
        });
    });
}

/// Writes a row.
pub(super) fn row(out: &mut Markup, cells: impl FnOnce(&mut Markup)) {
    out.tag("tr", &[], cells);
}

/// Writes a cell with text.
pub(super) fn words(out: &mut Markup, text: &str) {
    out.leaf("td", &[], text);
}

/// Writes a cell with a number: `value` is what the column is sorted by.
pub(super) fn number(out: &mut Markup, value: f64, text: &str) {
    let value = value.to_string();
    out.leaf("td", &[("class", "right"), ("data-value", &value)], text);
}

/// Writes a cell with a number of bytes.
pub(super) fn bytes(out: &mut Markup, bytes: u64) {
    number(out, numbers::real(bytes), &numbers::bytes(bytes));
}

/// Writes a cell with a number of things.
pub(super) fn count(out: &mut Markup, count: u64) {
    number(out, numbers::real(count), &numbers::count(count));
}

/// Writes a cell with a part of a whole, as a percentage with a bar.
pub(super) fn share(out: &mut Markup, class: &str, part: u64, whole: u64) {
    let share = numbers::real(part) / numbers::real(whole.max(1));
    let value = share.to_string();
    out.tag("td", &[("class", "share"), ("data-value", &value)], |out| {
        out.leaf("span", &[], &numbers::percent(part, whole));
        if whole == 0 {
            return; // of nobody knows what
        }
        let hidden = [
            ("class", "spark"),
            ("aria-hidden", "true"),
            ("width", "100%"),
            ("height", "6"),
        ];
        out.tag("svg", &hidden, |out| {
            let place = Bar::new((0.0, 1.0), 0.0, 6.0);
            chart::bar(out, "track", place);
            chart::bar(out, class, Bar { to: share, ..place });
        });
    });
}

/// Writes a name that came from outside: cut short where it is long, whole for the mouse.
pub(super) fn name(out: &mut Markup, text: &str) {
    const SHOWN: usize = 160;
    const TOLD: usize = 1000;
    let text = if text.is_empty() { "/" } else { text };
    let whole = numbers::clipped(text, TOLD);
    out.tag("td", &[("class", "name")], |out| {
        let shown = numbers::clipped(text, SHOWN);
        if shown == whole {
            out.leaf("code", &[], &shown);
        } else {
            out.leaf("code", &[("title", &whole)], &shown);
        }
    });
}

/// Writes how many items are not shown, if any.
pub(super) fn more(out: &mut Markup, all: u64, shown: usize, thing: &str) {
    let left = all.saturating_sub(shown as u64);
    if left > 0 {
        let text = format!("and {} more", numbers::things(left, thing));
        out.leaf("p", &[("class", "more")], &text);
    }
}
