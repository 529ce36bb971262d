//! What every policy must do, whatever is asked for; and that the good ones are good.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::{BTreeMap, HashMap};

use chunks::simulate::{ChunkAccess, ManyVms, footprint_bytes, simulate};
use chunks::{ChunkId, Class, Fingerprint as _, Item, Limit, PolicyKind, Residents};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    Ask(u8, u32, Class),
    Pin(u8),
    Unpin(u8),
    Remove(u8),
    Evict,
}

fn op() -> impl Strategy<Value = Op> {
    let class = prop_oneof![3 => Just(Class::Demand), 1 => Just(Class::Prefetch)];
    prop_oneof![
        20 => (0..40u8, 1..300u32, class).prop_map(|(key, bytes, class)| Op::Ask(key, bytes, class)),
        2 => (0..40u8).prop_map(Op::Pin),
        2 => (0..40u8).prop_map(Op::Unpin),
        1 => (0..40u8).prop_map(Op::Remove),
        1 => Just(Op::Evict),
    ]
}

fn id(key: u8) -> ChunkId {
    ChunkId::of(&[key])
}

/// What is in the cache by the naive account.
#[derive(Debug, Default)]
struct Model {
    here: HashMap<ChunkId, (u32, u64)>,
    pins: BTreeMap<ChunkId, u32>,
}

impl Model {
    fn bytes(&self) -> u64 {
        self.here.values().map(|(bytes, _)| u64::from(*bytes)).sum()
    }

    fn pinned_bytes(&self) -> u64 {
        let pinned = self
            .here
            .iter()
            .filter(|(id, _)| self.pins.contains_key(*id));
        pinned.map(|(_, (bytes, _))| u64::from(*bytes)).sum()
    }
}

const LIMIT: Limit = Limit {
    bytes: 2000,
    entries: 15,
};

fn step(residents: &mut Residents<ChunkId, u64>, model: &mut Model, serial: u64, op: &Op) {
    match *op {
        Op::Ask(key, bytes, class) => {
            let id = id(key);
            let known = model.here.get(&id).copied();
            assert_eq!(residents.hit(&id, class), known.is_some());
            // A hit is what was put.
            assert_eq!(residents.get(&id).copied(), known.map(|(_, value)| value));
            if known.is_none() {
                let item = Item {
                    fingerprint: id.fingerprint(),
                    bytes,
                    class,
                };
                let mut gone = Vec::new();
                let let_in = residents.admit(id, serial, item, &mut |id, value| {
                    gone.push((id, value));
                });
                assert!(
                    let_in || gone.is_empty(),
                    "nothing goes for what does not come"
                );
                for (id, value) in gone {
                    assert!(!model.pins.contains_key(&id), "pinned");
                    assert_eq!(model.here.remove(&id).unwrap().1, value);
                }
                if let_in {
                    model.here.insert(id, (bytes, serial));
                } else {
                    let pinned = model.here.keys().filter(|id| model.pins.contains_key(id));
                    let full = model.pinned_bytes() + u64::from(bytes) > LIMIT.bytes;
                    assert!(full || pinned.count() == LIMIT.entries, "there was room");
                }
            }
        }
        // More pins than there may be entries are not kept.
        Op::Pin(key) if model.pins.len() < LIMIT.entries => {
            residents.pin(&id(key));
            *model.pins.entry(id(key)).or_default() += 1;
        }
        Op::Pin(_) => {}
        Op::Unpin(key) => {
            residents.unpin(&id(key));
            if let Some(pins) = model.pins.get_mut(&id(key)) {
                *pins -= 1;
            }
            model.pins.retain(|_, pins| *pins > 0);
        }
        Op::Remove(key) => {
            let removed = residents.remove(&id(key));
            assert_eq!(removed, model.here.remove(&id(key)).map(|(_, value)| value));
        }
        Op::Evict => match residents.evict() {
            Some((id, value)) => {
                assert!(!model.pins.contains_key(&id), "pinned");
                assert_eq!(model.here.remove(&id).unwrap().1, value);
            }
            None => assert!(model.here.keys().all(|id| model.pins.contains_key(id))),
        },
    }
    assert_eq!(residents.len(), model.here.len());
    assert_eq!(residents.bytes(), model.bytes());
    assert!(residents.bytes() <= LIMIT.bytes && residents.len() <= LIMIT.entries);
    let pinned = model
        .here
        .keys()
        .filter(|id| model.pins.contains_key(id))
        .count();
    assert_eq!(residents.pinned(), pinned);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn every_policy_keeps_the_limits_and_the_pinned(ops in prop::collection::vec(op(), 1..400)) {
        for kind in PolicyKind::ALL {
            let (mut residents, mut model) = (Residents::new(kind, LIMIT), Model::default());
            for (serial, op) in ops.iter().enumerate() {
                step(&mut residents, &mut model, serial as u64, op);
            }
            // It forgets nobody: all that are not pinned can go.
            while let Some((id, _)) = residents.evict() {
                prop_assert!(!model.pins.contains_key(&id));
                prop_assert!(model.here.remove(&id).is_some());
            }
            prop_assert!(model.here.keys().all(|id| model.pins.contains_key(id)));
        }
    }
}

