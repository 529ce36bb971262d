//! The runs of a recording: how each is made, and its result.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use serde::Serialize;
use tracer::{Summary, Trace};

use crate::until::Until;
use mounting::source::write_trace;

/// The settings of every recording, whatever its source.
#[derive(Clone, Debug)]
pub struct RunSettings {
    /// How many runs are recorded.
    pub runs: u16,
    /// How long one may take until it is ready.
    pub timeout: Duration,
    /// Where the traces of the runs are kept, too.
    pub keep_traces: Option<PathBuf>,
    /// The command and its arguments; empty for an image's own.
    pub command: Vec<OsString>,
}

impl RunSettings {
    /// Keeps the trace of a run, if that is wanted.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(crate) fn keep_trace(&self, name: &str, trace: &Trace) -> anyhow::Result<()> {
        match &self.keep_traces {
            Some(dir) => write_trace_in(dir, name, trace),
            None => Ok(()),
        }
    }
}

fn write_trace_in(dir: &Path, name: &str, trace: &Trace) -> anyhow::Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
    write_trace(trace, &dir.join(format!("{name}.trace")))
}

/// An event during a recording, for display.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// The condition was not given: this one was chosen.
    Chosen {
        /// The condition.
        until: &'a Until,
        /// The reason.
        because: &'a str,
    },
    /// A container was ready after this time: later work, mainly a scan, is not part of the start.
    Ready(Duration),
}

/// The result of one run.
#[derive(Debug, Serialize)]
pub struct Run {
    /// Milliseconds from the start to readiness.
    pub ready_ms: u64,
    /// Reads of content that reached the mounts.
    pub reads: u64,
    /// Bytes of these reads.
    pub bytes: u64,
}

impl Run {
    pub(crate) fn of(ready: Duration, summaries: &[Summary]) -> Self {
        Self {
            ready_ms: u64::try_from(ready.as_millis()).unwrap_or(u64::MAX),
            reads: summaries.iter().map(|summary| summary.reads).sum(),
            bytes: summaries.iter().map(|summary| summary.bytes_asked).sum(),
        }
    }
}
