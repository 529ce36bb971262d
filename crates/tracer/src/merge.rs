//! Merging several boots of one source into one plan.
//!
//! **Which files count.** A plan is made for a tree. Files of the traces are matched to it by path *and
//! version*: blocks of a file that has changed since mean nothing for the present file,
//! so they are left out and counted. Look-ups and listings are matched by path alone: their
//! results come from the tree, whatever it holds.
//!
//! **When a block is needed.** Each run gives the time of its first read; the lower median of
//! them decides. The minimum would let one odd run (a cron job, a file system check) pull a block
//! to the front of every later boot, the maximum would let one slow run push it back. With two
//! runs the lower median is the earlier one: a block that comes too early costs nothing, since
//! the whole plan is read in one pass; one that comes too late is a miss.
//!
//! **Order.** Time is divided into bins. Within a bin, files come in the order of their first use and
//! the blocks of a file in ascending order: a boot reads in random order, and a bin is short enough that
//! its end is not waited for, yet long enough to make runs of such reads.
//!
//! Nothing is rounded up: a plan has the touched blocks and no others. Filling gaps pays when
//! reading from a slow *source*; a boot image is contiguous anyway.

mod first_reads;
mod order;
mod similarity;

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU32;

use blocks::{BlockRange, Event, FileId, NodeKind, ReplayPlan, SourceId, Touch, Tree};

use crate::trace::{self, Trace};
pub use similarity::Similarity;

/// Options of a merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MergeOptions {
    /// Length of a time bin, in milliseconds.
    pub bin_ms: NonZeroU32,
}

impl Default for MergeOptions {
    /// 150 ms: a disk of 50 IOPS does seven seeks in that time, so a bin is long enough to be
    /// worth sorting, and short against a boot of three seconds. systemd-readahead's two seconds
    /// were a sort by place with hardly any order left.
    fn default() -> Self {
        const BIN_MS: NonZeroU32 = NonZeroU32::new(150).unwrap();
        Self { bin_ms: BIN_MS }
    }
}

/// What became of several traces.
#[derive(Clone, Debug, PartialEq)]
pub struct Merged {
    /// What the next boot will need.
    pub plan: ReplayPlan,
    /// How alike the runs were.
    pub similarity: Similarity,
    /// How many files the traces read that the tree has in another version.
    pub changed_files: usize,
    /// How many files the traces mention that the tree does not have.
    pub missing_files: usize,
}

/// Why traces cannot be merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MergeError {
    /// A trace is of another source than the first.
    #[error("trace {index} is of another source than the first")]
    OtherSource {
        /// The index of the trace.
        index: usize,
        /// What the first is a trace of.
        wanted: SourceId,
    },
    /// More traces than a plan can count.
    #[error("too many traces: {count}, at most 65535")]
    TooMany {
        /// How many.
        count: usize,
    },
}

/// Makes one plan of several traces of the source whose metadata `tree` is; its files are those
/// of `tree`. Time grows with `n log n` of the events and with the square of the number of traces
/// (all pairs are compared), not with the number of blocks.
///
/// # Errors
/// If the traces are not of one source, or more than 65 535.
pub fn merge(traces: &[Trace], tree: &Tree, options: &MergeOptions) -> Result<Merged, MergeError> {
    let runs = u16::try_from(traces.len()).map_err(|_| MergeError::TooMany {
        count: traces.len(),
    })?;
    if let Some(first) = traces.first() {
        let wanted = first.info.source;
        let other = traces.iter().position(|trace| trace.info.source != wanted);
        if let Some(index) = other {
            return Err(MergeError::OtherSource { index, wanted });
        }
    }
    let mut matching = Matching::new(tree);
    let mut touches = Touches::default();
    let mut reads = Vec::with_capacity(traces.len());
    for trace in traces {
        let matched = matching.of(trace);
        touches.add(trace, &matched);
        reads.push(first_reads::of_run(trace, &matched));
    }
    let pieces = first_reads::combine(&reads);
    let plan = ReplayPlan {
        runs,
        bin_ms: options.bin_ms.get(),
        extents: order::extents(&pieces, options.bin_ms),
        touches: touches.in_order(),
    };
    Ok(Merged {
        plan,
        similarity: Similarity::of(&reads, &pieces),
        changed_files: matching.changed.len(),
        missing_files: matching.missing.len(),
    })
}

