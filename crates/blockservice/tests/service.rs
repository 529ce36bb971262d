//! A service and its clients: what is asked for comes, and nothing else does.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod rig;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use blocks::testing::MemSource;
use blocks::{
    BlockCache as _, BlockIndex, BlockRange, BlockSource as _, CachedSource, ContentId, Extent,
    FileId, Lookup, ReplayPlan, prompt,
};
use blockservice::client::{NicCache, NicSource, Origin, Planned};
use blockservice::identity::Access;
use blockservice::service::Limits;
use blockservice::wire::{Message, Priority, ReadForm, Status};
use chunks::index::{CHUNK_BYTES, ZEROS};
use chunks::testing::MemStore;
use chunks::{ChunkId, ChunkStore, Class, Codec, PutError, PutOutcome, StoreStats, Stored};
use rig::raw::Raw;
use rig::{Rig, SIZES, connected, content, sample, until};

const LONG: Duration = Duration::from_secs(60);

/// A store on a disk that hangs until it is told to go on.
#[derive(Debug)]
struct HangingStore {
    inner: Arc<MemStore>,
    goes_on: Mutex<bool>,
    told: Condvar,
}

impl HangingStore {
    fn over(inner: Arc<MemStore>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            goes_on: Mutex::new(false),
            told: Condvar::new(),
        })
    }

    fn go_on(&self) {
        *self.goes_on.lock().unwrap() = true;
        self.told.notify_all();
    }
}

