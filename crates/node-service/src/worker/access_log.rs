//! The log of requests for files of a mount, from which a boot image is made.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use blocks::{Caller, Event, Observer, Tree};
use localfs::SourceRoot;
use parking_lot::RwLock;
use tracer::{Limits, Recorder, Trace};

use mounting::source::trace_info;

/// A tenth of what a recording may keep: a lesson is about what a boot image lacked. What is
/// beyond it is not learned.
const LIMITS: Limits = Limits {
    events: 100_000,
    name_bytes: 4 << 20,
};

/// Records requests from one report to the next.
#[derive(Debug)]
pub(super) struct AccessLog(RwLock<Period>);

#[derive(Debug)]
struct Period {
    recorder: Arc<Recorder>,
    since: SystemTime,
}

impl Period {
    fn nothing() -> Self {
        Self {
            recorder: Arc::new(Recorder::new(LIMITS)),
            since: SystemTime::now(),
        }
    }
}

impl AccessLog {
    pub(super) fn new() -> Self {
        Self(RwLock::new(Period::nothing()))
    }

    /// Returns the requests recorded since the last call.
    pub(super) fn take(&self, root: &SourceRoot, tree: &Tree) -> Trace {
        let heard = std::mem::replace(&mut *self.0.write(), Period::nothing());
        heard.recorder.finish(trace_info(root, heard.since), tree)
    }
}

impl Observer for AccessLog {
    fn note(&self, caller: Caller, event: Event, took: Duration) {
        let recorder = Arc::clone(&self.0.read().recorder);
        recorder.note(caller, event, took);
    }
}
