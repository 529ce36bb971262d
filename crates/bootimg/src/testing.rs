//! Boot images that somebody forged: every hash is right, and nothing else can be believed.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::Path;

use blocks::testing::{MemSource, Node, tree};
use blocks::{BlockIndex, BlockRange, ContentId, Extent, FileId, ReplayPlan, Tree};

use crate::{SourceInfo, Variant, WriteRequest, unwatched, write_image};

const PAGE: usize = 4096;
/// Where a header has its section table, and what an entry of it takes.
const TABLE: usize = 56;
const ENTRY: usize = 32;
/// What the tables of a tree begin with, an inode and a directory entry take.
const COUNTS: usize = 16;
const INODE: usize = 96;
const DIR_ENTRY: usize = 12;

/// Returns `depth` directories one below the other, each with a name of `len` bytes, and `files`
/// files of a block in the lowest.
pub fn deep(depth: u32, len: usize, files: u32) -> Tree {
    let name = "n".repeat(len);
    let mut nodes: Vec<Node> = (1..=depth)
        .map(|below| Node::dir(&[(&name, below)]))
        .collect();
    let names: Vec<String> = (0..files).map(|number| format!("f{number:06}")).collect();
    let names = names.iter().zip(depth + 1..);
    let names: Vec<(&str, u32)> = names.map(|(name, file)| (name.as_str(), file)).collect();
    nodes.push(Node::dir(&names));
    nodes.extend((0..files).map(|_| Node::file(PAGE as u64)));
    tree(&nodes).unwrap()
}

/// Writes a boot image that has a block of zeros of every file of `tree`.
pub fn write(tree: &Tree, path: &Path) {
    let files: Vec<FileId> = tree
        .files()
        .filter(|(_, inode)| inode.attr.kind == blocks::NodeKind::File)
        .map(|(file, _)| file)
        .collect();
    let mut source = MemSource::default();
    for file in &files {
        source.insert(tree.key(*file).unwrap(), vec![0; PAGE]);
    }
    let extents = files.iter().map(|file| Extent {
        file: *file,
        range: BlockRange::with_len(BlockIndex(0), 1),
        bin: 0,
        seen: 1,
    });
    let plan = ReplayPlan {
        runs: 1,
        bin_ms: 1,
        extents: extents.collect(),
        touches: Vec::new(),
    };
    let request = WriteRequest {
        tree,
        info: &SourceInfo::default(),
        plan: &plan,
        blocks: &source,
        variant: Variant::Mapped,
    };
    write_image(path, &request, &mut unwatched).unwrap();
}

/// Gives every entry of `tree` whose name has one byte the same name of 255 bytes, which lies in the
/// table of bytes once. No rule of the tables is broken but that.
pub fn with_one_long_name(tree: &Tree) -> Vec<u8> {
    let parts = tree.parts();
    let mut bytes = tree.encode();
    let start = u32::try_from(parts.bytes.len()).unwrap();
    let entries = COUNTS + INODE * parts.inodes.len();
    for (number, entry) in parts.entries.iter().enumerate() {
        if entry.name.len == 1 {
            let at = entries + DIR_ENTRY * number;
            bytes[at..at + 4].copy_from_slice(&start.to_le_bytes());
            bytes[at + 4..at + 8].copy_from_slice(&255_u32.to_le_bytes());
        }
    }
    bytes[12..16].copy_from_slice(&(start + 255).to_le_bytes());
    bytes.extend_from_slice(&[b'n'; 255]);
    bytes
}

/// Returns a boot image with another TREE, and all its hashes right.
pub fn replace_tree(image: &[u8], tree: &[u8]) -> Vec<u8> {
    let footer = image.len() - PAGE;
    let mut forged = image[..footer].to_vec();
    let at = forged.len();
    forged.extend_from_slice(tree);
    forged.resize(forged.len().next_multiple_of(PAGE), 0);
    forged.extend_from_slice(&image[footer..]);
    let entry = |index: usize| TABLE + ENTRY * index;
    let is_tree = |index: &usize| image[entry(*index)] == 1;
    let index = (0..32).find(is_tree).unwrap();
    let fields = [at, tree.len(), tree.len()].map(|field| (field as u64).to_le_bytes());
    let section = &mut forged[entry(index)..][..ENTRY];
    section[4..8].fill(0); // stored as it is
    section[8..].copy_from_slice(&fields.concat());
    let len = (forged.len() as u64).to_le_bytes();
    forged[32..40].copy_from_slice(&len);
    seal(&mut forged, index, tree);
    forged
}

/// Makes the hashes right that depend on a section.
fn seal(forged: &mut [u8], index: usize, section: &[u8]) {
    let footer = forged.len() - PAGE;
    let hash = ContentId::of(section).0;
    forged[footer + 32 * index..][..32].copy_from_slice(&hash);
    let header = ContentId::of(&forged[..PAGE - 32]).0;
    forged[PAGE - 32..PAGE].copy_from_slice(&header);
    let covered = [&forged[..PAGE], &forged[footer..footer + 1024]].concat();
    let len = forged.len();
    forged[len - 32..].copy_from_slice(&ContentId::of(&covered).0);
}
