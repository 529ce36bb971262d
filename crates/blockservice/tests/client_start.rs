//! A client that starts a source in one exchange, and readers that must not wait for ever.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod rig;

use std::num::NonZeroU64;
use std::sync::Arc;
use std::thread::scope;
use std::time::Duration;

use blocks::{
    BlockCache as _, BlockIndex, BlockRange, BlockSource as _, ContentId, Extent, FileId, Lookup,
    ReplayPlan, SourceId,
};
use blockservice::client::{Ask, Client, NicSource, Planned, Remote, Started, Wanted};
use blockservice::identity::Access;
use blockservice::service::Limits;
use blockservice::wire::Priority;
use bootimg::{SourceInfo, Variant, WriteRequest, unwatched, write_image};
use chunks::ChunkStore as _;
use chunks::testing::MemStore;
use rig::line::Line;
use rig::{Rig, SIZES, Sample, connected, content, until};

const LONG: Duration = Duration::from_secs(60);

/// Returns a plan of half of each chunk of the largest file, from the last to the first.
fn plan() -> ReplayPlan {
    let extent = |chunk: u64| Extent {
        file: FileId(5),
        range: BlockRange::with_len(BlockIndex(chunk * 32), 16),
        bin: 0,
        seen: 1,
    };
    ReplayPlan {
        runs: 1,
        extents: (0..9).rev().map(extent).collect(),
        ..ReplayPlan::default()
    }
}

/// Gives the service a boot image of the sample, with this plan.
fn give_boot(rig: &Rig, sample: &Sample, client: &Client, plan: &ReplayPlan) {
    let info = SourceInfo {
        label: "one".to_owned(),
        id: SourceId(ContentId([7; 32])),
        recorded_at: i64::MAX,
        command: Vec::new(),
        tool: String::new(),
        ready_ms: Vec::new(),
        similarity_ppm: None,
        source_bytes: 0,
    };
    let request = WriteRequest {
        tree: &sample.tree,
        info: &info,
        plan,
        blocks: &sample.source,
        variant: Variant::Packed,
    };
    let path = rig.dir.path().join("boot");
    write_image(&path, &request, &mut unwatched).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    client.keep_boot(b"one", &bytes).unwrap();
}

fn start(client: &Client, ask: Ask) -> Started {
    let wanted = Wanted {
        name: b"one",
        id: None,
        have: None,
        ask,
    };
    client.start_source(&wanted, LONG).unwrap()
}

/// Replays the plan, and compares every byte.
fn replay(source: &Arc<NicSource>, plan: &ReplayPlan) {
    let key = source.remote().index().tree().key(FileId(5)).unwrap();
    let expected = content(1 + 5, SIZES[4]);
    let planned = Planned::new(Arc::clone(source), plan);
    let in_order = planned.in_order();
    for Extent { range, .. } in &plan.extents {
        let bytes = range.bytes();
        let place = usize::try_from(bytes.start).unwrap()..usize::try_from(bytes.end).unwrap();
        let mut out = vec![0; place.len()];
        let blocks = range.len();
        assert_eq!(in_order.get(&key, *range, &mut out), Lookup::Hit { blocks });
        assert!(out == expected[place], "{range:?} differs");
    }
}

#[test]
fn index_plan_and_chunks_come_in_one_exchange() {
    let (rig, sample) = Rig::serving(Access::open());
    let giver = rig.client("vm0", None);
    connected(&giver);
    give_boot(&rig, &sample, &giver, &plan());
    // Not connected yet: the request travels with the handshake.
    let client = rig.client("vm", None);
    let started = start(&client, Ask::Chunks);
    assert_eq!(started.version, 2);
    assert_eq!(started.remote.index().id(), sample.index.id());
    let ranges = |plan: &ReplayPlan| plan.extents.iter().map(|e| e.range).collect::<Vec<_>>();
    let served = started.plan.unwrap().plan;
    assert_eq!(ranges(&served), ranges(&plan()));
    let local = Arc::new(MemStore::default());
    let source = NicSource::new(started.remote, Some(Arc::clone(&local) as _), None, LONG);
    let source = Arc::new(source);
    replay(&source, &served);
    let counts = source.remote().counts();
    assert_eq!((counts.streams, counts.chunks), (1, 9), "{counts:?}");
    assert_eq!(counts.duplicate_bytes, 0, "{counts:?}");
    assert_eq!(
        (counts.late, counts.away, counts.lies),
        (0, 0, 0),
        "{counts:?}"
    );
    // Whoever replays it again asks nobody.
    let asked = source.remote().counts().requests;
    replay(&source, &served);
    assert_eq!(source.remote().counts().requests, asked);
    assert_eq!(source.remote().counts().chunks, 9);
    drop(source);
    assert!(local.stats().chunks <= 9);
}

#[test]
fn only_what_is_asked_for_comes() {
    let (rig, sample) = Rig::serving(Access::open());
    let client = rig.client("vm", None);
    let none = start(&client, Ask::Chunks);
    assert!(none.plan.is_none(), "nobody gave a boot image");
    connected(&client);
    give_boot(&rig, &sample, &client, &plan());
    assert!(start(&client, Ask::Index).plan.is_none());
    let planned = start(&client, Ask::Plan);
    assert!(planned.plan.is_some());
    // The index is here: it need not travel, and is the same.
    let have = Arc::clone(planned.remote.index());
    let wanted = Wanted {
        name: b"one",
        id: Some(have.id()),
        have: Some(Arc::clone(&have)),
        ask: Ask::Plan,
    };
    let again = client.start_source(&wanted, LONG).unwrap();
    assert!(Arc::ptr_eq(again.remote.index(), &have));
    assert_eq!(rig.stats().chunks, 0);
    // Chunks by READ where none were streamed.
    let source = Arc::new(NicSource::new(again.remote, None, None, LONG));
    replay(&source, &plan());
    let counts = source.remote().counts();
    assert_eq!((counts.streams, counts.chunks), (0, 9), "{counts:?}");
    assert!(counts.requests <= 9, "{counts:?}");
    let wanted = Wanted {
        name: b"two",
        id: None,
        have: None,
        ask: Ask::Chunks,
    };
    let refused = client.start_source(&wanted, LONG).unwrap_err();
    assert!(refused.to_string().contains("no such source"), "{refused}");
}

