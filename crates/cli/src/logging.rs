//! Log lines on standard error: quiet when all is well.
//!
//! The libraries log through the crate `log`, the programs may use `tracing` where fields help;
//! both come out here, as text for people or as one JSON object for each line.

use std::fmt;

use tracing::level_filters::LevelFilter;
use tracing::{Event, Subscriber};
use tracing_log::{AsLog as _, LogTracer, NormalizeEvent as _};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::{FmtContext, MakeWriter};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Layer, Registry};

/// The variable that says what is logged: a level, or levels by module (`warn,node_service=debug`).
const FILTER_ENV: &str = "YOLOFS_LOG";

/// The variable that says how: `text` or `json`.
const FORMAT_ENV: &str = "YOLOFS_LOG_FORMAT";

/// What a log line looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    Text,
    Json,
}

/// Sends log lines of `level` and above to standard error, unless the environment asks for
/// others. What it asks for and cannot have is told as a warning.
pub(crate) fn init(level: LevelFilter) {
    let mut complaints = Vec::new();
    let setting = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
    let filter = setting(FILTER_ENV).and_then(|text| {
        let filter = filter(&text);
        if filter.is_none() {
            complaints.push(format!("{FILTER_ENV}={text} names no level such as debug"));
        }
        filter
    });
    let look = match setting(FORMAT_ENV).as_deref() {
        None | Some("text") => Look::Text,
        Some("json") => Look::Json,
        Some(other) => {
            complaints.push(format!("{FORMAT_ENV}={other} is neither text nor json"));
            Look::Text
        }
    };
    let filter = filter.unwrap_or_else(|| Targets::new().with_default(level));
    let subscriber = subscriber(filter, look, std::io::stderr);
    // Both fail only if somebody logs already.
    let _set = tracing::subscriber::set_global_default(subscriber);
    let most = LevelFilter::current().as_log();
    let libraries = Libraries(LogTracer::new());
    let _installed = log::set_boxed_logger(Box::new(libraries)).map(|()| log::set_max_level(most));
    for complaint in complaints {
        tracing::warn!("{complaint}");
    }
}

/// Takes in what the libraries log.
struct Libraries(LogTracer);

impl log::Log for Libraries {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        self.0.enabled(metadata)
    }

    fn log(&self, record: &log::Record<'_>) {
        if !is_of_a_reader_that_left(record) {
            self.0.log(record);
        }
    }

    fn flush(&self) {
        self.0.flush();
    }
}

/// Returns whether fuser could not answer a request because who made it was interrupted, such as a container that is ended:
/// the kernel has no such request any more.
fn is_of_a_reader_that_left(record: &log::Record<'_>) -> bool {
    record.target() == "fuser::reply" && record.args().to_string().ends_with("(os error 2)")
}

/// Reads a filter. A word that is no level would silently mean a module of that name.
fn filter(text: &str) -> Option<Targets> {
    let known = |part: &str| {
        let level = part.trim();
        part.contains('=') || (!level.is_empty() && level.parse::<LevelFilter>().is_ok())
    };
    if !text.split(',').all(known) {
        return None;
    }
    text.parse().ok()
}

fn subscriber<W>(filter: Targets, look: Look, writer: W) -> impl Subscriber + Send + Sync
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    // A reader of the log that went away must not take us with it.
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(writer)
        .log_internal_errors(false);
    let lines = match look {
        Look::Text => lines.event_format(Plain).boxed(),
        Look::Json => lines
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .with_span_list(false)
            .boxed(),
    };
    Registry::default().with(lines.with_filter(filter))
}

/// `warn: what happened field=value`: whoever runs a command wants no more.
#[derive(Debug)]
struct Plain;

impl<S, N> FormatEvent<S, N> for Plain
where
    S: Subscriber + for<'l> LookupSpan<'l>,
    N: for<'w> FormatFields<'w> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let normalized = event.normalized_metadata();
        let metadata = normalized.as_ref().unwrap_or_else(|| event.metadata());
        let level = metadata.level().as_str().to_lowercase();
        write!(writer, "{level}: ")?;
        context
            .field_format()
            .format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::Arc;

    use parking_lot::Mutex;
    use serde_json::Value;

    use super::*;

    /// Keeps what is written.
    #[derive(Clone, Default)]
    struct Paper(Arc<Mutex<Vec<u8>>>);

    impl Write for Paper {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn written(filter: &str, look: Look) -> String {
        let paper = Paper::default();
        let writer = paper.clone();
        let filter = super::filter(filter).unwrap();
        tracing::subscriber::with_default(subscriber(filter, look, move || writer.clone()), || {
            tracing::warn!(id = "ab12", tries = 3, "the worker died");
            tracing::info!("all is well");
            tracing::debug!(target: "node_service", "a detail");
        });
        String::from_utf8(paper.0.lock().clone()).unwrap()
    }

    #[test]
    fn text_is_short() {
        let warning = "warn: the worker died id=\"ab12\" tries=3\n";
        assert_eq!(written("warn", Look::Text), warning);
        assert_eq!(written("off", Look::Text), "");
        let node = written("warn,node_service=debug", Look::Text);
        assert_eq!(node, format!("{warning}debug: a detail\n"));
    }

    #[test]
    fn json_has_a_line_for_each() {
        let text = written("info", Look::Json);
        let lines: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(lines.len(), 2);
        let line = &lines[0];
        assert_eq!(
            (&line["level"], &line["message"]),
            (&"WARN".into(), &"the worker died".into())
        );
        assert_eq!((&line["id"], &line["tries"]), (&"ab12".into(), &3.into()));
        assert_eq!(line["target"], module_path!());
        assert!(line["timestamp"].as_str().unwrap().ends_with('Z'), "{line}");
    }

    #[test]
    fn answers_that_nobody_waits_for_are_no_errors_and_others_are() {
        let left = |target, text: &str| {
            let error = format!("Failed to send FUSE reply: {text}");
            let mut record = log::Record::builder();
            let record = record.target(target);
            is_of_a_reader_that_left(&record.args(format_args!("{error}")).build())
        };
        let gone = io::Error::from_raw_os_error(2).to_string();
        assert!(left("fuser::reply", &gone));
        let wrong = io::Error::from_raw_os_error(22).to_string();
        assert!(!left("fuser::reply", &wrong));
        assert!(!left("fuser::session", &gone));
    }

    #[test]
    fn words_that_are_no_levels_are_no_filters() {
        for word in ["verbose", "warn,loud", "warn,", ""] {
            assert!(filter(word).is_none(), "{word}");
        }
        for word in ["WARN", "off", "trace", "cli=info", "warn, cli::node=debug"] {
            assert!(filter(word).is_some(), "{word}");
        }
    }
}
