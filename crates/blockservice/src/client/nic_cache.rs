//! The service as a cache in front of a local source, for reads that a busy disk would serve slowly.

use std::collections::HashMap;
use std::ops::Range;

use blocks::prompt::{self, Patience};
use blocks::{
    BLOCK_SIZE, BlockCache, BlockRange, FileId, FileKey, Lookup, NodeKind, Tree, Version,
};

use super::Chunk;
use super::Remote;
use crate::wire::Priority;
use chunks::index::CHUNK_BYTES;

/// Blocks of a local source, from the service.
///
/// A file of the source is assumed to equal that of the index if it has its path, length and
/// modification time, to the nanosecond: the criterion of rsync, and what a layer's tar contains. If
/// files of a source are written to and their times restored, no index may be named for it.
#[derive(Debug)]
pub struct NicCache {
    remote: Remote,
    /// By file of the source: its version, and its file in the index.
    files: HashMap<FileId, (Version, FileId)>,
}

impl NicCache {
    /// Returns a cache of the source whose metadata `tree` is.
    #[must_use]
    pub fn new(remote: Remote, tree: &Tree) -> Self {
        let index = remote.index().tree();
        let same = |file: FileId| {
            let ours = tree.inode(file)?.attr;
            let there = index.resolve(&tree.path(file)?)?;
            let theirs = index.inode(there)?.attr;
            let is_same = ours.kind == NodeKind::File
                && theirs.kind == NodeKind::File
                && (ours.size, ours.mtime) == (theirs.size, theirs.mtime);
            is_same.then_some((file, (ours.version(), there)))
        };
        let files = tree.files().filter_map(|(file, _)| same(file)).collect();
        Self { remote, files }
    }

    /// Returns how many files of the source the index has as they are.
    #[must_use]
    pub fn files(&self) -> usize {
        self.files.len()
    }

    /// Returns the remote source.
    #[must_use]
    pub const fn remote(&self) -> &Remote {
        &self.remote
    }
}

impl BlockCache for NicCache {
    fn get(&self, file: &FileKey, range: BlockRange, out: &mut [u8]) -> Lookup {
        let miss = Lookup::Miss {
            blocks: range.len(),
        };
        let Some((_, there)) = self
            .files
            .get(&file.file)
            .filter(|(v, _)| *v == file.version)
        else {
            return miss;
        };
        if !self.remote.is_there() || self.remote.is_refused() {
            return Lookup::Throttled;
        }
        let Range { start, .. } = range.bytes();
        let bytes = out.len() as u64;
        let index = self.remote.index();
        let chunks = index.covering(*there, start, bytes);
        if prompt::patience() == Patience::None {
            // What the disk's own cache has is as near; all else is asked for by who may wait.
            let found: Option<Vec<_>> = chunks
                .map(|number| self.remote.recent(number).map(Some))
                .collect();
            let found = found.map(|found| blocks_of(&found, range, out));
            return found.unwrap_or(Lookup::Throttled);
        }
        let patience = self.remote.patience().give_up;
        let found = self.remote.fetch(chunks, Priority::Demand, patience);
        blocks_of(&found, range, out)
    }
}

/// Copies the blocks of `range` out of the chunks that contain it, up to the first missing one, and
/// fills the last one up with zeros.
pub(super) fn blocks_of(found: &[Option<Chunk>], range: BlockRange, out: &mut [u8]) -> Lookup {
    // Chunks begin and end with blocks, but for the end of the file.
    let within = range.bytes().start % CHUNK_BYTES;
    if found.first().is_none_or(Option::is_none) {
        let to_next = (CHUNK_BYTES - within) >> blocks::BLOCK_SHIFT;
        return Lookup::Miss {
            blocks: to_next.min(range.len()),
        };
    }
    let mut done = 0;
    let mut skip = usize::try_from(within).unwrap_or(0);
    for chunk in found.iter().map_while(Option::as_ref) {
        let len = (chunk.len() - skip.min(chunk.len())).min(out.len() - done);
        out[done..done + len].copy_from_slice(&chunk[skip..skip + len]);
        done += len;
        skip = 0;
    }
    let whole = done.div_ceil(BLOCK_SIZE);
    out[done..(whole * BLOCK_SIZE).min(bytes_of(range))].fill(0);
    match whole as u64 {
        0 => Lookup::Miss {
            blocks: range.len(),
        },
        blocks => Lookup::Hit { blocks },
    }
}

fn bytes_of(range: BlockRange) -> usize {
    usize::try_from(range.len())
        .unwrap_or(usize::MAX)
        .saturating_mul(BLOCK_SIZE)
}
