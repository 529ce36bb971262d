//! What an image takes besides the blocks that boots touch: at most 6 % of them.

#![expect(clippy::unwrap_used, reason = "tests")]

mod sample;

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use blocks::testing::Node;
use blocks::{BLOCK_SIZE, BlockIndex, BlockRange, Extent, FileId, NodeKind, ReplayPlan, Timestamp};
use blocks::{BlockSource, FileKey, SourceError, Touch, Tree};
use bootimg::{SourceInfo, Variant, WriteRequest, unwatched};
use sample::noise;

const EXTENTS: usize = 4500;
const BLOCKS_OF_EXTENT: u64 = 2; // 35 MiB
const INODES: usize = 10_000;

/// The directory that a file is in, by index, and its name there.
type Home = (usize, Vec<u8>);

/// Every block of every file is different from all others.
struct Noise;

impl BlockSource for Noise {
    fn read_at(&self, file: &FileKey, offset: u64, buf: &mut [u8]) -> Result<usize, SourceError> {
        let len = usize::try_from(file.version.size - offset)
            .unwrap_or(usize::MAX)
            .min(buf.len());
        for (index, chunk) in buf[..len].chunks_mut(BLOCK_SIZE).enumerate() {
            let block = (offset / BLOCK_SIZE as u64 + index as u64) * 100_003;
            chunk.copy_from_slice(&noise(block + u64::from(file.file.0), chunk.len()));
        }
        Ok(len)
    }
}

fn kind_of(meta: &std::fs::Metadata) -> NodeKind {
    if meta.is_dir() {
        NodeKind::Dir
    } else if meta.is_symlink() {
        NodeKind::Symlink
    } else {
        NodeKind::File
    }
}

/// A tree with the attributes and names of the first inodes below a directory of this machine.
fn tree_of(root: &Path) -> Tree {
    let mut nodes = Vec::new();
    let mut waiting: Vec<(PathBuf, Option<Home>)> = vec![(root.to_owned(), None)];
    let mut next = 0;
    while next < waiting.len() && nodes.len() < INODES {
        let (path, parent) = waiting[next].clone();
        next += 1;
        let Ok(meta) = std::fs::symlink_metadata(&path) else {
            continue;
        };
        let mut node = Node::new(kind_of(&meta));
        let time = |secs, nanos| Timestamp {
            secs,
            nanos: u32::try_from(nanos).unwrap_or(0),
        };
        node.attr.perm = u16::try_from(meta.mode() & 0o7777).unwrap();
        node.attr.size = meta.size();
        node.attr.blocks = meta.blocks();
        node.attr.nlink = 1;
        node.attr.atime = time(meta.atime(), meta.atime_nsec());
        node.attr.mtime = time(meta.mtime(), meta.mtime_nsec());
        node.attr.ctime = time(meta.ctime(), meta.ctime_nsec());
        node.attr.source_inode = meta.ino();
        let index = nodes.len();
        match node.attr.kind {
            NodeKind::Symlink => {
                let target = std::fs::read_link(&path).unwrap();
                node.target = target.into_os_string().into_encoded_bytes();
            }
            NodeKind::Dir => {
                let Ok(entries) = std::fs::read_dir(&path) else {
                    continue;
                };
                for entry in entries.flatten() {
                    let name = entry.file_name().into_encoded_bytes();
                    waiting.push((entry.path(), Some((index, name))));
                }
            }
            _ => {}
        }
        nodes.push(node);
        if let Some((parent, name)) = parent {
            nodes[parent]
                .names
                .push((name, u32::try_from(index).unwrap()));
        }
    }
    blocks::testing::tree(&nodes).unwrap()
}

/// 4 500 extents of two blocks each, in files large enough, not in the order of files.
fn plan_for(tree: &Tree) -> ReplayPlan {
    let mut spots: Vec<Extent> = Vec::new();
    let mut per_file: HashMap<FileId, u64> = HashMap::new();
    let files = || {
        tree.files()
            .filter(|(_, inode)| inode.attr.kind == NodeKind::File)
    };
    while spots.len() < EXTENTS {
        let before = spots.len();
        for (file, inode) in files() {
            let used = per_file.entry(file).or_default();
            let fits = (*used + BLOCKS_OF_EXTENT) * (BLOCK_SIZE as u64) <= inode.attr.size;
            if fits && spots.len() < EXTENTS {
                spots.push(Extent {
                    file,
                    range: BlockRange::with_len(BlockIndex(*used), BLOCKS_OF_EXTENT),
                    bin: u32::try_from(spots.len() / 100).unwrap(),
                    seen: 1,
                });
                *used += BLOCKS_OF_EXTENT + 1;
            }
        }
        assert!(spots.len() > before, "there are enough large files");
    }
    let touches = tree.files().take(4000).flat_map(|(dir, _)| {
        let names: Vec<_> = tree.entries(dir).map(|(name, _)| name.to_vec()).collect();
        names
            .into_iter()
            .map(move |name| Touch::Lookup { dir, name })
    });
    ReplayPlan {
        runs: 1,
        bin_ms: 100,
        extents: spots,
        touches: touches.take(4000).collect(),
    }
}

#[test]
fn an_image_of_35_mib_takes_at_most_six_percent_more_than_its_blocks() {
    let tree = tree_of(Path::new("/usr"));
    let plan = plan_for(&tree);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image.bimg");
    let request = WriteRequest {
        tree: &tree,
        info: &SourceInfo::default(),
        plan: &plan,
        blocks: &Noise,
        variant: Variant::Mapped,
    };
    let report = bootimg::write_image(&path, &request, &mut unwatched).unwrap();
    assert_eq!(report.data_blocks, EXTENTS as u64 * BLOCKS_OF_EXTENT);
    let touched = report.data_blocks * BLOCK_SIZE as u64;
    let file = std::fs::metadata(&path).unwrap().len();
    println!(
        "{} inodes, {touched} bytes touched, {file} in the file",
        tree.len()
    );
    assert!(
        tree.len() > INODES / 2,
        "{} inodes are no Debian root",
        tree.len()
    );
    assert!(file * 100 <= touched * 106, "{file} bytes for {touched}");
}
