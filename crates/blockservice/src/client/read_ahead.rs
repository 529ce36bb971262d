//! Readahead without a plan: blocks that a reader of a distant service will probably read next are
//! requested early.
//!
//! Only over a network path whose round trip costs more than the bytes that were requested in vain, and
//! not while a plan's chunks are being streamed: these predict the reads better.

mod libraries;
mod linked;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::OnceLock;
use std::time::Duration;

use fetch::predict::{FileChunks, Gain, Predicted, Predictor};
use parking_lot::{Mutex, MutexGuard};

use super::Chunk;
use blocks::{FileId, NodeKind, Tree};
use chunks::CHUNK_MAX;
use chunks::index::Index;
use chunks::links::Links;
use libraries::{Libraries, is_library};
use linked::Linked;

/// A line with a shorter round trip needs no readahead of ours: the kernel's is enough.
const FAR: Duration = Duration::from_millis(2);
/// The rate of a line that was not measured yet, in bytes per second: 100 Mbit/s.
const RATE_MIN: u64 = 12_500_000;
/// What the files that one program is linked with may take, in what a round trip brings.
const LINKED_ROUND_TRIPS: u64 = 8;
/// Bytes that may be requested and not read yet: less than what is kept of such chunks in memory.
const UNUSED_BYTES: u64 = 96 << 20;

/// The measured properties of a network path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    /// The shortest round trip.
    pub(super) round_trip: Duration,
    /// Bytes per second, before compression; 0 before the first measurement.
    pub(super) rate: u64,
}

impl Line {
    /// Returns what is to be gained on it; `None` if it is too near to gain anything.
    fn gain(self) -> Option<Gain> {
        if self.round_trip < FAR {
            return None;
        }
        let micros = u64::try_from(self.round_trip.as_micros()).unwrap_or(u64::MAX);
        let rate = if self.rate == 0 { RATE_MIN } else { self.rate };
        Some(Gain {
            round_trip_bytes: rate.saturating_mul(micros) / 1_000_000,
            unused_bytes: UNUSED_BYTES,
        })
    }
}

/// Chunks to request now, and when nothing else is to be done.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Next {
    pub(super) soon: Vec<u32>,
    pub(super) later: Vec<u32>,
}

impl Next {
    fn add(&mut self, predicted: Predicted) {
        self.soon.extend(predicted.soon.into_iter().flatten());
        self.later.extend(predicted.later.into_iter().flatten());
    }
}

/// Where the content of chunks is looked up that are in memory.
pub(super) type Lookup<'a> = dyn Fn(u32) -> Option<Chunk> + 'a;

/// Predicts the reads of one source.
#[derive(Debug, Default)]
pub(super) struct ReadAhead {
    /// Made when it is first needed: a source on a near line never does.
    state: OnceLock<Mutex<State>>,
    /// What programs are linked with, if the service said it.
    links: OnceLock<Links>,
}

#[derive(Debug)]
struct State {
    predictor: Predictor,
    libraries: Libraries,
    linked: Linked,
}

impl ReadAhead {
    /// Notes what programs are linked with; what came first counts.
    pub(super) fn know_links(&self, links: Links) {
        let _first = self.links.set(links);
    }

    /// Returns what is known of the reads, for a line on which something is gained by reading ahead.
    fn state(&self, index: &Index, line: Line) -> Option<MutexGuard<'_, State>> {
        let gain = line.gain()?;
        let state = self.state.get_or_init(|| Mutex::new(State::new(index)));
        let mut state = state.lock();
        state.predictor.set_gain(gain);
        Some(state)
    }

    /// Notes that chunks are read, and returns those to request: neither read nor returned before.
    pub(super) fn touched(
        &self,
        index: &Index,
        line: Line,
        numbers: &[u32],
        content: &Lookup<'_>,
    ) -> Next {
        let mut next = Next::default();
        let Some(mut state) = self.state(index, line) else {
            return next;
        };
        for number in numbers {
            next.add(state.predictor.touched(*number));
        }
        for number in numbers {
            if let Some(place) = index.place(*number)
                && place.offset == 0
                && let Some(links) = self.links.get()
            {
                state.follow(index, links, place.file, line, content, &mut next);
            }
        }
        for number in numbers {
            if let Some(place) = index.place(*number)
                && place.offset == 0
                && state.libraries.is_new(place.file)
            {
                if is_program(index.tree(), place.file) {
                    next.add(state.predictor.linked(*number));
                }
                state.link(index, place.file, content, &mut next);
            }
        }
        next.soon.retain(|number| !numbers.contains(number));
        next
    }

    /// Returns the chunks that the first program is loaded with, whichever it is: it would wait for them one after the
    /// other.
    pub(super) fn begin(&self, index: &Index, line: Line, content: &Lookup<'_>) -> Next {
        let mut next = Next::default();
        let Some(mut state) = self.state(index, line) else {
            return next;
        };
        let files = state.libraries.first(index.tree());
        state.load(index, files.clone(), content, &mut next);
        // What the C library reads itself, and the shell.
        if let Some(links) = self.links.get() {
            for file in files {
                state.follow(index, links, file, line, content, &mut next);
            }
        }
        next
    }

    /// Notes that a chunk arrived, and returns the chunks that will be read next according to its content.
    pub(super) fn came(&self, index: &Index, number: u32, content: &Lookup<'_>) -> Next {
        let mut next = Next::default();
        if let Some(state) = self.state.get() {
            let mut state = state.lock();
            for file in state.libraries.waited_for(number) {
                state.link(index, file, content, &mut next);
            }
        }
        next
    }
}

