//! The log of an engine, in the format that it requests.

use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;

use crate::args::LogFormat;

/// A log, if there is one.
#[derive(Debug)]
pub(crate) struct Log {
    path: Option<PathBuf>,
    format: LogFormat,
}

impl Log {
    pub(crate) const fn new(path: Option<PathBuf>, format: LogFormat) -> Self {
        Self { path, format }
    }

    /// Returns whether somebody has named a log.
    pub(crate) const fn is_kept(&self) -> bool {
        self.path.is_some()
    }

    /// Writes the reason for a failure.
    pub(crate) fn error(&self, message: &str) {
        self.write("error", message);
    }

    /// Writes a deviation from the request.
    pub(crate) fn info(&self, message: &str) {
        self.write("info", message);
    }

    fn write(&self, level: &str, message: &str) {
        let Some(path) = &self.path else {
            return;
        };
        let time = sandbox_oci::container::now();
        let line = match self.format {
            LogFormat::Json => {
                serde_json::json!({"level": level, "msg": message, "time": time}).to_string()
            }
            LogFormat::Text => format!("time=\"{time}\" level={level} msg={message:?}"),
        };
        // An error without a log is still told on standard error, and by the exit code.
        let file = File::options().append(true).create(true).open(path);
        let _lost = file.and_then(|mut file| writeln!(file, "{line}"));
    }
}
