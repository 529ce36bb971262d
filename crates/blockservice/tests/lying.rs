//! A service that sends something else than what was requested, beside another source: once it was found out, it is asked
//! no more, but for one read after each pause.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod rig;

use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use blocks::testing::{MemSource, Node, tree};
use blocks::{BlockSource as _, FileId, Tree};
use blockservice::client::{Client, ClientConfig, NicSource, Origin, Patience};
use blockservice::identity::Access;
use blockservice::service::Limits;
use chunks::index::{CHUNK_BYTES, build};
use chunks::testing::MemStore;
use chunks::{ChunkId, ChunkStore, Class, PutError, PutOutcome, StoreStats, Stored};
use link_emulator::{Link, Shape};
use rig::{Rig, connected, content};
use serving::transport::Address;

const LONG: Duration = Duration::from_secs(60);
const ROUND_TRIP: Duration = Duration::from_millis(20);
/// Chunks of the file.
const CHUNKS: u64 = 192;

/// A store whose chunks are wrong as long as it lies.
struct LyingStore {
    inner: Arc<MemStore>,
    lies: AtomicBool,
}

impl ChunkStore for LyingStore {
    fn get(&self, id: &ChunkId, class: Class) -> Option<Stored> {
        let mut stored = self.inner.get(id, class)?;
        if self.lies.load(SeqCst) {
            let middle = stored.bytes.len() / 2;
            stored.bytes[middle] ^= 0xff;
        }
        Some(stored)
    }

    fn contains(&self, id: &ChunkId) -> bool {
        self.inner.contains(id)
    }

    fn put(&self, id: &ChunkId, raw: &[u8], class: Class) -> Result<PutOutcome, PutError> {
        self.inner.put(id, raw, class)
    }

    fn pin(&self, ids: &[ChunkId]) {
        self.inner.pin(ids);
    }

    fn unpin(&self, ids: &[ChunkId]) {
        self.inner.unpin(ids);
    }

    fn stats(&self) -> StoreStats {
        self.inner.stats()
    }
}

/// The directory that the source was made of.
struct Disk(Vec<u8>);

impl Origin for Disk {
    fn read(&self, _: &[u8], offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let start = usize::try_from(offset).unwrap();
        Ok(self.0[start..start + len].to_vec())
    }
}

/// A mount of a file at a service that lies.
struct Mounted {
    source: NicSource,
    tree: Arc<Tree>,
    content: Vec<u8>,
    store: Arc<LyingStore>,
    _client: Client,
    _link: Link,
    _rig: Rig,
}

impl Mounted {
    /// Mounts it with the origin beside; `doubt` is the first pause.
    fn new(doubt: Duration) -> Self {
        let mut rig = Rig::new();
        let content = content(7, CHUNKS * CHUNK_BYTES);
        let nodes = [Node::dir(&[("large", 1)]), Node::file(content.len() as u64)];
        let tree = Arc::new(tree(&nodes).unwrap());
        let mut files = MemSource::default();
        files.insert(tree.key(FileId(1)).unwrap(), content.clone());
        let go_on = &mut |_| ControlFlow::Continue(());
        let built = build(b"root", &tree, &files, &*rig.store, go_on).unwrap();
        rig.catalog.add(b"root", &built.index).unwrap();
        let store = Arc::new(LyingStore {
            inner: Arc::clone(&rig.store),
            lies: AtomicBool::new(true),
        });
        let service = Arc::clone(&store) as _;
        let port = rig.start_at_port_on(service, Access::open(), Limits::default());
        // What is near is not read ahead.
        let mut link = Link::new(Shape::new(ROUND_TRIP, 200));
        let any = "127.0.0.1:0".parse().unwrap();
        let address = link.carry(&any, port.to_string().parse().unwrap()).unwrap();
        let client = Client::start(ClientConfig {
            address: Address::Tcp(address.to_string()),
            others: Vec::new(),
            name: b"vm".to_vec(),
            key: None,
            tls: None,
            patience: Patience {
                give_up: LONG,
                hedge: LONG,
                transfer: LONG,
                doubt,
                ..Patience::default()
            },
        });
        let client = client.unwrap();
        connected(&client);
        let remote = client.open(b"root", None, |_| None).unwrap();
        let origin = Box::new(Disk(content.clone()));
        Self {
            source: NicSource::new(remote, None, Some(origin), LONG),
            tree,
            content,
            store,
            _client: client,
            _link: link,
            _rig: rig,
        }
    }

    /// Reads the beginning of a chunk, and compares it.
    fn read(&self, chunk: u64) {
        let key = self.tree.key(FileId(1)).unwrap();
        let mut buf = [0; 4096];
        let offset = chunk * CHUNK_BYTES;
        let read = self.source.read_at(&key, offset, &mut buf).unwrap();
        let start = usize::try_from(offset).unwrap();
        assert!(read == 4096 && buf[..] == self.content[start..start + 4096]);
    }

    /// Reads chunks from this one on until the service was found out, and returns the next one.
    fn until_found_out(&self, from: u64) -> u64 {
        let lies = || self.source.remote().counts().lies;
        let found = (from..CHUNKS).find(|chunk| {
            self.read(*chunk);
            lies() >= 4
        });
        found.unwrap() + 1
    }

    /// Returns how many READs were sent to the service, and how many chunks were wrong.
    fn asked(&self) -> (u64, u64) {
        let counts = self.source.remote().counts();
        (counts.requests, counts.lies)
    }
}

/// What is read on is requested ahead, and more of it the farther the service seems to be.
#[test]
fn a_service_that_was_found_to_lie_is_asked_for_nothing_while_the_origin_answers() {
    let mounted = Mounted::new(LONG * 60);
    let next = mounted.until_found_out(0);
    let before = mounted.asked();
    let origin = mounted.source.counts().origin;
    (next..CHUNKS).for_each(|chunk| mounted.read(chunk));
    assert_eq!(mounted.asked(), before);
    assert_eq!(mounted.source.counts().origin - origin, CHUNKS - next);
}

/// After a pause, one reader asks it; when that was right, all do.
#[test]
fn a_service_that_lies_no_more_is_asked_again_after_a_pause() {
    let mounted = Mounted::new(Duration::ZERO);
    let next = mounted.until_found_out(0);
    let before = mounted.source.counts().origin;
    mounted.store.lies.store(false, SeqCst);
    (next..CHUNKS).for_each(|chunk| mounted.read(chunk));
    let counts = mounted.source.counts();
    assert!(counts.service > 0, "it is never asked");
    // What was on its way is wrong yet.
    assert!(counts.origin - before < CHUNKS / 2, "{counts:?}");
}
