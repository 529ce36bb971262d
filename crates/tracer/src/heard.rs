//! What a recorder heard, on its way to a trace.

use std::collections::HashMap;

use blocks::{Event, FileId, Touch, Tree};

use crate::trace::{self, Trace, TraceEvent, TraceInfo, TracedFile};

/// What a [`Recorder`](crate::Recorder) heard until it was stopped.
///
/// Its events call files what the mount called them. Where that was not their id in a tree, as of
/// a source that was not scanned before it was mounted, [`Self::call_files`] puts it right.
#[derive(Debug)]
pub struct Heard {
    pub(crate) lasted_us: u64,
    pub(crate) lost: u64,
    pub(crate) commands: Vec<Vec<u8>>,
    pub(crate) events: Vec<TraceEvent>,
}

impl Heard {
    /// Calls every file what `id_of` says. Events about files for which it says nothing are left
    /// out; those files are returned, in order. They do not count as lost: what is left is still
    /// all that was heard of the others.
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
    /// `tree` does not have count as lost.
    #[must_use]
    pub fn into_trace(self, info: TraceInfo, tree: &Tree) -> Trace {
        let mut trace = Trace {
            info,
            lasted_us: self.lasted_us,
            lost: self.lost,
            files: traced_files(&self.events, tree),
            commands: self.commands,
            events: Vec::new(),
        };
        let mut events = self.events;
        let before = events.len();
        events.retain(|event| trace.file(trace::file_of(&event.what)).is_some());
        trace.lost += (before - events.len()) as u64;
        // Answers come in another order than questions do where several threads serve.
        events.sort_by_key(|event| event.at_us);
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

/// The files that events are about, as the tree has them.
fn traced_files(events: &[TraceEvent], tree: &Tree) -> Vec<TracedFile> {
    let traced = |file: FileId| {
        let path = tree.path(file)?;
        let fits = path.len() <= trace::PATH_LIMIT;
        fits.then_some(TracedFile {
            file,
            version: tree.key(file)?.version,
            path,
        })
    };
    mentioned(events).into_iter().filter_map(traced).collect()
}

const fn file_mut(event: &mut Event) -> &mut FileId {
    match event {
        Event::Read(access) => &mut access.file,
        Event::Touch(Touch::Lookup { dir, .. } | Touch::List { dir }) => dir,
        Event::Touch(Touch::ReadLink { link }) => link,
    }
}
