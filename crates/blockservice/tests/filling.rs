//! Filling a local store: few long requests, behind all that somebody waits for.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod rig;

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::scope;
use std::time::Duration;

use blocks::{BlockSource as _, FileId};
use blockservice::client::{Filled, NicSource};
use blockservice::identity::Access;
use blockservice::service::Limits;
use chunks::ChunkStore as _;
use chunks::index::{CHUNK_BYTES, Index};
use chunks::testing::MemStore;
use rig::line::Line;
use rig::streams::{CHUNKS, Large};
use rig::{Rig, connected, until};

const LONG: Duration = Duration::from_secs(60);
/// The kind of a READ.
const READ: u8 = 7;
/// Those of the large file, and the small one.
const ALL: u64 = CHUNKS as u64 + 1;

struct Machine {
    rig: Rig,
    large: Large,
    line: Line,
    local: Arc<MemStore>,
}

impl Machine {
    fn start(limits: Limits) -> Self {
        let mut rig = Rig::new();
        let large = Large::add(&rig);
        rig.start(Access::open(), limits);
        Self {
            line: Line::start(&rig),
            rig,
            large,
            local: Arc::default(),
        }
    }

    /// Has something done with a client's source, which has a local store.
    fn with(&self, work: impl FnOnce(&NicSource)) {
        let client = self.line.client(|_| {});
        let index = Arc::new(Index::decode(self.large.index.bytes()).unwrap());
        let remote = client.remote(b"one", index);
        connected(&client);
        let local = Arc::clone(&self.local) as _;
        work(&NicSource::new(remote, Some(local), None, LONG));
    }
}

#[test]
fn a_fill_takes_few_requests_and_each_chunk_once() {
    let machine = Machine::start(Limits::default());
    machine.with(|source| {
        // Three eighths of what may be on its way at a time.
        let filled = source.fill(&AtomicBool::new(false));
        let all = Filled {
            present: 2,
            fetched: ALL,
            missing: 0,
        };
        assert_eq!(filled, all);
        let counts = source.remote().counts();
        assert_eq!(counts.duplicate_bytes, 0, "{counts:?}");
    });
    assert_eq!(machine.local.stats().chunks, ALL);
    // Four, and more where the line seems slow: how much is asked for at once is measured.
    let requests = machine.line.sent(READ);
    assert!(requests as u64 <= ALL / 5, "{requests} for {ALL}");
}

#[test]
fn whoever_reads_does_not_wait_for_a_fill() {
    let machine = Machine::start(Limits {
        // All of it takes more than two seconds.
        send_rate_of_one: NonZeroU64::new(2_500_000),
        ..Limits::default()
    });
    machine.with(|source| {
        let stop = AtomicBool::new(false);
        scope(|scope| {
            let filling = scope.spawn(|| source.fill(&stop));
            until("the fill has begun", || machine.rig.stats().chunks > 0);
            let key = machine.large.tree.key(FileId(1)).unwrap();
            let mut out = vec![0; usize::try_from(CHUNK_BYTES).unwrap()];
            let last = u64::from(CHUNKS) - 1;
            source.read_at(&key, last * CHUNK_BYTES, &mut out).unwrap();
            assert!(out == rig::content(last + 1, CHUNK_BYTES));
            // What was in the queue of the connection, and no more.
            let sent = machine.rig.stats().chunks;
            assert!(sent < ALL / 2, "{sent} of {ALL} were sent before it");
            assert_eq!(filling.join().unwrap().missing, 0);
        });
    });
    assert_eq!(machine.local.stats().chunks, ALL);
}

#[test]
fn a_fill_goes_on_after_a_lost_connection() {
    let machine = Machine::start(Limits {
        send_rate_of_one: NonZeroU64::new(2_500_000),
        ..Limits::default()
    });
    machine.with(|source| {
        let stop = AtomicBool::new(false);
        scope(|scope| {
            let filling = scope.spawn(|| source.fill(&stop));
            until("some of it is here", || machine.rig.stats().chunks > 3);
            machine.line.cut();
            until("the client has noticed", || !source.remote().is_there());
            machine.line.mend();
            let filled = filling.join().unwrap();
            assert_eq!((filled.fetched, filled.missing), (ALL, 0), "{filled:?}");
        });
    });
}