impl State {
    fn new(index: &Index) -> Self {
        let chunk_bytes = u32::try_from(CHUNK_MAX).unwrap_or(u32::MAX);
        Self {
            predictor: Predictor::new(files(index), chunk_bytes)
                .with_parents(directories(index.tree())),
            libraries: Libraries::default(),
            linked: Linked::default(),
        }
    }

    /// Predicts the beginnings of all files that an opened one is linked with, directly or by others.
    fn follow(
        &mut self,
        index: &Index,
        links: &Links,
        opened: FileId,
        line: Line,
        content: &Lookup<'_>,
        next: &mut Next,
    ) {
        let Some(gain) = line.gain() else {
            return;
        };
        let most = gain.round_trip_bytes.saturating_mul(LINKED_ROUND_TRIPS);
        let is_small = |numbers: &Range<u32>| numbers.end - numbers.start <= 2;
        for file in self.linked.with(index, links, opened, most) {
            let numbers = index.covering(file, 0, u64::MAX);
            next.add(self.predictor.linked(numbers.start));
            // Both ends are all of a small one. Of others the loader reads more, which their content tells.
            if !is_small(&numbers) && self.libraries.is_new(file) {
                self.link(index, file, content, next);
            }
        }
    }

    /// Predicts what a file is linked with, if it is a program, as far as its content is here.
    fn link(&mut self, index: &Index, file: FileId, content: &Lookup<'_>, next: &mut Next) {
        let linked = self.libraries.of(index, file, content);
        // The rest of its prediction depends on this.
        if let Some(missing) = linked.missing {
            next.soon.insert(0, missing);
        }
        for part in linked.parts {
            next.add(self.predictor.loaded(part));
        }
        for part in linked.run {
            next.add(self.predictor.run(part));
        }
        self.load(index, linked.files, content, next);
    }

    /// Predicts files that programs are linked with, and what these are linked with, too, as soon as they are here.
    fn load(&mut self, index: &Index, files: Vec<FileId>, content: &Lookup<'_>, next: &mut Next) {
        for file in files {
            let numbers = index.covering(file, 0, u64::MAX);
            next.add(self.predictor.linked(numbers.start));
            if self.libraries.is_new(file) {
                self.link(index, file, content, next);
            }
        }
    }
}

/// Returns whether a file may be executed.
fn is_program(tree: &Tree, file: FileId) -> bool {
    let inode = tree.inode(file);
    inode.is_some_and(|inode| inode.attr.perm & 0o111 != 0)
}

/// Returns the files of a source in chunks, each with its directory.
fn files(index: &Index) -> Vec<FileChunks> {
    let tree = index.tree();
    let parents = parents(tree);
    let kinds = kinds(tree);
    let files = tree
        .files()
        .filter(|(_, inode)| inode.attr.kind == NodeKind::File);
    let chunks = files.map(|(file, inode)| {
        let numbers = index.covering(file, 0, inode.attr.size);
        let kind = kinds.get(&file).copied().unwrap_or_default();
        let is_program = kind == 0 && inode.attr.perm & 0o111 != 0;
        FileChunks {
            first: numbers.start,
            chunks: numbers.end - numbers.start,
            bytes: inode.attr.size,
            directory: parents.get(&file).map_or(0, |dir| dir.0),
            kind: if is_program {
                FileChunks::PROGRAM
            } else {
                kind
            },
        }
    });
    chunks.collect()
}

/// Returns a number for the extension of each file that has one; of one with several names that of the last.
fn kinds(tree: &Tree) -> HashMap<FileId, u32> {
    let (mut numbers, mut kinds) = (HashMap::new(), HashMap::new());
    let dirs = tree
        .files()
        .filter(|(_, inode)| inode.attr.kind == NodeKind::Dir);
    for (dir, _) in dirs {
        for (name, file) in tree.entries(dir) {
            if is_library(name) {
                kinds.insert(file, FileChunks::PROGRAM);
                continue;
            }
            let Some(dot) = name.iter().rposition(|byte| *byte == b'.') else {
                continue;
            };
            let fresh = u32::try_from(numbers.len() + 1).unwrap_or(u32::MAX);
            let number = numbers.entry(&name[dot..]).or_insert(fresh);
            kinds.insert(file, *number);
        }
    }
    kinds
}

