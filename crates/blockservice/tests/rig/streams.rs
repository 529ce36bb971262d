//! Sources with boot images, and what a START is answered with.

#![allow(
    clippy::allow_attributes,
    reason = "what is unused differs from test to test"
)]
#![allow(dead_code, reason = "each test binary uses its own part of this")]

use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use blocks::testing::{MemSource, Node, tree};
use blocks::{
    BlockIndex, BlockRange, ContentId, Extent, FileId, ReplayPlan, SourceId, Timestamp, Tree,
};
use blockservice::wire::{Ask, Frame, Message, Priority, ReadForm, Status};
use bootimg::{SourceInfo, Variant, WriteRequest, unwatched, write_image};
use chunks::index::{CHUNK_BYTES, Index, build};
use chunks::{Codec, Stored};

use super::Rig;
use super::raw::Raw;

/// No index.
pub(crate) const NONE: ContentId = ContentId([0; 32]);
/// The request of [`settle`](Raw::settle).
const SETTLING: u64 = u64::MAX;
/// Chunks of the large file of a [`Large`] source: what nobody reads of them fills every queue.
pub(crate) const CHUNKS: u32 = 40;

/// A source with one large file, one small one and one of zeros, named `one`.
pub(crate) struct Large {
    pub(crate) tree: Arc<Tree>,
    pub(crate) index: Index,
    source: MemSource,
}

/// A tree like that of a [`Large`] source, whose small file was changed at some time.
fn tree_of(changed_at: i64) -> Arc<Tree> {
    let mut small = Node::file(100);
    small.attr.mtime = Timestamp {
        secs: changed_at,
        nanos: 1,
    };
    let nodes = [
        Node::dir(&[("large", 1), ("small", 2), ("zeros", 3)]),
        Node::file(u64::from(CHUNKS) * CHUNK_BYTES),
        small,
        Node::file(2 * CHUNK_BYTES),
    ];
    Arc::new(tree(&nodes).unwrap())
}

fn content_of(tree: &Tree, chunk: impl Fn(u64) -> Vec<u8>) -> MemSource {
    let mut source = MemSource::default();
    let large = (0..u64::from(CHUNKS)).flat_map(chunk).collect();
    let zeros = usize::try_from(2 * CHUNK_BYTES).unwrap();
    for (file, bytes) in [(1, large), (2, vec![9; 100]), (3, vec![0; zeros])] {
        source.insert(tree.key(FileId(file)).unwrap(), bytes);
    }
    source
}

impl Large {
    /// Adds a source whose chunks do not compress.
    pub(crate) fn add(rig: &Rig) -> Self {
        Self::add_of(rig, |n| super::content(n + 1, CHUNK_BYTES))
    }

    /// Adds a source whose chunks take next to nothing when they are compressed.
    pub(crate) fn add_compressible(rig: &Rig) -> Self {
        let len = usize::try_from(CHUNK_BYTES).unwrap();
        Self::add_of(rig, |n| vec![u8::try_from(n + 1).unwrap(); len])
    }

    fn add_of(rig: &Rig, chunk: impl Fn(u64) -> Vec<u8>) -> Self {
        let tree = tree_of(1);
        let source = content_of(&tree, chunk);
        let go_on = &mut |_| ControlFlow::Continue(());
        let built = build(b"one", &tree, &source, &*rig.store, go_on).unwrap();
        let index = built.index;
        rig.catalog.add(b"one", &index).unwrap();
        Self {
            tree,
            index,
            source,
        }
    }

    /// Gives the service a boot image of it, and returns its plan.
    pub(crate) fn give_boot(&self, rig: &Rig, extents: &[(u32, u64, u64)]) -> ReplayPlan {
        let plan = plan(extents);
        give(rig, &self.index, &image(&self.tree, &self.source, &plan));
        plan
    }

    /// The same, of a time when the small file was another one.
    pub(crate) fn give_older_boot(&self, rig: &Rig, extents: &[(u32, u64, u64)]) {
        let tree = tree_of(2);
        let source = content_of(&tree, |n| super::content(n + 1, CHUNK_BYTES));
        give(rig, &self.index, &image(&tree, &source, &plan(extents)));
    }

