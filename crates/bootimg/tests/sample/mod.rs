//! A small source with everything that a boot image has to keep, and a boot of it.

#![allow(
    dead_code,
    missing_debug_implementations,
    missing_docs,
    unreachable_pub,
    clippy::allow_attributes,
    clippy::new_without_default,
    clippy::unwrap_used,
    reason = "shared by tests, each of which uses some of it"
)]

use std::collections::BTreeMap;
use std::sync::Arc;

use blocks::testing::{MemSource, Node};
use blocks::{
    BLOCK_SIZE, BlockCache, BlockIndex, BlockRange, Extent, FileId, Lookup, NodeKind, ReplayPlan,
    SourceId, Timestamp, Touch, Tree,
};
use bootimg::{Attached, Image, SourceInfo, Variant, WriteReport, WriteRequest, unwatched};

pub const APP: FileId = FileId(3);
pub const CONF: FileId = FileId(4);
pub const LIB: FileId = FileId(5);

/// A source in memory, and the content it has.
pub struct Sample {
    pub tree: Tree,
    pub content: BTreeMap<FileId, Vec<u8>>,
    pub plan: ReplayPlan,
    pub info: SourceInfo,
}

/// Bytes that no compressor can do much about, the same for the same seed.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(len);
    out
}

fn blocks_of(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

pub fn nodes() -> Vec<Node> {
    let time = |secs, nanos| Timestamp { secs, nanos };
    let mut nodes = vec![
        Node::dir(&[("bin", 1), ("etc", 2), ("lib", 6), ("null", 8), ("pipe", 9)]),
        Node::dir(&[("app", 3), ("also-app", 3), ("sh", 7)]),
        Node::dir(&[("conf", 4)]),
        Node::file(70_000),
        Node::file(100),
        Node::file(40 * BLOCK_SIZE as u64),
        Node::dir(&[("lib.so", 5)]),
        Node::symlink("../bin/app"),
        Node::new(NodeKind::CharDevice),
        Node::new(NodeKind::Fifo),
    ];
    nodes[8].attr.rdev = 0x103;
    nodes[3].attr.nlink = 2;
    nodes[3].attr.perm = 0o4755;
    nodes[0].names.push((b"n\xFFt utf-8".to_vec(), 10));
    nodes.push(Node::file(0));
    nodes[3].xattrs = vec![
        (b"user.note".to_vec(), b"kept".to_vec()),
        (b"security.capability".to_vec(), vec![1, 0, 0, 2, 255]),
    ];
    for (node, secs) in nodes.iter_mut().zip(1_000_000..) {
        node.attr.atime = time(secs, 1);
        node.attr.mtime = time(secs, 999_999_999);
        node.attr.ctime = time(secs + 5, 123_456_789);
        node.attr.uid = 1000;
    }
    nodes[4].attr.mtime = time(-5, 7);
    nodes
}

impl Sample {
    pub fn new() -> Self {
        Self::with_nodes(&nodes())
    }

    pub fn with_nodes(nodes: &[Node]) -> Self {
        let tree = blocks::testing::tree(nodes).unwrap();
        let block = |seed| noise(seed, BLOCK_SIZE);
        let zeros = vec![0; 20 * BLOCK_SIZE];
        let text = b"many words, again and again. ".repeat(1000);
        let lib = blocks_of(&[
            &text[..6 * BLOCK_SIZE], // all different, as 29 does not divide 4096
            &block(1),
            &block(2),
            &zeros,
            &block(1), // blocks that were there before, as a run and one by one
            &block(2),
            &block(9),
            &block(1),
            &block(3),
            &noise(4, 7 * BLOCK_SIZE),
        ]);
        let content = BTreeMap::from([
            (APP, noise(5, 70_000)),
            (CONF, b"key = value\n".repeat(9)[..100].to_vec()),
            (LIB, lib),
            (FileId(10), Vec::new()),
        ]);
        for (file, bytes) in &content {
            assert_eq!(bytes.len() as u64, tree.inode(*file).unwrap().attr.size);
        }
        Self {
            tree,
            content,
            plan: plan(),
            info: info(),
        }
    }

    /// Returns another source: the application differs, the library does not.
    pub fn other(number: u64) -> Self {
        let mut sample = Self::new();
        sample.content.insert(APP, noise(1000 + number, 70_000));
        sample.info.label = format!("dir:/srv/other-{number}");
        sample.info.id = SourceId::of_label(sample.info.label.as_bytes());
        sample
    }

    pub fn image(&self) -> Image {
        Image::from_bytes(self.bytes(Variant::Mapped)).unwrap()
    }

    pub fn source(&self) -> MemSource {
        let mut source = MemSource::default();
        for (file, bytes) in &self.content {
            source.insert(self.tree.key(*file).unwrap(), bytes.clone());
        }
        source
    }

    pub fn write(&self, path: &std::path::Path, variant: Variant) -> WriteReport {
        let source = self.source();
        let request = WriteRequest {
            tree: &self.tree,
            info: &self.info,
            plan: &self.plan,
            blocks: &source,
            variant,
        };
        bootimg::write_image(path, &request, &mut unwatched).unwrap()
    }

    /// Returns the bytes of an image of it.
    pub fn bytes(&self, variant: Variant) -> Vec<u8> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sample.bimg");
        self.write(&path, variant);
        std::fs::read(path).unwrap()
    }

    /// Returns what a block must be.
    pub fn block(&self, file: FileId, block: BlockIndex) -> [u8; BLOCK_SIZE] {
        let bytes = &self.content[&file];
        let start = usize::try_from(block.byte_offset()).unwrap();
        let end = (start + BLOCK_SIZE).min(bytes.len());
        let mut out = [0; BLOCK_SIZE];
        out[..end - start].copy_from_slice(&bytes[start..end]);
        out
    }

    /// Reads every block of every file through `image`: what is a hit must be right, and the
    /// number of hits is returned.
    pub fn read_all(&self, image: Arc<Image>) -> u64 {
        self.read_through(&image.attach(&self.tree))
    }

    pub fn read_through(&self, attached: &Attached) -> u64 {
        let mut hits = 0;
        for (file, bytes) in &self.content {
            let key = self.tree.key(*file).unwrap();
            let all = BlockRange::covering(0, bytes.len() as u64);
            for block in all.iter() {
                let mut out = [0xAA; BLOCK_SIZE];
                let range = BlockRange::with_len(block, 1);
                if attached.get(&key, range, &mut out) == (Lookup::Hit { blocks: 1 }) {
                    assert!(
                        out == self.block(*file, block),
                        "wrong bytes: {file:?} {block:?}"
                    );
                    hits += 1;
                }
            }
        }
        hits
    }
}