impl ChunkStore for HangingStore {
    fn get(&self, id: &ChunkId, class: Class) -> Option<Stored> {
        let goes_on = self.goes_on.lock().unwrap();
        // A test that failed must end.
        let waited = self
            .told
            .wait_timeout_while(goes_on, LONG, |goes_on| !*goes_on);
        drop(waited.unwrap());
        self.inner.get(id, class)
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

/// Reads all of every file of the sample, in pieces of an odd length, and compares.
fn read_all(sample: &rig::Sample, source: &dyn blocks::BlockSource, seed: u64) {
    for (n, size) in (1_u32..).zip(SIZES) {
        let key = sample.tree.key(FileId(n)).unwrap();
        let expected = content(seed + u64::from(n), size);
        let mut read = Vec::new();
        let mut piece = vec![0; 300_001];
        loop {
            let len = source.read_at(&key, read.len() as u64, &mut piece).unwrap();
            if len == 0 {
                break;
            }
            read.extend_from_slice(&piece[..len]);
        }
        assert!(read == expected, "file {n} of {size} bytes differs");
    }
}

#[test]
fn a_source_that_is_nowhere_else_is_read_whole() {
    let (rig, sample) = Rig::serving(Access::open());
    let client = rig.client("vm", None);
    connected(&client);
    let remote = client
        .open(b"one", Some(sample.index.id()), |_| None)
        .unwrap();
    assert_eq!(remote.index().tree(), &sample.tree);
    let source = NicSource::new(remote, None, None, LONG);
    read_all(&sample, &source, 1);
    let (counts, stats) = (source.remote().counts(), rig.stats());
    assert_eq!(
        (counts.lies, counts.absent, counts.away, counts.late),
        (0, 0, 0, 0)
    );
    // What was hedged was sent twice.
    assert!(
        stats.chunks >= counts.chunks && counts.chunks >= 15,
        "{counts:?} {stats:?}"
    );
}

#[test]
fn what_machines_read_again_comes_out_of_memory_and_is_the_same() {
    let (rig, sample) = Rig::serving(Access::open());
    // Each is another machine, which keeps nothing of what the one before read.
    let read = || {
        let client = rig.client("vm", None);
        connected(&client);
        let remote = client.open(b"one", None, |_| None).unwrap();
        let source = NicSource::new(remote, None, None, LONG);
        read_all(&sample, &source, 1);
        assert_eq!(source.remote().counts().lies, 0);
    };
    until("all of it is in memory", || {
        read();
        rig.hot_bytes() == SIZES.iter().sum::<u64>()
    });
    // They are not asked of the store any more.
    let ids = sample.index.chunks();
    ids.iter().for_each(|id| rig.store.lose(id));
    read();
}

#[test]
fn what_a_plan_names_is_fetched_ahead_once_and_is_the_sources() {
    let (rig, _sample) = Rig::serving(Access::open());
    let client = rig.client("vm", None);
    connected(&client);
    let remote = client.open(b"one", None, |_| None).unwrap();
    let source = Arc::new(NicSource::new(remote, None, None, LONG));
    // Half of each chunk, and then a quarter more of each: the rest is in no plan.
    let extent = |start, blocks| Extent {
        file: FileId(5),
        range: BlockRange::with_len(BlockIndex(start), blocks),
        bin: 0,
        seen: 1,
    };
    let halves = (0..9).rev().map(|chunk| extent(chunk * 32, 16));
    let quarters = (0..9).map(|chunk| extent(chunk * 32 + 20, 8));
    let plan = ReplayPlan {
        runs: 1,
        extents: halves.chain(quarters).collect(),
        ..ReplayPlan::default()
    };
    let key = source.remote().index().tree().key(FileId(5)).unwrap();
    let expected = content(1 + 5, SIZES[4]);
    let planned = Planned::new(Arc::clone(&source), &plan);
    let in_order = planned.in_order();
    for Extent { range, .. } in &plan.extents {
        let bytes = range.bytes();
        let place = usize::try_from(bytes.start).unwrap()..usize::try_from(bytes.end).unwrap();
        let mut out = vec![0; place.len()];
        let blocks = range.len();
        assert_eq!(in_order.get(&key, *range, &mut out), Lookup::Hit { blocks });
        assert!(out == expected[place.clone()], "{range:?} differs");
        out.fill(0);
        assert_eq!(planned.get(&key, *range, &mut out), Lookup::Hit { blocks });
        assert!(out == expected[place], "{range:?} differs");
    }
    assert_eq!(source.remote().counts().chunks, 9, "each came once");
    let mut out = vec![0; 4096 * 16];
    let beside = BlockRange::with_len(BlockIndex(16), 16);
    let miss = Lookup::Miss { blocks: 4 };
    assert_eq!(planned.get(&key, beside, &mut out), miss);
}

#[test]
fn several_readers_of_a_chunk_are_one_request() {
    let (rig, sample) = Rig::serving(Access::open());
    // Never hedged, so that what is sent can be counted.
    let client = rig.client_with("vm", None, |patience| {
        patience.hedge = LONG;
        patience.give_up = LONG;
    });
    connected(&client);
    let remote = client.open(b"one", None, |_| None).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                let found = remote.fetch(0..15, Priority::Demand, LONG);
                for (number, chunk) in (0..).zip(found) {
                    let id = sample.index.chunk(number).unwrap();
                    assert_eq!(ContentId::of(&chunk.unwrap()), id);
                }
            });
        }
    });
    assert_eq!(rig.stats().chunks, 15);
}

#[test]
fn beside_a_local_source_the_service_answers_and_the_disk_need_not() {
    let (rig, sample) = Rig::serving(Access::open());
    let client = rig.client("vm", None);
    connected(&client);
    let remote = client.open(b"one", None, |_| None).unwrap();
    let cache = NicCache::new(remote, &sample.tree);
    assert_eq!(cache.files(), SIZES.len());
    // A source with nothing in it: what it is asked for fails.
    let source = CachedSource::new(cache, MemSource::default());
    read_all(&sample, &source, 1);
    assert_eq!(source.counts().fallthrough_bytes, 0);
    // Another version of a file is another file.
    let mut key = sample.tree.key(FileId(4)).unwrap();
    key.version.mtime.secs += 1;
    let mut out = vec![0; 4096];
    let range = BlockRange::covering(0, 4096);
    assert_eq!(
        source.cache().get(&key, range, &mut out),
        Lookup::Miss { blocks: 1 }
    );
}