    /// Gives it one that reads a block of each chunk, the last first.
    pub(crate) fn give_whole_boot(&self, rig: &Rig) -> ReplayPlan {
        let blocks = (0..u64::from(CHUNKS)).rev().map(|n| (1, 32 * n, 1));
        self.give_boot(rig, &blocks.collect::<Vec<_>>())
    }
}

fn plan(extents: &[(u32, u64, u64)]) -> ReplayPlan {
    let extent = |(file, first, blocks): &(u32, u64, u64)| Extent {
        file: FileId(*file),
        range: BlockRange::with_len(BlockIndex(*first), *blocks),
        bin: 0,
        seen: 1,
    };
    ReplayPlan {
        runs: 1,
        bin_ms: 1,
        extents: extents.iter().map(extent).collect(),
        touches: Vec::new(),
    }
}

fn image(tree: &Tree, source: &MemSource, plan: &ReplayPlan) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("boot.bimg");
    let info = SourceInfo {
        label: "one".to_owned(),
        id: SourceId::of_label(b"one"),
        recorded_at: 0,
        command: Vec::new(),
        tool: "test".to_owned(),
        ready_ms: vec![1],
        similarity_ppm: None,
        source_bytes: 1,
    };
    let request = WriteRequest {
        tree,
        info: &info,
        plan,
        blocks: source,
        variant: Variant::Packed,
    };
    write_image(&path, &request, &mut unwatched).unwrap();
    std::fs::read(path).unwrap()
}

/// Has the catalog keep a boot image as the newest of an index.
pub(crate) fn give(rig: &Rig, index: &Index, bytes: &[u8]) {
    let id = ContentId::of(bytes);
    let kept = rig
        .catalog
        .keep_boot(&index.id(), &id, &[bytes.to_vec()], 1);
    kept.unwrap();
}

/// Returns a boot image whose tree takes 20 MiB, and next to nothing when it is compressed.
pub(crate) fn image_of_large_tree() -> Vec<u8> {
    let target = "x".repeat(4000);
    let links = 1..5_500;
    let names: Vec<_> = links
        .clone()
        .map(|n: u32| (format!("l{n:05}"), n))
        .collect();
    let names: Vec<_> = names.iter().map(|(name, n)| (name.as_str(), *n)).collect();
    let mut nodes = vec![Node::dir(&names)];
    nodes.extend(links.map(|_| Node::symlink(&target)));
    let tree = tree(&nodes).unwrap();
    assert!(tree.encode().len() > 20 << 20);
    image(&tree, &MemSource::default(), &plan(&[]))
}

/// Makes the seal of a frame right, as a forger would who knows the public key.
pub(crate) fn reseal(frame: &mut [u8], letter: u8, number: u64) {
    let key = blake3::derive_key("nicfetch 2026 frames", &[letter]);
    let mut hasher = blake3::Hasher::new_keyed(&key);
    hasher.update(&number.to_le_bytes());
    hasher.update(&frame[..24]).update(&frame[32..]);
    frame[24..32].copy_from_slice(&hasher.finalize().as_bytes()[..8]);
}

/// What STARTED says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Started {
    pub(crate) handle: u32,
    pub(crate) codec: Codec,
    pub(crate) id: ContentId,
    pub(crate) raw_len: u64,
    pub(crate) packed_len: u64,
    pub(crate) plan_len: u64,
    pub(crate) plan_chunks: u32,
    pub(crate) links_len: u32,
}

/// Everything that a START was answered with.
#[derive(Debug)]
pub(crate) struct Answers {
    pub(crate) started: Started,
    pub(crate) index: Vec<u8>,
    pub(crate) plan: Vec<u8>,
    pub(crate) links: Vec<u8>,
    pub(crate) chunks: Vec<(u32, Result<Stored, Status>)>,
    /// Chunks that were sent, skipped, and failed.
    pub(crate) end: (u32, u32, u32),
    /// What came meanwhile and answers something else, with the number of chunks before it.
    pub(crate) others: Vec<(usize, Frame)>,
}

impl Answers {
    /// Returns the numbers of the chunks, in order.
    pub(crate) fn order(&self) -> Vec<u32> {
        self.chunks.iter().map(|(number, _)| *number).collect()
    }

