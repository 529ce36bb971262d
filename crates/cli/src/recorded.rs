//! A source whose boot is recorded.
//!
//! It is not scanned first: on a cold disk that takes many times the reads of the boot itself.
//! The mount looks at what it is asked for, and nothing else; the scan, which the boot image
//! needs, comes when the boot is over.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use bootimg::DropReason;
use localfs::{DirSource, LazyTree, Paths as _, SourceKind, SourceRoot};
use tracer::{Heard, Limits, Recorder, Trace};
use yolofs::{Config, FileSystem, Mode};

use crate::read_around::ReadAround;
use crate::source::{Source, space, trace_info};

/// A source, and a recorder that hears what is asked of it.
#[derive(Debug)]
pub(crate) struct Recorded {
    root: Arc<SourceRoot>,
    names: Arc<LazyTree>,
    recorder: Arc<Recorder>,
    started: SystemTime,
}

impl Recorded {
    /// Returns a source that is ready to be mounted. The recording begins now.
    ///
    /// # Errors
    /// If the source cannot be asked for anything.
    pub(crate) fn new(root: &Arc<SourceRoot>) -> anyhow::Result<Self> {
        Ok(Self {
            names: Arc::new(LazyTree::new(Arc::clone(root))?),
            root: Arc::clone(root),
            recorder: Arc::new(Recorder::new(Limits::default())),
            started: SystemTime::now(),
        })
    }

    /// Returns the file system of the source, which tells the recorder everything.
    pub(crate) fn file_system(&self) -> FileSystem {
        let mode = match self.root.kind() {
            SourceKind::Tree => Mode::Lower,
            SourceKind::Disk { .. } => Mode::Disk,
        };
        let config = Config {
            mode,
            ..Config::default()
        };
        let paths = Arc::clone(&self.names) as _;
        let reader = Arc::new(DirSource::new(Arc::clone(&self.root), paths));
        FileSystem::new(
            Arc::clone(&self.names) as _,
            Arc::new(ReadAround::new(Arc::clone(&reader))),
            config,
        )
        .with_sparse(Arc::clone(&reader) as _)
        .with_residency(reader)
        .with_space(space(&self.root))
        .with_observer(Arc::clone(&self.recorder) as _)
    }

    /// Returns when the last request was answered, or `None` before the first.
    pub(crate) fn last_event(&self) -> Option<Instant> {
        self.recorder.last_event()
    }

    /// Ends the recording: the boot is over. The mount goes on for whoever uses it.
    pub(crate) fn stop(&self) -> Heard {
        self.recorder.stop()
    }

    /// Returns what was heard as a trace of the files in `source`, which was scanned since. What
    /// the boot used of files that are not there any more as it had met them is not in the trace:
    /// the paths of these files are returned, each with what became of it.
    pub(crate) fn trace(&self, mut heard: Heard, source: &Source) -> (Trace, Vec<String>) {
        let tree = &source.tree;
        let left_out = heard.call_files(|file| self.names.in_tree(file, tree));
        let paths = left_out.iter().filter_map(|file| self.names.path(*file));
        let left_out = paths.map(|path| {
            let reason = match tree.resolve(&path) {
                Some(_) => DropReason::Changed,
                None => DropReason::Gone,
            };
            format!("{}: {reason}", String::from_utf8_lossy(&path))
        });
        let left_out = left_out.collect();
        let info = trace_info(&self.root, self.started);
        (heard.into_trace(info, tree), left_out)
    }
}