#[test]
fn lies_are_found_and_read_elsewhere() {
    let (rig, sample) = Rig::serving(Access::open());
    // Every chunk is another one of the right length; one is no chunk at all.
    for (number, id) in (0_u32..).zip(sample.index.chunks()) {
        let len = sample.index.place(number).unwrap().len;
        let raw = content(77 + u64::from(number), u64::from(len));
        let stored = match number {
            3 => Stored {
                codec: Codec::Zstd,
                raw_len: len,
                bytes: vec![1, 2, 3],
            },
            _ => Stored {
                codec: Codec::Raw,
                raw_len: len,
                bytes: raw,
            },
        };
        rig.store.forge(*id, stored);
    }
    let client = rig.client("vm", None);
    connected(&client);
    // Each of them is found by who has nobody else to ask.
    let remote = client.open(b"one", None, |_| None).unwrap();
    for number in 0..u32::try_from(sample.index.chunks().len()).unwrap() {
        let is_zeros = sample.index.chunk(number) == Some(ZEROS);
        let found = remote.fetch(number..number + 1, Priority::Demand, LONG);
        assert_eq!(found[0].is_some(), is_zeros, "chunk {number}");
    }
    let counts = remote.counts();
    assert!(counts.lies >= 15, "{counts:?}");
    assert_eq!(counts.chunks, 0, "{counts:?}");
    // Who has does not ask any more after a few.
    let remote = client.open(b"one", None, |_| None).unwrap();
    let source = CachedSource::new(NicCache::new(remote, &sample.tree), sample.source);
    let wanted = rig::sample("one", 1, &MemStore::default());
    read_all(&wanted, &source, 1);
    assert_eq!(source.counts().hit_bytes, 0);
    let counts = source.cache().remote().counts();
    assert!((4..12).contains(&counts.lies), "{counts:?}");
    assert_eq!(counts.chunks, 0, "{counts:?}");
}

#[test]
fn what_the_service_has_lost_comes_from_the_origin_and_the_origin_is_verified() {
    struct Files {
        right: bool,
    }
    impl Origin for Files {
        fn read(&self, path: &[u8], offset: u64, len: usize) -> std::io::Result<Vec<u8>> {
            let n = u64::from(path[1] - b'0');
            let seed = if self.right { 1 } else { 2 };
            let all = content(seed + n, SIZES[usize::try_from(n).unwrap() - 1]);
            let from = usize::try_from(offset).unwrap();
            Ok(all[from..(from + len).min(all.len())].to_vec())
        }
    }
    let (rig, sample) = Rig::serving(Access::open());
    for id in sample.index.chunks() {
        rig.store.lose(id);
    }
    let client = rig.client("vm", None);
    connected(&client);
    let remote = client.open(b"one", None, |_| None).unwrap();
    let origin = Box::new(Files { right: true });
    let source = NicSource::new(remote.clone(), None, Some(origin), LONG);
    read_all(&sample, &source, 1);
    assert!(source.counts().origin >= 15, "{:?}", source.counts());
    // Another tree is no origin.
    let fresh = client.open(b"one", None, |_| None).unwrap();
    let origin = Box::new(Files { right: false });
    let source = NicSource::new(fresh, None, Some(origin), Duration::ZERO);
    let key = sample.tree.key(FileId(4)).unwrap();
    let error = source.read_at(&key, 0, &mut [0; 10]).unwrap_err();
    assert_eq!(error.kind(), blocks::SourceErrorKind::TimedOut);
    assert_eq!(source.counts().origin_wrong, 1);
}

#[test]
fn a_filled_store_needs_no_service() {
    let (mut rig, sample) = Rig::serving(Access::open());
    let client = rig.client("vm", None);
    connected(&client);
    let remote = client.open(b"one", None, |_| None).unwrap();
    let local = Arc::new(MemStore::default());
    let source = NicSource::new(remote, Some(Arc::clone(&local) as _), None, LONG);
    let filled = source.fill(&AtomicBool::new(false));
    assert_eq!((filled.fetched, filled.missing), (15, 0), "{filled:?}");
    rig.stop();
    until("the client sees that it is gone", || !client.is_there());
    read_all(&sample, &source, 1);
    assert_eq!(source.counts().service, 0);
    assert!(source.counts().local >= 15);
}

