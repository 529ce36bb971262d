//! A recording, before it is a trace.

use std::collections::{HashMap, HashSet};

use blocks::{Event, FileId, Touch, Tree};

use crate::trace::{self, Trace, TraceEvent, TraceInfo, TracedFile};

/// Bytes of the paths of all files of a trace. A boot of a whole Debian mentions some ten thousand files,
/// with paths of 60 bytes.
const PATHS_MAX: usize = 32 << 20;

/// The recording of a [`Recorder`](crate::Recorder) until it was stopped.
///
/// Its events have the file ids of the mount. Where these are not the ids of a tree, as for
/// a source that was not scanned before it was mounted, [`Self::call_files`] translates them.
#[derive(Debug)]
pub struct RawTrace {
    pub(crate) lasted_us: u64,
    pub(crate) lost: u64,
    pub(crate) commands: Vec<Vec<u8>>,
    pub(crate) events: Vec<TraceEvent>,
}

impl RawTrace {
    /// Replaces every file id by `id_of`. Events about files without a new id are left
    /// out; those files are returned, in order. They do not count as lost: the rest is still
    /// the complete recording of the others.
    pub fn call_files(&mut self, id_of: impl Fn(FileId) -> Option<FileId>) -> Vec<FileId> {
        let called: HashMap<FileId, Option<FileId>> = mentioned(&self.events)
            .into_iter()
            .map(|file| (file, id_of(file)))
            .collect();
        self.events.retain_mut(|event| {
            let file = file_mut(&mut event.what);
            let new = called.get(file).copied().flatten();
            if let Some(new) = new {
                *file = new;
            }
            new.is_some()
        });
        let left_out = called.into_iter().filter(|(_, new)| new.is_none());
        let mut left_out: Vec<FileId> = left_out.map(|(file, _)| file).collect();
        left_out.sort_unstable();
        left_out
    }

    /// Returns it as a trace of the source whose metadata `tree` is. Events about files that
    /// `tree` does not have count as lost, and so do all from the one on that mentions a file whose path
    /// does not fit with those before: a source of a few KiB can have a million files with paths of
    /// 64 KiB each.
    #[must_use]
    pub fn into_trace(self, info: TraceInfo, tree: &Tree) -> Trace {
        let mut events = self.events;
        let before = events.len();
        // Answers come in another order than questions do where several threads serve.
        events.sort_by_key(|event| event.at_us);
        let files = traced_files(&mut events, tree);
        let mut trace = Trace {
            info,
            lasted_us: self.lasted_us,
            lost: self.lost,
            files,
            commands: self.commands,
            events: Vec::new(),
        };
        events.retain(|event| trace.file(trace::file_of(&event.what)).is_some());
        trace.lost += (before - events.len()) as u64;
        trace.events = events;
        trace
    }
}

/// The files that events are about, each once.
fn mentioned(events: &[TraceEvent]) -> Vec<FileId> {
    let mut mentioned: Vec<FileId> = events.iter().map(|e| trace::file_of(&e.what)).collect();
    mentioned.sort_unstable();
    mentioned.dedup();
    mentioned
}

/// The files that events are about, as the tree has them. Cuts the events off at the first whose file's
/// path does not fit.
fn traced_files(events: &mut Vec<TraceEvent>, tree: &Tree) -> Vec<TracedFile> {
    let traced = |file: FileId| {
        let path = tree.path(file)?;
        let fits = path.len() <= trace::PATH_LIMIT;
        fits.then_some(TracedFile {
            file,
            version: tree.key(file)?.version,
            path,
        })
    };
    let (mut met, mut files) = (HashSet::new(), Vec::new());
    let mut left = PATHS_MAX;
    let cut = events.iter().position(|event| {
        let file = trace::file_of(&event.what);
        let Some(traced) = met.insert(file).then(|| traced(file)).flatten() else {
            return false;
        };
        match left.checked_sub(traced.path.len()) {
            Some(less) => {
                left = less;
                files.push(traced);
                false
            }
            None => true,
        }
    });
    events.truncate(cut.unwrap_or(events.len()));
    files.sort_unstable_by_key(|traced| traced.file);
    files
}

const fn file_mut(event: &mut Event) -> &mut FileId {
    match event {
        Event::Read(access) => &mut access.file,
        Event::Touch(Touch::Lookup { dir, .. } | Touch::List { dir }) => dir,
        Event::Touch(Touch::ReadLink { link }) => link,
    }
}