    /// Compares each chunk that came with what the index says.
    pub(crate) fn check(&self, index: &Index) {
        for (number, found) in &self.chunks {
            let stored = found.clone().unwrap();
            let id = index.chunk(*number).unwrap();
            assert!(stored.open(&id).is_ok(), "chunk {number}");
        }
        assert_eq!(self.started.plan_len, self.plan.len() as u64);
        assert_eq!(self.started.packed_len, self.index.len() as u64);
    }
}

/// Returns a START of the source `one`.
pub(crate) fn start(ask: Ask, have: ContentId) -> Message {
    let name = b"one".to_vec();
    Message::Start { ask, have, name }
}

/// Returns a READ of one chunk that somebody waits for.
pub(crate) fn read_of(handle: u32, chunk: u32, form: ReadForm) -> Message {
    Message::Read {
        handle,
        priority: Priority::Demand,
        form,
        deadline_ms: 0,
        chunks: vec![chunk],
    }
}

impl Raw<UnixStream> {
    /// Connects and speaks the highest version of these that the service does.
    pub(crate) fn connect_with(rig: &Rig, name: &str, versions: (u16, u16)) -> (Self, u16) {
        let (mut raw, version) = Self::challenged(rig, name, versions);
        raw.send(0, Message::Prove { proof: [0; 32] }, Vec::new())
            .unwrap();
        let welcome = raw.hear().unwrap().message;
        assert!(matches!(welcome, Message::Welcome { .. }), "{welcome:?}");
        (raw, version)
    }

    /// Connects with version 2.
    pub(crate) fn connect_2(rig: &Rig, name: &str) -> Self {
        let (raw, version) = Self::connect_with(rig, name, (1, 2));
        assert_eq!(version, 2);
        raw
    }

    /// Connects, and sends a START in the packet of PROOF.
    pub(crate) fn connect_and_start(rig: &Rig, request: u64, message: Message) -> Self {
        let (mut raw, _) = Self::challenged(rig, "vm", (1, 2));
        let mut packet = raw.sealed(&Frame::new(0, Message::Prove { proof: [0; 32] }));
        packet.extend(raw.sealed(&Frame::new(request, message)));
        raw.stream.write_all(&packet).unwrap();
        let welcome = raw.hear().unwrap().message;
        assert!(matches!(welcome, Message::Welcome { .. }), "{welcome:?}");
        raw
    }

    /// Connects as somebody who has to prove it.
    pub(crate) fn connect_with_key(rig: &Rig, name: &str, key: &[u8; 32]) -> Self {
        let stream = UnixStream::connect(rig.socket()).unwrap();
        let deadline = Some(Duration::from_secs(60));
        stream.set_read_timeout(deadline).unwrap();
        let mut raw = Self::silent(stream);
        raw.prove(name, key);
        raw
    }

    fn challenged(rig: &Rig, name: &str, versions: (u16, u16)) -> (Self, u16) {
        let stream = UnixStream::connect(rig.socket()).unwrap();
        let deadline = Some(Duration::from_secs(60));
        stream.set_read_timeout(deadline).unwrap();
        Self::hello(stream, name, versions)
    }
}

impl<S: Read + Write> Raw<S> {
    /// Reads a chunk, and returns the form in which it came.
    pub(crate) fn codec_of(&mut self, handle: u32, chunk: u32, form: ReadForm) -> Codec {
        let answer = self.ask(read_of(handle, chunk, form), Vec::new()).message;
        let Message::Chunk { status, codec, .. } = answer else {
            panic!("{answer:?}");
        };
        assert_eq!(status, Status::Here);
        Codec::from_number(codec).unwrap()
    }