#[test]
fn a_fill_that_was_left_unanswered_goes_on_when_the_service_does() {
    let mut rig = Rig::new();
    let sample = sample("one", 1, &*rig.store);
    rig.catalog.add(b"one", &sample.index).unwrap();
    let store = HangingStore::over(Arc::clone(&rig.store));
    rig.start_on(Arc::clone(&store) as _, Access::open(), Limits::default());
    // The service listens and its connections stand: only chunks do not come.
    let client = rig.client_with("vm", None, |patience| {
        patience.transfer = Duration::from_secs(1);
    });
    connected(&client);
    let mut opened = None;
    until("the source is open", || {
        opened = client.open(b"one", None, |_| None).ok();
        opened.is_some()
    });
    let remote = opened.unwrap();
    let local = Arc::new(MemStore::default());
    let source = NicSource::new(remote.clone(), Some(Arc::clone(&local) as _), None, LONG);
    let filled = std::thread::scope(|scope| {
        let filling = scope.spawn(|| source.fill(&AtomicBool::new(false)));
        // Each chunk, and some of them twice.
        until("chunks are given up", || remote.counts().late >= 20);
        assert!(!filling.is_finished());
        store.go_on();
        filling.join().unwrap()
    });
    assert_eq!((filled.fetched, filled.missing), (15, 0), "{filled:?}");
    assert_eq!(local.stats().chunks, 15);
}

/// A thread that answers others gets what is in memory, and asks nobody for the rest.
#[test]
fn a_thread_that_must_not_wait_gets_what_is_in_memory() {
    let (rig, sample) = Rig::serving(Access::open());
    let client = rig.client("vm", None);
    connected(&client);
    let open = || client.open(b"one", None, |_| None).unwrap();
    let key = sample.tree.key(FileId(4)).unwrap();
    let expected = content(1 + 4, SIZES[3]);
    let mut out = vec![0; 4096];
    let source = NicSource::new(open(), None, None, LONG);
    let refused = prompt::now(|| source.read_at(&key, 0, &mut out)).unwrap_err();
    assert_eq!(refused.kind(), blocks::SourceErrorKind::WouldWait);
    let remote = source.remote().counts();
    assert_eq!((remote.late, remote.away, rig.stats().chunks), (0, 0, 0));
    assert_eq!(
        prompt::may_hang(|| source.read_at(&key, 0, &mut out)).unwrap(),
        4096
    );
    out.fill(0);
    assert_eq!(
        prompt::now(|| source.read_at(&key, 0, &mut out)).unwrap(),
        4096
    );
    assert!(out == expected[..4096]);
    // What is only zeros is nowhere, and here; so is what a plan names and nobody has read.
    let source = Arc::new(NicSource::new(open(), None, None, LONG));
    let range = BlockRange::with_len(BlockIndex(0), 1);
    let plan = ReplayPlan {
        runs: 1,
        extents: vec![Extent {
            file: FileId(4),
            range,
            bin: 0,
            seen: 1,
        }],
        ..ReplayPlan::default()
    };
    let planned = Planned::new(Arc::clone(&source), &plan);
    let cache = NicCache::new(open(), &sample.tree);
    let asked = rig.stats().chunks;
    let miss = prompt::now(|| planned.get(&key, range, &mut out));
    assert!(matches!(miss, Lookup::Miss { .. }), "{miss:?}");
    let declined = prompt::now(|| cache.get(&key, range, &mut out));
    assert_eq!(declined, Lookup::Throttled);
    assert_eq!(rig.stats().chunks, asked, "nobody was asked");
    for now in [false, true] {
        let mut get = || {
            (
                planned.get(&key, range, &mut vec![0; 4096]),
                cache.get(&key, range, &mut out),
            )
        };
        let hit = Lookup::Hit { blocks: 1 };
        let got = if now { prompt::now(&mut get) } else { get() };
        assert_eq!(got, (hit, hit));
    }
    assert!(out == expected[..4096]);
}

