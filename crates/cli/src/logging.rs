//! Log lines on standard error: quiet when all is well.

use log::{LevelFilter, Log, Metadata, Record};

#[derive(Debug)]
struct Stderr;

impl Log for Stderr {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            eprintln!(
                "{}: {}",
                record.level().as_str().to_lowercase(),
                record.args()
            );
        }
    }

    fn flush(&self) {}
}

/// Sends log lines of `level` and above to standard error; `YOLOFS_LOG` (`error`, `warn`,
/// `info`, `debug`, `trace`, `off`) overrides it.
pub(crate) fn init(level: LevelFilter) {
    static LOGGER: Stderr = Stderr;
    let wanted = std::env::var("YOLOFS_LOG")
        .ok()
        .and_then(|level| level.parse().ok());
    if log::set_logger(&LOGGER).is_ok() {
        log::set_max_level(wanted.unwrap_or(level));
    }
}
