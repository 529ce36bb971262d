//! Objects in parts on two tiers, and what should be there.

#![allow(
    clippy::allow_attributes,
    reason = "what is unused differs from test to test"
)]
#![allow(dead_code, reason = "each test binary uses its own part of the rig")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../account/mod.rs"]
mod account;

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use blocks::{BlockIndex, BlockRange, ContentId, RangeSet};
use tiering::medium::Medium;
use tiering::objects::{ObjectError, OpenReport, TierConfig, TierIndex};
use tiering::pace::Unhurried;
use tiering::parts::{Index, Part, PartedObjects};
use tiering::testing::{End, MemMedium, Random, Stepped, Steps};

use account::Account;

pub(crate) const BLOCK: usize = 4096;
/// Room on the fast tier: for most of the blocks of all indexes together, once.
pub(crate) const FAST: u64 = 8 * 4096;
pub(crate) const SLOW: u64 = 1 << 20;

/// The runs of each index: pool, first block, blocks.
pub(crate) const RUNS: [&[(u8, u64, u64)]; 4] = [
    &[(1, 0, 3)],
    &[(1, 2, 3)],
    &[(1, 0, 2), (1, 2, 3), (2, 1, 1)],
    &[(2, 0, 2), (2, 4, 1)],
];

pub(crate) fn pool(number: u8) -> ContentId {
    ContentId([number; 32])
}

/// What is in the pools, always: no two blocks are the same, none is zero.
pub(crate) static CONTENTS: LazyLock<[Vec<u8>; 2]> = LazyLock::new(|| {
    [1, 2].map(|pool| {
        let byte = |at: usize| u8::try_from(at % 251).unwrap() ^ u8::try_from(at / BLOCK).unwrap();
        (0..5 * BLOCK)
            .map(|at| (byte(at) ^ (pool << 6)).max(1))
            .collect()
    })
});

pub(crate) fn content(pool: u8, blocks: BlockRange) -> &'static [u8] {
    let bytes = blocks.bytes();
    let at = |byte: u64| usize::try_from(byte).unwrap();
    &CONTENTS[usize::from(pool) - 1][at(bytes.start)..at(bytes.end)]
}

pub(crate) static INDEXES: LazyLock<Vec<(Index, ContentId)>> = LazyLock::new(|| {
    let indexes = (0..RUNS.len()).map(make_index);
    indexes.map(|index| (index.clone(), index.id())).collect()
});

pub(crate) fn index(number: usize) -> &'static Index {
    &INDEXES[number].0
}

pub(crate) fn id(number: usize) -> ContentId {
    INDEXES[number].1
}

pub(crate) fn make_index(number: usize) -> Index {
    let mut pools: Vec<u8> = RUNS[number].iter().map(|run| run.0).collect();
    pools.dedup();
    let part = |run: &(u8, u64, u64)| {
        let blocks = BlockRange::with_len(BlockIndex(run.1), run.2);
        Part {
            pool: pools.iter().position(|pool| *pool == run.0).unwrap(),
            blocks,
            hash: *blake3::hash(content(run.0, blocks)).as_bytes(),
        }
    };
    let parts = RUNS[number].iter().map(part).collect();
    Index::new(pools.iter().copied().map(pool).collect(), parts).unwrap()
}

/// Brings what a part is.
pub(crate) fn bring(
    number: usize,
) -> impl FnMut(usize, &Part, &mut [u8]) -> Result<(), ObjectError> {
    let index = index(number);
    move |_, part, buf| {
        let pool = index.pools()[part.pool].0[0];
        buf.copy_from_slice(content(pool, part.blocks));
        Ok(())
    }
}

/// A state directory and two tiers.
#[derive(Debug)]
pub(crate) struct Rig {
    pub(crate) media: [Arc<dyn Medium>; 3],
    pub(crate) memory: Vec<Arc<MemMedium>>,
}

impl Rig {
    pub(crate) fn in_memory() -> Self {
        let memory: Vec<Arc<MemMedium>> = (0..3).map(|_| Arc::default()).collect();
        let media = [0, 1, 2].map(|at| -> Arc<dyn Medium> { memory[at].clone() });
        Self { media, memory }
    }

    pub(crate) fn open_with(&self, steps: &Arc<Steps>) -> Option<(PartedObjects, OpenReport)> {
        let stepped = |medium: &Arc<dyn Medium>| -> Arc<dyn Medium> {
            Arc::new(Stepped::new(Arc::clone(medium), steps))
        };
        let tier = |(medium, capacity_bytes)| TierConfig {
            medium: stepped(medium),
            capacity_bytes,
        };
        let tiers = self.media[1..].iter().zip([FAST, SLOW]).map(tier).collect();
        PartedObjects::open(stepped(&self.media[0]), tiers).ok()
    }

    pub(crate) fn open(&self) -> (PartedObjects, OpenReport) {
        self.open_with(&Steps::ending(End::Killed, u64::MAX))
            .unwrap()
    }

    pub(crate) fn tier(&self, tier: usize) -> &dyn Medium {
        &*self.media[tier + 1]
    }