#[test]
fn a_service_that_is_not_there_is_not_waited_for_longer_than_told() {
    let rig = Rig::new();
    let client = rig.client("vm", None);
    let wanted = Wanted {
        name: b"one",
        id: None,
        have: None,
        ask: Ask::Chunks,
    };
    let patience = Duration::from_millis(100);
    assert!(client.start_source(&wanted, patience).is_err());
}

/// What waits behind others in a stream is sent next, and once. A service of an earlier release is asked for it, and
/// told to leave it out.
#[test]
fn what_a_stream_brings_too_late_is_promoted_where_the_service_knows_that() {
    for highest in [3, 2] {
        let mut rig = Rig::new();
        let sample = rig::sample("one", 1, &*rig.store);
        rig.catalog.add(b"one", &sample.index).unwrap();
        let limits = Limits {
            // The stream takes a quarter of a second.
            send_rate_of_one: NonZeroU64::new(5_000_000),
            ..Limits::default()
        };
        rig.start(Access::open(), limits);
        let giver = rig.client("vm0", None);
        connected(&giver);
        give_boot(&rig, &sample, &giver, &plan());
        let line = Line::to(&rig, highest);
        let client = line.client(|_| {});
        let started = start(&client, Ask::Chunks);
        let source = NicSource::new(started.remote, None, None, LONG);
        // The last one of the plan.
        let key = sample.tree.key(FileId(5)).unwrap();
        let mut out = vec![0; 4096];
        source.read_at(&key, 0, &mut out).unwrap();
        assert!(out == content(1 + 5, SIZES[4])[..4096]);
        let counts = source.remote().counts();
        let promoted = rig.metric("promoted_chunks_total");
        assert_eq!(
            (promoted, counts.requests),
            if highest == 3 { (1, 0) } else { (0, 1) }
        );
        replay(&Arc::new(source), &started.plan.unwrap().plan);
        // Both ends of two connections: none was lost and made again.
        assert_eq!(line.streams.lock().unwrap().len(), 4);
    }
}

/// Starts readers of chunks that do not come, has something happen, and waits for all of them.
fn readers_end(remote: &Remote, patience: Duration, happens: impl FnOnce()) {
    scope(|scope| {
        let read = |n: u32| {
            let remote = remote.clone();
            move || remote.fetch(n..n + 3, Priority::Demand, patience)
        };
        let readers: Vec<_> = (0..4).map(|n| scope.spawn(read(n * 3))).collect();
        until("they have asked", || remote.counts().requests > 0);
        happens();
        for reader in readers {
            assert!(reader.join().unwrap().iter().all(Option::is_none));
        }
    });
}

#[test]
fn readers_end_when_the_connection_is_lost_and_when_the_client_goes() {
    let (rig, _) = Rig::serving(Access::open());
    for goes in [false, true] {
        let line = Line::start(&rig);
        // Nothing but what happens ends the wait.
        let client = line.client(|patience| {
            patience.hedge = LONG * 10;
            patience.give_up = LONG * 10;
            patience.silent = LONG * 10;
        });
        connected(&client);
        let remote = client.open(b"one", None, |_| None).unwrap();
        assert!(remote.fetch(12..13, Priority::Demand, LONG)[0].is_some());
        line.fall_silent();
        if goes {
            let mut client = Some(client);
            readers_end(&remote, LONG, || drop(client.take()));
        } else {
            readers_end(&remote, LONG, || line.cut());
            drop(client);
        }
        let counts = remote.counts();
        assert_eq!(
            counts.late, 0,
            "none waited for its own deadline: {counts:?}"
        );
        assert!(counts.away >= 4, "{counts:?}");
        std::fs::remove_file(&line.socket).unwrap();
    }
}

#[test]
fn readers_end_when_the_service_stalls_and_when_their_time_is_over() {
    let (rig, _) = Rig::serving(Access::open());
    let line = Line::start(&rig);
    let client = line.client(|_| ());
    connected(&client);
    let remote = client.open(b"one", None, |_| None).unwrap();
    line.fall_silent();
    readers_end(&remote, LONG, || ());
    assert!(remote.counts().late >= 1, "{:?}", remote.counts());
    until("nobody waits for it any more", || !client.is_there());
    let before = remote.counts().requests;
    assert_eq!(remote.fetch(14..15, Priority::Demand, LONG), [None]);
    assert_eq!(remote.counts().requests, before, "it is not asked");
    drop(client);
    // A service that is waited for, but not by these.
    std::fs::remove_file(&line.socket).unwrap();
    let line = Line::start(&rig);
    let client = line.client(|patience| {
        patience.give_up = LONG * 10;
        patience.silent = LONG * 10;
    });
    connected(&client);
    let remote = client.open(b"one", None, |_| None).unwrap();
    line.fall_silent();
    readers_end(&remote, Duration::from_millis(300), || ());
}