/// What a file of a trace is in the tree.
#[derive(Clone, Copy, Debug)]
struct Match {
    file: FileId,
    kind: NodeKind,
    /// Its blocks; `None` if it is another version.
    blocks: Option<BlockRange>,
}

/// Finds the files of traces in a tree, and remembers which it did not find.
struct Matching<'a> {
    tree: &'a Tree,
    changed: HashSet<Vec<u8>>,
    missing: HashSet<Vec<u8>>,
}

impl<'a> Matching<'a> {
    fn new(tree: &'a Tree) -> Self {
        Self {
            tree,
            changed: HashSet::new(),
            missing: HashSet::new(),
        }
    }

    fn of(&mut self, trace: &Trace) -> HashMap<FileId, Match> {
        let mut matched = HashMap::with_capacity(trace.files.len());
        for traced in &trace.files {
            let Some(file) = self.tree.resolve(&traced.path) else {
                self.missing.insert(traced.path.clone());
                continue;
            };
            let Some(inode) = self.tree.inode(file) else {
                continue;
            };
            let same = inode.attr.version() == traced.version;
            if !same && inode.attr.kind == NodeKind::File {
                self.changed.insert(traced.path.clone());
            }
            let blocks = same.then(|| BlockRange::covering(0, inode.attr.size));
            let kind = inode.attr.kind;
            matched.insert(traced.file, Match { file, kind, blocks });
        }
        matched
    }
}

/// Uses of metadata, each once.
#[derive(Default)]
struct Touches<'a> {
    first_us: HashMap<TouchKey<'a>, u64>,
}

/// A [`Touch`] that borrows its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum TouchKey<'a> {
    List(FileId),
    Lookup(FileId, &'a [u8]),
    ReadLink(FileId),
}

impl<'a> Touches<'a> {
    fn add(&mut self, trace: &'a Trace, matched: &HashMap<FileId, Match>) {
        for event in &trace.events {
            let Event::Touch(touch) = &event.what else {
                continue;
            };
            let Some(found) = matched.get(&trace::file_of(&event.what)) else {
                continue;
            };
            let key = match (touch, found.kind) {
                (Touch::Lookup { name, .. }, NodeKind::Dir) => TouchKey::Lookup(found.file, name),
                (Touch::List { .. }, NodeKind::Dir) => TouchKey::List(found.file),
                (Touch::ReadLink { .. }, NodeKind::Symlink) => TouchKey::ReadLink(found.file),
                _ => continue,
            };
            let first_us = self.first_us.entry(key).or_insert(event.at_us);
            *first_us = event.at_us.min(*first_us);
        }
    }

    /// Returns them in the order of their first use in any run. Equal times are put in an order
    /// too, so that equal traces make equal plans.
    fn in_order(self) -> Vec<Touch> {
        let mut touches: Vec<(u64, TouchKey<'_>)> = self
            .first_us
            .into_iter()
            .map(|(key, first_us)| (first_us, key))
            .collect();
        touches.sort_unstable();
        touches.into_iter().map(|(_, key)| key.into()).collect()
    }
}

impl From<TouchKey<'_>> for Touch {
    fn from(key: TouchKey<'_>) -> Self {
        match key {
            TouchKey::List(dir) => Self::List { dir },
            TouchKey::Lookup(dir, name) => Self::Lookup {
                dir,
                name: name.to_vec(),
            },
            TouchKey::ReadLink(link) => Self::ReadLink { link },
        }
    }
}