    pub(crate) fn cut_power(&self, random: &mut Random) {
        self.memory
            .iter()
            .for_each(|medium| medium.cut_power(random));
    }
}

/// What must be there, and what may be because something ended in the middle.
#[derive(Debug, Default)]
pub(crate) struct Model(pub(crate) Account<usize>);

impl Model {
    pub(crate) fn of(objects: &PartedObjects) -> Self {
        let there = |number: &usize| objects.objects().get(id(*number)).is_some();
        Self(Account::of((0..RUNS.len()).filter(there)))
    }

    pub(crate) fn add(&mut self, objects: &PartedObjects, number: usize, to: usize) -> bool {
        let added = objects.add(index(number), TierIndex(to), &mut bring(number), &Unhurried);
        self.0.added(number, &added)
    }

    pub(crate) fn remove(&mut self, objects: &PartedObjects, number: usize) {
        let removed = objects.remove(id(number));
        self.0.removed(number, &removed);
    }

    pub(crate) fn random_change(&mut self, objects: &PartedObjects, random: &mut Random) {
        let number = usize::try_from(random.below(RUNS.len() as u64)).unwrap();
        let tier = usize::try_from(random.below(2)).unwrap();
        let id = id(number);
        match random.below(10) {
            0..=3 => drop(self.add(objects, number, tier)),
            4..=5 => drop(objects.copy(id, TierIndex(tier), &Unhurried)),
            6..=7 => drop(objects.leave(id, TierIndex(tier))),
            _ => self.remove(objects, number),
        }
    }

    /// Compares every block of what counts, at once.
    pub(crate) fn check_parts(&self, objects: &PartedObjects, rig: &Rig, when: &str) {
        for (number, runs) in RUNS.iter().enumerate() {
            let id = id(number);
            let there = objects.objects().get(id);
            self.0.check(number, there.is_some(), when);
            for tier in there.map(|object| object.tiers).unwrap_or_default() {
                for (pool_number, first, blocks) in *runs {
                    let blocks = BlockRange::with_len(BlockIndex(*first), *blocks);
                    let want = content(*pool_number, blocks);
                    let mut found = vec![0; want.len()];
                    let name = format!("{}.pool", pool(*pool_number));
                    let offset = blocks.bytes().start;
                    rig.tier(tier.0).read_at(&name, offset, &mut found).unwrap();
                    assert!(found == want, "{when}: {number} is wrong on {tier}");
                }
                assert_eq!(objects.has_all_parts(id, tier, &Unhurried), Ok(true));
            }
        }
    }

    /// Compares everything, after it was opened again: parts, files, room, and what is left over.
    pub(crate) fn check(&self, objects: &PartedObjects, rig: &Rig, when: &str) {
        self.check_parts(objects, rig, when);
        let list = objects.objects().list();
        for tier in 0..2 {
            let mut want: BTreeMap<String, u64> = BTreeMap::new();
            let mut named: BTreeMap<u8, RangeSet> = BTreeMap::new();
            for object in &list {
                if object.tiers.contains(&TierIndex(tier)) {
                    want.insert(object.id.to_string(), object.len);
                    let number = (0..RUNS.len()).find(|number| id(*number) == object.id);
                    for (pool, first, blocks) in RUNS[number.unwrap()] {
                        let blocks = BlockRange::with_len(BlockIndex(*first), *blocks);
                        named.entry(*pool).or_default().insert(blocks);
                    }
                }
            }
            let blocks: u64 = named.values().map(RangeSet::len).sum();
            let used = want.values().sum::<u64>() + blocks * BLOCK as u64;
            assert_eq!(
                objects.objects().used_bytes(TierIndex(tier)),
                used,
                "{when}"
            );
            want.insert("tier".to_owned(), 64);
            let mut found: BTreeMap<String, u64> =
                rig.tier(tier).list().unwrap().into_iter().collect();
            found.remove("tier.new");
            for (number, blocks) in named {
                let name = format!("{}.pool", pool(number));
                let len = found.remove(&name).expect(when);
                let all = BlockRange::covering(0, len);
                for gap in blocks.gaps(all) {
                    let mut left = vec![0; usize::try_from(gap.byte_len()).unwrap()];
                    let offset = gap.bytes().start;
                    rig.tier(tier).read_at(&name, offset, &mut left).unwrap();
                    assert!(
                        left.iter().all(|byte| *byte == 0),
                        "{when}: something is left over in {gap:?} of pool {number} on tier {tier}"
                    );
                }
            }
            assert_eq!(found, want, "{when}: files of tier {tier}");
        }
    }
}

/// Everything that can be done, with parts shared all the time.
pub(crate) fn script(objects: &PartedObjects, model: &mut Model) {
    for number in 0..RUNS.len() {
        model.add(objects, number, 0);
    }
    drop(objects.copy(id(2), TierIndex(1), &Unhurried));
    drop(objects.leave(id(2), TierIndex(0)));
    model.remove(objects, 0);
    drop(objects.copy(id(3), TierIndex(1), &Unhurried));
    model.add(objects, 0, 1);
    model.remove(objects, 2);
}