/// Returns the parent of each directory.
fn directories(tree: &Tree) -> HashMap<u32, u32> {
    let parents = parents(tree).into_iter();
    let is_dir = |file: FileId| {
        tree.inode(file)
            .is_some_and(|inode| inode.attr.kind == NodeKind::Dir)
    };
    let dirs = parents.filter(|(file, _)| is_dir(*file));
    dirs.map(|(dir, parent)| (dir.0, parent.0)).collect()
}

/// Returns the directory of each file; of one with several names the first.
fn parents(tree: &Tree) -> HashMap<FileId, FileId> {
    let mut parents = HashMap::new();
    let dirs = tree
        .files()
        .filter(|(_, inode)| inode.attr.kind == NodeKind::Dir);
    for (dir, _) in dirs {
        for (_, file) in tree.entries(dir) {
            parents.entry(file).or_insert(dir);
        }
    }
    parents
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::ops::ControlFlow;
    use std::sync::Arc;

    use blocks::testing::{MemSource, Node, tree};
    use chunks::index::build;
    use chunks::testing::MemStore;

    use super::*;

    #[test]
    fn a_near_line_gains_nothing_and_a_far_one_what_it_brings_in_a_round_trip() {
        let gain = |micros, rate| {
            let round_trip = Duration::from_micros(micros);
            let gain = Line { round_trip, rate }.gain();
            gain.map(|gain| gain.round_trip_bytes)
        };
        assert_eq!(gain(1_999, 1 << 40), None);
        assert_eq!(gain(2_000, 0), Some(25_000));
        assert_eq!(gain(20_000, 125_000_000), Some(2_500_000));
        assert_eq!(gain(20_000, 3_125_000), Some(62_500));
        assert!(gain(u64::MAX, u64::MAX).is_some());
    }

    #[test]
    fn what_each_program_is_loaded_with_is_requested_before_the_first_is_read() {
        let nodes = [
            Node::dir(&[
                ("bin", 1),
                ("ld.so.cache", 2),
                ("libc.so.6", 3),
                ("libz.so", 4),
                ("passwd", 5),
            ]),
            Node::file(5 << 17),
            Node::file(100),
            Node::file(9 << 17),
            Node::file(100),
            Node::file(100),
        ];
        let tree = Arc::new(tree(&nodes).unwrap());
        let ids = (0..17_u8).map(|n| blocks::ContentId::of(&[n])).collect();
        let index = Index::new(b"x", tree, ids).unwrap();
        let line = |millis| Line {
            round_trip: Duration::from_millis(millis),
            rate: 50_000_000,
        };
        let soon = |next: &Next| {
            let soon: BTreeSet<_> = next.soon.iter().copied().collect();
            soon.into_iter().collect::<Vec<_>>()
        };
        let ahead = ReadAhead::default();
        assert_eq!(ahead.begin(&index, line(1), &|_| None), Next::default());
        let next = ahead.begin(&index, line(20), &|_| None);
        // The list, and both ends of the library.
        assert_eq!(soon(&next), [5, 6, 7, 12, 13, 14], "{next:?}");
        assert_eq!(next.later, [8, 9, 10, 11]);
        // And what the library reads, if the service says it.
        let ahead = ReadAhead::default();
        let found = BTreeMap::from([(FileId(3), vec![FileId(5)])]);
        ahead.know_links(Links::new(&found));
        let next = ahead.begin(&index, line(20), &|_| None);
        assert_eq!(soon(&next), [5, 6, 7, 12, 13, 14, 16], "{next:?}");
    }

    #[test]
    fn what_is_relocated_is_requested_when_a_program_is_read() {
        const CHUNKS: u64 = 60;
        let mut bytes = vec![7; CHUNK_MAX * usize::try_from(CHUNKS).unwrap()];
        crate::programs::elf::tests::write_program(&mut bytes, 30 << 17..31 << 17);
        let nodes = [Node::dir(&[("program", 1)]), Node::file(bytes.len() as u64)];
        let tree = Arc::new(tree(&nodes).unwrap());
        let mut files = MemSource::default();
        files.insert(tree.key(FileId(1)).unwrap(), bytes.clone());
        let (store, go_on) = (MemStore::default(), &mut |_| ControlFlow::Continue(()));
        let index = build(b"x", &tree, &files, &store, go_on).unwrap().index;
        let chunk = |number: u32| {
            let start = number as usize * CHUNK_MAX;
            Some(Arc::new(bytes[start..start + CHUNK_MAX].to_vec()))
        };
        let line = Line {
            round_trip: Duration::from_millis(20),
            rate: 50_000_000,
        };
        let next = ReadAhead::default().touched(&index, line, &[0], &chunk);
        assert!(next.soon.contains(&30), "{next:?}");
        // Of what the loader reads nothing is far behind it.
        assert!(next.soon.iter().all(|number| *number < 31), "{next:?}");
    }
}