pub fn extent(file: FileId, start: u64, len: u64, bin: u32, seen: u16) -> Extent {
    Extent {
        file,
        range: BlockRange::with_len(BlockIndex(start), len),
        bin,
        seen,
    }
}

fn plan() -> ReplayPlan {
    ReplayPlan {
        runs: 3,
        bin_ms: 100,
        extents: vec![
            extent(APP, 0, 1, 0, 3),
            extent(LIB, 4, 36, 0, 3),
            extent(CONF, 0, 1, 1, 2),
            extent(APP, 5, 20, 2, 3), // ends past the end of the file
            extent(LIB, 0, 2, 7, 1),
        ],
        touches: vec![
            Touch::Lookup {
                dir: FileId(0),
                name: b"bin".to_vec(),
            },
            Touch::Lookup {
                dir: FileId(1),
                name: b"no\xFFthere".to_vec(),
            },
            Touch::ReadLink { link: FileId(7) },
            Touch::List { dir: FileId(2) },
        ],
    }
}

fn info() -> SourceInfo {
    SourceInfo {
        label: "dir:/srv/sample".to_owned(),
        id: SourceId::of_label(b"dir:/srv/sample"),
        recorded_at: 1_700_000_000,
        command: vec!["app".to_owned(), "--fast".to_owned()],
        tool: "bootimg 0.1.0".to_owned(),
        ready_ms: vec![480, 470, 475],
        similarity_ppm: Some(998_000),
        source_bytes: 233_940,
    }
}

/// Blocks of the sample's plan that are in its files: 1 + 36 + 1 + 13 + 2.
pub const PLANNED: u64 = 53;
