//! What a reader without a plan costs on a far line, in requests and bytes.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod rig;

use std::net::{SocketAddr, TcpStream};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use blocks::testing::{MemSource, Node, tree};
use blocks::{BlockSource as _, FileId, Tree};
use blockservice::client::{Client, NicSource};
use blockservice::identity::Access;
use blockservice::service::Limits;
use blockservice::wire::{Message, ReadForm};
use chunks::Codec;
use chunks::index::{CHUNK_BYTES, build};
use link_emulator::{Link, Shape};
use rig::raw::Raw;
use rig::{Rig, content, patient_client, until};

const LONG: Duration = Duration::from_secs(60);
/// Names of files that may be executed begin with this.
const EXECUTABLE: &str = "run";
const ROUND_TRIP: Duration = Duration::from_millis(20);

/// A service at the end of a line, and a source of it with files of these sizes in one directory.
struct Far {
    source: NicSource,
    tree: Arc<Tree>,
    contents: Vec<Vec<u8>>,
    _client: Client,
    _link: Link,
    rig: Rig,
}

fn far(sizes: &[u64]) -> Far {
    let names: Vec<_> = (1..=sizes.len()).map(|n| format!("f{n:04}")).collect();
    let contents = (1..).zip(sizes).map(|(n, size)| content(n, *size));
    let files: Vec<_> = names.iter().map(String::as_str).zip(contents).collect();
    far_of(&files)
}

fn far_of(all: &[(&str, Vec<u8>)]) -> Far {
    let line = Shape::new(ROUND_TRIP, 1000);
    far_over(line, Limits::default(), all, |_| {})
}

/// As [`far_of`], over any line, once `begun` has looked at the service.
fn far_over(
    line: Shape,
    limits: Limits,
    all: &[(&str, Vec<u8>)],
    begun: impl FnOnce(SocketAddr),
) -> Far {
    let mut rig = Rig::new();
    let names: Vec<_> = all.iter().map(|(name, _)| *name).zip(1_u32..).collect();
    let mut nodes = vec![Node::dir(&names)];
    nodes.extend(all.iter().map(|(name, content)| {
        let mut node = Node::file(content.len() as u64);
        if name.starts_with(EXECUTABLE) {
            node.attr.perm = 0o755;
        }
        node
    }));
    let tree = Arc::new(tree(&nodes).unwrap());
    let mut files = MemSource::default();
    let contents: Vec<_> = all.iter().map(|(_, content)| content.clone()).collect();
    for (n, content) in (1_u32..).zip(&contents) {
        files.insert(tree.key(FileId(n)).unwrap(), content.clone());
    }
    let go_on = &mut |_| ControlFlow::Continue(());
    let built = build(b"far", &tree, &files, &*rig.store, go_on).unwrap();
    rig.catalog.add(b"far", &built.index).unwrap();
    let port = rig.start_at_port(Access::open(), limits);
    begun(port);
    let mut link = Link::new(line);
    let any = "127.0.0.1:0".parse().unwrap();
    let address = link.carry(&any, port.to_string().parse().unwrap()).unwrap();
    let client = patient_client(address.to_string());
    let remote = client.open(b"far", None, |_| None).unwrap();
    Far {
        source: NicSource::new(remote, None, None, LONG),
        tree,
        contents,
        _client: client,
        _link: link,
        rig,
    }
}

impl Far {
    /// Reads so many bytes of a file, and compares them.
    fn read(&self, file: u32, offset: u64, len: usize) {
        let key = self.tree.key(FileId(file)).unwrap();
        let mut buf = vec![0; len];
        let read = self.source.read_at(&key, offset, &mut buf).unwrap();
        let all = &self.contents[file as usize - 1];
        let start = usize::try_from(offset).unwrap();
        assert!(read > 0 && buf[..read] == all[start..start + read]);
    }

    /// Waits until something has come that nobody has read.
    fn until_ahead(&self) {
        let end = std::time::Instant::now() + LONG;
        while self.source.remote().counts().wire_bytes < CHUNK_BYTES {
            assert!(
                std::time::Instant::now() < end,
                "nothing was requested ahead"
            );
            std::thread::sleep(ROUND_TRIP); // nothing tells
        }
    }