fn demand(chunk: u64) -> ChunkAccess {
    ChunkAccess {
        chunk,
        bytes: 1,
        class: Class::Demand,
    }
}

fn hits(kind: PolicyKind, capacity: u64, chunks: impl IntoIterator<Item = u64>) -> u64 {
    simulate(chunks.into_iter().map(demand), kind, capacity)
        .all
        .hits
}

#[test]
fn each_policy_is_the_one_it_says() {
    // LRU: a loop larger than the cache never hits; one that fits always does.
    let lap = |len: u64| (0..5).flat_map(move |_| 0..len);
    assert_eq!(hits(PolicyKind::Lru, 10, lap(11)), 0);
    for kind in PolicyKind::ALL {
        assert_eq!(hits(kind, 10, lap(10)), 40, "{kind}");
    }
    // LFU: 1 was used most, and stays, whatever comes once.
    let often = [1, 1, 1].into_iter().chain(100..104).chain([1]);
    assert_eq!(hits(PolicyKind::Lfu, 3, often.clone()), 3);
    assert_eq!(hits(PolicyKind::Lru, 3, often), 2);
    // SIEVE: what was used is spared by the hand, and does not move.
    let spared = [1, 2, 3, 1, 4, 1, 5, 1, 3];
    assert_eq!(hits(PolicyKind::Sieve, 3, spared), 3);
    // S3-FIFO: a scan passes through the small queue.
    let scan = (0..9).chain(0..9).chain(0..9).chain(100..1000).chain(0..9);
    assert!(hits(PolicyKind::S3Fifo, 20, scan.clone()) >= 18 + 8);
    assert_eq!(hits(PolicyKind::Lru, 20, scan), 18);
}

/// Of a thousand bytes, those that were there: of all, and of those that somebody waited for.
#[derive(Clone, Copy, Debug)]
struct Permille {
    kind: PolicyKind,
    all: u64,
    waited: u64,
}

fn permille(kind: PolicyKind, accesses: &[ChunkAccess], capacity: u64) -> Permille {
    let outcome = simulate(accesses.iter().copied(), kind, capacity);
    Permille {
        kind,
        all: outcome.all.hit_bytes * 1000 / outcome.all.bytes,
        waited: outcome.demand.hit_bytes * 1000 / outcome.demand.bytes,
    }
}

/// Holds S3-FIFO and the learned policy, the default, to the aim: of what is waited for, within 2 points of
/// the best that is not below LRU; and below LRU in nothing.
fn hold_to_the_aim(host: ManyVms) {
    let accesses: Vec<_> = host.accesses().collect();
    let footprint = footprint_bytes(&accesses);
    for percent in [5, 10, 25] {
        let by = PolicyKind::ALL.map(|kind| permille(kind, &accesses, footprint * percent / 100));
        println!("{percent} %: {by:?}");
        let of = |kind: PolicyKind| *by.iter().find(|one| one.kind == kind).unwrap();
        let lru = of(PolicyKind::Lru);
        let able = by.iter().filter(|one| one.all >= lru.all);
        let best = able.map(|one| one.waited).max().unwrap();
        for one in [of(PolicyKind::S3Fifo), of(PolicyKind::Learned)] {
            assert!(one.all >= lru.all, "{percent} %: {by:?}");
            assert!(one.waited >= lru.waited, "{percent} %: {by:?}");
            assert!(one.waited + 20 >= best, "{percent} %: {by:?}");
        }
    }
}

/// A host between the synthetic one of the documents and one that is too small to tell anything.
fn busy_host() -> ManyVms {
    ManyVms {
        images: 100,
        bases: 6,
        base_chunks: 150,
        own_chunks: 250,
        starts: 800,
        ..ManyVms::default()
    }
}

#[test]
fn on_a_busy_host_the_aim_is_met() {
    hold_to_the_aim(busy_host());
}

#[test]
fn on_a_busy_host_where_nobody_waits_for_scans_the_aim_is_met() {
    hold_to_the_aim(ManyVms {
        scan_class: Class::Prefetch,
        ..busy_host()
    });
}

#[test]
fn what_is_prefetched_pushes_out_nothing_that_is_waited_for() {
    // Ten chunks that boots read now and then, and a scan that nobody waits for in between.
    let boots = || (0..10).map(demand);
    let scan = (100..1000).map(|chunk| ChunkAccess {
        class: Class::Prefetch,
        ..demand(chunk)
    });
    let accesses = boots().chain(scan).chain(boots());
    for (kind, hits) in [(PolicyKind::S3Fifo, 10), (PolicyKind::Lru, 0)] {
        let outcome = simulate(accesses.clone(), kind, 200);
        assert_eq!(outcome.demand.hits, hits, "{kind}");
    }
}
