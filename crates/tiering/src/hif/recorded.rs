//! Hot files of a recording: what starts read, by files and by blocks.
//!
//! A boot image is a recording, so this needs no separate trace. By files means the unit of the
//! paper: each file that was read, whole. By blocks means only the blocks that were read.

use std::collections::BTreeMap;

use blocks::{BLOCK_SIZE, FileId, ReplayPlan, Tree};

/// A file that starts read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedFile {
    /// The file.
    pub file: FileId,
    /// Bytes of it that were read, in whole blocks, no more than the file has.
    pub block_bytes: u64,
    /// Bytes of the whole file.
    pub file_bytes: u64,
    /// How many of the recorded starts read the part of it that most of them read.
    pub seen: u16,
    /// When it was needed first: bins of the plan since the start.
    pub bin: u32,
}

/// What starts read of a source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    /// The files, the one that was needed first first. Those with two names are there once.
    pub files: Vec<RecordedFile>,
    /// Bytes that fast memory needs for the blocks that were read.
    pub block_bytes: u64,
    /// Bytes that it needs for all these files, whole.
    pub file_bytes: u64,
    /// Bytes of all files of the source.
    pub source_bytes: u64,
}

/// Returns the hot files of a recording. Entries of the plan for files that the tree does not have
/// are left out.
#[must_use]
pub fn recorded_files(plan: &ReplayPlan, tree: &Tree) -> Recorded {
    let mut found: BTreeMap<FileId, RecordedFile> = BTreeMap::new();
    for extent in &plan.extents {
        let Some(inode) = tree.inode(extent.file) else {
            continue;
        };
        let size = inode.attr.size;
        let file = found.entry(extent.file).or_insert(RecordedFile {
            file: extent.file,
            block_bytes: 0,
            file_bytes: size,
            seen: 0,
            bin: u32::MAX,
        });
        let bytes = extent.range.len().saturating_mul(BLOCK_SIZE as u64);
        file.block_bytes = file.block_bytes.saturating_add(bytes).min(size);
        file.seen = file.seen.max(extent.seen);
        file.bin = file.bin.min(extent.bin);
    }
    let mut files: Vec<RecordedFile> = found.into_values().collect();
    files.sort_by_key(|file| (file.bin, file.file));
    let sum = |of: fn(&RecordedFile) -> u64| files.iter().map(of).fold(0, u64::saturating_add);
    let sizes = tree.files().map(|(_, inode)| match inode.attr.kind {
        blocks::NodeKind::File => inode.attr.size,
        _ => 0,
    });
    Recorded {
        block_bytes: sum(|file| file.block_bytes),
        file_bytes: sum(|file| file.file_bytes),
        source_bytes: sizes.fold(0, u64::saturating_add),
        files,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blocks::testing::{Node, tree};
    use blocks::{BlockIndex, BlockRange, Extent};

    const LARGE: FileId = FileId(1);
    const SMALL: FileId = FileId(2);

    fn sample() -> Tree {
        tree(&[
            Node::dir(&[("large", 1), ("small", 2), ("cold", 3), ("twin", 2)]),
            Node::file(100 * BLOCK_SIZE as u64),
            {
                let mut small = Node::file(100);
                small.attr.nlink = 2;
                small
            },
            Node::file(5000),
        ])
        .unwrap()
    }

    fn extent(file: FileId, start: u64, len: u64, bin: u32, seen: u16) -> Extent {
        Extent {
            file,
            range: BlockRange::with_len(BlockIndex(start), len),
            bin,
            seen,
        }
    }

    fn plan(extents: Vec<Extent>) -> ReplayPlan {
        ReplayPlan {
            runs: 3,
            bin_ms: 100,
            extents,
            touches: Vec::new(),
        }
    }

    #[test]
    fn blocks_are_less_than_the_files_that_they_are_of() {
        let plan = plan(vec![
            extent(LARGE, 0, 2, 5, 1),
            extent(SMALL, 0, 1, 2, 3),
            extent(LARGE, 90, 3, 7, 2),
        ]);
        let found = recorded_files(&plan, &sample());
        let block = BLOCK_SIZE as u64;
        assert_eq!(
            found.files,
            [
                RecordedFile {
                    file: SMALL,
                    block_bytes: 100,
                    file_bytes: 100,
                    seen: 3,
                    bin: 2
                },
                RecordedFile {
                    file: LARGE,
                    block_bytes: 5 * block,
                    file_bytes: 100 * block,
                    seen: 2,
                    bin: 5
                },
            ]
        );
        assert_eq!(found.block_bytes, 5 * block + 100);
        assert_eq!(found.file_bytes, 100 * block + 100);
        assert_eq!(found.source_bytes, 100 * block + 5100);
    }

    #[test]
    fn what_cannot_be_is_left_out_and_nothing_overflows() {
        let plan = plan(vec![
            extent(FileId(99), 0, 1, 0, 1),
            extent(LARGE, 0, 1 << 50, 0, 1),
        ]);
        let found = recorded_files(&plan, &sample());
        assert_eq!(found.files.len(), 1);
        assert_eq!(found.block_bytes, found.file_bytes);
        assert_eq!(recorded_files(&ReplayPlan::default(), &sample()).files, []);
    }
}
