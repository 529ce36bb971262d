//! What commands print: for people, or as JSON for programs.

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use host::printable::{printable, printable_json, printable_line};
use host::progress;
use host::progress::{Progress, Reporter};

/// An error that has a code of its own.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// Whoever read our output has seen enough (`bootimg ls | head`).
    #[error("standard output was closed")]
    Unread,
}

/// How to print a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Text for people; its wording may change.
    Text,
    /// One JSON document; its fields only grow.
    Json,
}

/// The `--json` flag.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct FormatArg {
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

impl FormatArg {
    /// Returns the format it asks for.
    #[must_use]
    pub(crate) const fn format(self) -> Format {
        if self.json {
            Format::Json
        } else {
            Format::Text
        }
    }
}

/// Prints `value` as JSON, or what `text` makes of it.
///
/// # Errors
/// If standard output cannot be written.
pub(crate) fn print<T: Serialize>(
    format: Format,
    value: &T,
    text: impl FnOnce(&T) -> String,
) -> anyhow::Result<()> {
    let text = shown(format, value, text)?;
    let text = text.trim_end();
    if text.is_empty() {
        return Ok(());
    }
    write_out(format!("{text}\n").as_bytes())
}

/// Returns what is printed of a value: nothing that a terminal obeys, whoever the text is from.
fn shown<T: Serialize>(
    format: Format,
    value: &T,
    text: impl FnOnce(&T) -> String,
) -> anyhow::Result<String> {
    Ok(match format {
        Format::Json => {
            let json = serde_json::to_string_pretty(value).context("writing JSON")?;
            printable_json(&json).into_owned()
        }
        Format::Text => printable(&text(value)).into_owned(),
    })
}

/// Writes to standard output.
///
/// # Errors
/// If it cannot be written: [`Failure::Unread`] if nobody reads it any more.
pub(crate) fn write_out(bytes: &[u8]) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Failure::Unread.into()),
        written => written.context("writing to standard output"),
    }
}

/// Writes a line to standard output.
///
/// # Errors
/// As [`write_out`].
pub(crate) fn write_line(line: &str) -> anyhow::Result<()> {
    write_out(format!("{}\n", printable(line)).as_bytes())
}

/// Writes a line to standard error. If nobody reads that, there is nobody to be told.
pub(crate) fn complain(line: &str) {
    let _unread = io::stderr().write_all(format!("{}\n", printable(line)).as_bytes());
}

/// Lays rows out in columns; the first row is the heading.
#[must_use]
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    // A name with a line break must not look like two rows.
    let cells = |row: &Vec<String>| -> Vec<String> {
        row.iter()
            .map(|cell| printable_line(cell).into_owned())
            .collect()
    };
    let rows: Vec<Vec<String>> = rows.iter().map(cells).collect();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(&format!("{cell:<width$}  "));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Shows how far work is on standard error, if that is a terminal.
struct Terminal;

impl Reporter for Terminal {
    fn begin(&self, what: &str, total: Option<u64>) -> Arc<dyn Progress> {
        let bar = ProgressBar::with_draw_target(total, target());
        let template = match total {
            Some(_) => "{msg:20} [{bar:30}] {bytes:>10} of {total_bytes:>10}  {bytes_per_sec}",
            None => "{spinner} {msg:20} {human_pos}",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_message(what.to_owned());
        Arc::new(OnTerminal(bar))
    }
}

struct OnTerminal(ProgressBar);

impl Progress for OnTerminal {
    fn set_length(&self, total: u64) {
        self.0.set_length(total);
    }

    fn set_position(&self, done: u64) {
        self.0.set_position(done);
    }

    fn advance(&self, more: u64) {
        self.0.inc(more);
    }

    fn finish(&self) {
        self.0.finish_and_clear();
    }
}

/// Has the progress of this program shown on its terminal.
pub(crate) fn show_progress() {
    progress::install(Box::new(Terminal));
}

/// Returns a line that says that something goes on, for work that says nothing while it does.
#[must_use]
pub(crate) fn waiting(what: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, target());
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg:20} {elapsed}") {
        bar.set_style(style);
    }
    bar.set_message(what.to_owned());
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

fn target() -> ProgressDrawTarget {
    // Ten times a second is as fast as a person reads; more costs time on slow consoles.
    if io::stderr().is_terminal() {
        ProgressDrawTarget::stderr_with_hz(10)
    } else {
        ProgressDrawTarget::hidden()
    }
}

/// Writes a number of things: `1 file`, `2 files`.
#[must_use]
pub(crate) fn count(number: u64, thing: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {thing}{plural}")
}

/// Writes a duration as people read it: `48 ms`, `3.7 s`.
#[must_use]
pub(crate) fn duration(time: Duration) -> String {
    if time < Duration::from_secs(1) {
        format!("{} ms", time.as_millis())
    } else {
        format!("{:.1} s", time.as_secs_f64())
    }
}

/// Writes a part of a whole as a percentage.
#[must_use]
pub(crate) fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "-".to_owned();
    }
    let thousandths = u128::from(part) * 1000 / u128::from(whole);
    format!("{}.{} %", thousandths / 10, thousandths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_obeys_nothing_that_is_printed() {
        let name = "a\u{1b}]0;owned\u{7}\u{9b}2J".to_owned();
        for format in [Format::Text, Format::Json] {
            let shown = shown(format, &name, Clone::clone).unwrap();
            assert!(!shown.contains(char::is_control), "{shown:?}");
        }
        let json = shown(Format::Json, &name, Clone::clone).unwrap();
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), name);
    }

    #[test]
    fn a_cell_has_one_line() {
        let rows = [vec!["NAME".to_owned()], vec!["one\ntwo\u{1b}".to_owned()]];
        assert_eq!(table(&rows), "NAME\none\\ntwo\\u{1b}\n");
    }
}