    /// Proves who it is, as `docs/nicfetch-protocol.md` says.
    fn prove(&mut self, name: &str, key: &[u8; 32]) {
        let hello = Message::Hello {
            versions: (1, 2),
            nonce: [1; 32],
            name: name.as_bytes().to_vec(),
        };
        self.send(0, hello, Vec::new()).unwrap();
        let Message::Challenge { nonce, .. } = self.hear().unwrap().message else {
            panic!("it is not challenged");
        };
        let hash = |what: &str| {
            let mut hasher = blake3::Hasher::new_keyed(key);
            hasher.update(what.as_bytes());
            hasher.update(&[1; 32]).update(&nonce);
            *hasher.update(name.as_bytes()).finalize().as_bytes()
        };
        let proof = hash("nicfetch client");
        self.send(0, Message::Prove { proof }, Vec::new()).unwrap();
        self.rekey(hash("nicfetch seal c"), hash("nicfetch seal s"));
        let welcome = self.hear().unwrap().message;
        assert!(matches!(welcome, Message::Welcome { .. }), "{welcome:?}");
    }

    /// Says HELLO, and returns the version that the service chose.
    pub(crate) fn hello(stream: S, name: &str, versions: (u16, u16)) -> (Self, u16) {
        let mut raw = Self::silent(stream);
        let hello = Message::Hello {
            versions,
            nonce: [1; 32],
            name: name.as_bytes().to_vec(),
        };
        raw.send(0, hello, Vec::new()).unwrap();
        match raw.hear().unwrap().message {
            Message::Challenge { version, .. } => (raw, version),
            other => panic!("{other:?}"),
        }
    }

    /// Hears STARTED, which answers `request`.
    pub(crate) fn hear_started(&mut self, request: u64) -> Started {
        let frame = self.hear_of(request);
        match frame.message {
            Message::Started {
                handle,
                codec,
                id,
                raw_len,
                packed_len,
                plan_len,
                plan_chunks,
                links_len,
            } => Started {
                handle,
                codec: Codec::from_number(codec).unwrap(),
                id,
                raw_len,
                packed_len,
                plan_len,
                plan_chunks,
                links_len,
            },
            other => panic!("{other:?}"),
        }
    }

    /// Hears the next frame but for what [`settle`](Self::settle) left.
    pub(crate) fn hear_of(&mut self, request: u64) -> Frame {
        let mut frame = self.hear().unwrap();
        while frame.request == SETTLING {
            frame = self.hear().unwrap();
        }
        assert_eq!(frame.request, request, "{frame:?}");
        frame
    }

    /// Hears all that answers a START, in the order that the protocol says.
    pub(crate) fn hear_all(&mut self, request: u64) -> Answers {
        let started = self.hear_started(request);
        self.hear_rest(request, started)
    }

    /// Hears what follows STARTED.
    pub(crate) fn hear_rest(&mut self, request: u64, started: Started) -> Answers {
        let mut answers = Answers {
            started,
            index: Vec::new(),
            plan: Vec::new(),
            links: Vec::new(),
            chunks: Vec::new(),
            end: (0, 0, 0),
            others: Vec::new(),
        };
        loop {
            let frame = self.hear().unwrap();
            if frame.request != request {
                answers.others.push((answers.chunks.len(), frame));
                continue;
            }
            match frame.message {
                Message::Index => {
                    assert!(answers.plan.is_empty() && answers.chunks.is_empty());
                    answers.index.extend(frame.data);
                }
                Message::Plan => {
                    assert!(answers.chunks.is_empty(), "a plan behind chunks");
                    answers.plan.extend(frame.data);
                }
                Message::Links => {
                    assert!(answers.chunks.is_empty(), "links behind chunks");
                    answers.links.extend(frame.data);
                }
                Message::Streamed {
                    chunk,
                    status,
                    codec,
                    raw_len,
                } => {
                    let stored = Stored {
                        codec: Codec::from_number(codec).unwrap(),
                        raw_len,
                        bytes: frame.data,
                    };
                    let found = match status {
                        Status::Here => Ok(stored),
                        other => Err(other),
                    };
                    answers.chunks.push((chunk, found));
                }
                Message::StreamEnd {
                    sent,
                    skipped,
                    failed,
                } => {
                    answers.end = (sent, skipped, failed);
                    return answers;
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// Returns when the service has handled all that was sent before. Nothing is read: the service
    /// counts what it refuses.
    pub(crate) fn settle(&mut self, rig: &Rig) {
        let before = rig.stats().refused;
        let name = b"there is none".to_vec();
        self.send(SETTLING, Message::Open { name }, Vec::new())
            .unwrap();
        super::until("it is refused", || rig.stats().refused > before);
    }
}