#[test]
fn a_service_that_comes_back_is_asked_again() {
    let (mut rig, sample) = Rig::serving(Access::open());
    let client = rig.client("vm", None);
    connected(&client);
    let remote = client.open(b"one", None, |_| None).unwrap();
    rig.stop();
    until("the client sees that it is gone", || !client.is_there());
    assert_eq!(remote.fetch(0..1, Priority::Demand, LONG), [None]);
    rig.start(Access::open(), Limits::default());
    until("it answers again", || {
        remote.fetch(0..1, Priority::Demand, LONG)[0].is_some()
    });
    let source = NicSource::new(remote, None, None, LONG);
    read_all(&sample, &source, 1);
}

/// Nobody asks, so nobody but the client's own thread can hear that the service is gone or back.
#[test]
fn an_idle_client_hears_that_the_service_is_gone_and_back() {
    let (mut rig, sample) = Rig::serving(Access::open());
    let client = rig.client("vm", None);
    connected(&client);
    let remote = client.open(b"one", None, |_| None).unwrap();
    for _ in 0..3 {
        assert!(remote.fetch(0..15, Priority::Demand, LONG)[0].is_some());
        rig.stop();
        until("the client sees that it is gone", || !client.is_there());
        rig.start(Access::open(), Limits::default());
        until("the client sees that it is back", || client.is_there());
    }
    // One of its connections stands; questions go by the first.
    connected(&client);
    // Sixteen threads: one drives, and when it has what it wants, another one does.
    let fresh = client.open(b"one", None, |_| None).unwrap();
    let source = NicSource::new(fresh, None, None, LONG);
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| read_all(&sample, &source, 1));
        }
    });
}

#[test]
fn when_the_client_is_gone_its_sources_have_nothing() {
    let (rig, _) = Rig::serving(Access::open());
    let client = rig.client("vm", None);
    connected(&client);
    let remote = client.open(b"one", None, |_| None).unwrap();
    assert!(remote.fetch(0..1, Priority::Demand, LONG)[0].is_some());
    drop(client);
    assert_eq!(remote.fetch(1..3, Priority::Demand, LONG), [None, None]);
    until("the service sees that it left", || {
        rig.stats().connections == 0
    });
}

#[test]
fn boot_images_travel_to_the_next_virtual_machine() {
    let (rig, _) = Rig::serving(Access::open());
    let (one, two) = (rig.client("vm1", None), rig.client("vm2", None));
    connected(&one);
    connected(&two);
    assert_eq!(two.boots(b"one").unwrap(), []);
    // More pieces than are asked for at a time, and no multiple of one.
    let image = content(5, 20 * CHUNK_BYTES + 77);
    let id = one.keep_boot(b"one", &image).unwrap();
    let boots = two.boots(b"one").unwrap();
    assert_eq!((boots[0].id, boots[0].len), (id, image.len() as u64));
    assert!(two.boot(b"one", &boots[0]).unwrap() == image);
}

#[test]
fn beyond_the_window_the_answer_is_busy_and_nobody_else_suffers() {
    let mut rig = Rig::new();
    let sample = sample("one", 1, &*rig.store);
    rig.catalog.add(b"one", &sample.index).unwrap();
    // Room for two chunks.
    let limits = Limits {
        window_bytes: 256 << 10,
        ..Limits::default()
    };
    rig.start(Access::open(), limits);
    let client = rig.client("vm", None);
    connected(&client);
    // All at once is more than the window; one after the other is not.
    let mut raw = Raw::connect(&rig, "other");
    let handle = raw.open("one");
    let read = Message::Read {
        handle,
        priority: Priority::Demand,
        form: ReadForm::Any,
        deadline_ms: 0,
        chunks: (0..15).collect(),
    };
    raw.send(1000, read, Vec::new()).unwrap();
    let answers: Vec<_> = (0..15).map(|_| raw.hear().unwrap().message).collect();
    let busy = answers.iter().filter(|answer| {
        matches!(
            answer,
            Message::Chunk {
                status: Status::Busy,
                ..
            }
        )
    });
    let busy = busy.count();
    assert!((1..15).contains(&busy), "{answers:?}");
    assert!(rig.stats().refused > 0);
    let remote = client.open(b"one", None, |_| None).unwrap();
    let source = NicSource::new(remote, None, None, LONG);
    read_all(&sample, &source, 1);
}