    /// Returns how many chunks somebody had to wait a round trip for.
    fn waited_for(&self) -> u64 {
        self.rig
            .metric(r#"answers_total{priority="demand",answer="sent"}"#)
    }
}

#[test]
fn small_files_of_a_directory_come_together() {
    const FILES: u32 = 200;
    let far = far(&[5000; FILES as usize]);
    for file in 1..=FILES {
        far.read(file, 0, 5000);
    }
    let counts = far.source.remote().counts();
    assert_eq!(counts.chunks, u64::from(FILES), "each comes once");
    assert_eq!(counts.duplicate_bytes, 0);
    assert!(far.waited_for() < u64::from(FILES) / 4, "{counts:?}");
}

/// A service cannot tell: what is requested one at a time fits into the buffers of its socket.
#[test]
fn a_near_line_that_is_slow_brings_chunks_as_stored() {
    const CHUNKS: u32 = 64;
    let len = u64::from(CHUNKS) * CHUNK_BYTES;
    let large = (0..len).map(|at| u8::try_from(1 + at / CHUNK_BYTES).unwrap());
    let all = [("large", large.collect())];
    let limits = Limits {
        fast_round_trip: Duration::MAX,
        ..Limits::default()
    };
    let far = far_over(Shape::new(Duration::ZERO, 25), limits, &all, |port| {
        let (mut raw, _) = Raw::hello(TcpStream::connect(port).unwrap(), "vm", (1, 2));
        raw.send(0, Message::Prove { proof: [0; 32] }, Vec::new())
            .unwrap();
        let welcome = raw.hear().unwrap().message;
        assert!(matches!(welcome, Message::Welcome { .. }), "{welcome:?}");
        let handle = raw.open("far");
        for chunk in 0..CHUNKS {
            until("the service has it decompressed", || {
                raw.codec_of(handle, chunk, ReadForm::Any) == Codec::Raw
            });
        }
    });
    for chunk in 0..u64::from(CHUNKS) {
        far.read(1, chunk * CHUNK_BYTES, 4096);
    }
    let counts = far.source.remote().counts();
    // The first ones come decompressed, until the rate was measured.
    assert!(counts.wire_bytes < 16 * CHUNK_BYTES, "{counts:?}");
}

#[test]
fn a_file_that_is_read_on_is_requested_ahead() {
    let chunks = 192;
    let far = far(&[chunks * CHUNK_BYTES]);
    for chunk in 0..chunks {
        far.read(1, chunk * CHUNK_BYTES, 4096);
    }
    let counts = far.source.remote().counts();
    assert_eq!((counts.chunks, counts.duplicate_bytes), (chunks, 0));
    assert!(
        far.waited_for() < chunks / 2,
        "{} {counts:?}",
        far.waited_for()
    );
}

#[test]
fn a_chunk_of_a_large_file_that_is_read_at_random_is_sent_once() {
    let chunks = 200;
    let far = far(&[chunks * CHUNK_BYTES]);
    // Steps that never repeat.
    let read = (1..30).map(|n| n * n / 2 * 7 % chunks);
    let read: std::collections::BTreeSet<_> = read.collect();
    let mut scattered: Vec<_> = read.iter().copied().collect();
    scattered.sort_by_key(|chunk| chunk.wrapping_mul(0x9E37_79B9) % 1009);
    for chunk in &scattered {
        far.read(1, chunk * CHUNK_BYTES, 4096);
    }
    let counts = far.source.remote().counts();
    assert_eq!(counts.duplicate_bytes, 0, "{counts:?}");
    // How much is read ahead depends on the measured rate, which is next to nothing on a busy machine: fetch's tests of the
    // prediction count that. What was read is verified, and nothing else.
    assert!(far.waited_for() <= read.len() as u64, "{counts:?}");
    assert_eq!(counts.chunks, read.len() as u64, "{counts:?}");
}

/// A program: the name of a library that it is linked with, in an ELF file of so many bytes.
fn program(library: &str, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    testkit::elf::write_program(&mut bytes, len - 4096, library, None);
    bytes
}

#[test]
fn what_a_program_is_linked_with_is_requested_as_soon_as_that_is_known() {
    let large = 40 * usize::try_from(CHUNK_BYTES).unwrap();
    let far = far_of(&[
        ("program", program("first.so", large)),
        ("between", vec![7; large]),
        ("first.so", program("second.so", large)),
        ("other", vec![8; large]),
        ("second.so", content(9, large as u64)),
    ]);
    far.read(1, 0, 4096);
    far.until_ahead();
    let before = far.waited_for();
    far.read(3, 0, 4096);
    far.read(5, 0, 4096);
    assert_eq!(far.waited_for(), before, "both were on their way");
}

#[test]
fn the_end_of_a_program_is_requested_with_its_beginning() {
    let chunks = 200;
    let large = content(1, chunks * CHUNK_BYTES);
    // Nothing in them tells where the loader looks next.
    for (name, waits) in [("run", 1), ("data", 2)] {
        let far = far_of(&[(name, large.clone())]);
        far.read(1, 0, 4096);
        far.until_ahead();
        far.read(1, (chunks - 1) * CHUNK_BYTES, 4096);
        assert_eq!(far.waited_for(), waits, "{name}");
    }
}
