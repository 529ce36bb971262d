//! Objects on three tiers, and what should be there.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../account/mod.rs"]
mod account;

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use blocks::ContentId;
use tiering::medium::Medium;
use tiering::objects::{Objects, OpenError, OpenReport, TierConfig, TierIndex};
use tiering::pace::Unhurried;
use tiering::testing::{End, MemMedium, Random, Stepped, Steps};

use account::Account;

/// Objects that tests use.
const NUMBERS: u64 = 8;
/// Room on the fast tier: not for all of them.
const FAST: u64 = 4000;

static CONTENTS: LazyLock<Vec<(ContentId, Vec<u8>)>> = LazyLock::new(|| {
    let content = |number: u64| -> Vec<u8> {
        let mut random = Random::new(number);
        let byte = |_| u8::try_from(random.below(256)).unwrap();
        (0..number * 173).map(byte).collect()
    };
    let named = |content: Vec<u8>| (ContentId::of(&content), content);
    (0..NUMBERS).map(content).map(named).collect()
});

/// The content of an object: none, or some hundred bytes that no other has.
pub(crate) fn content(number: u64) -> &'static [u8] {
    &CONTENTS[usize::try_from(number).unwrap()].1
}

/// Its name.
pub(crate) fn id(number: u64) -> ContentId {
    CONTENTS[usize::try_from(number).unwrap()].0
}

/// A state directory and three tiers.
#[derive(Debug)]
pub(crate) struct Rig {
    media: [Arc<dyn Medium>; 4],
    memory: Vec<Arc<MemMedium>>,
}

impl Rig {
    /// Everything in memory.
    pub(crate) fn in_memory() -> Self {
        let memory: Vec<Arc<MemMedium>> = (0..4).map(|_| Arc::default()).collect();
        let media = [0, 1, 2, 3].map(|at| -> Arc<dyn Medium> { memory[at].clone() });
        Self { media, memory }
    }

    /// State and tiers on these.
    pub(crate) fn on(media: [Arc<dyn Medium>; 4]) -> Self {
        let memory = Vec::new();
        Self { media, memory }
    }

    pub(crate) fn state(&self) -> &dyn Medium {
        &*self.media[0]
    }

    pub(crate) fn tier(&self, tier: usize) -> &dyn Medium {
        &*self.media[tier + 1]
    }

    /// The state directory, or a tier, counted from 1.
    pub(crate) fn memory(&self, at: usize) -> &MemMedium {
        &self.memory[at]
    }

    pub(crate) fn cut_power(&self, random: &mut Random) {
        self.memory
            .iter()
            .for_each(|medium| medium.cut_power(random));
    }

    pub(crate) fn open(&self) -> Result<(Objects, OpenReport), OpenError> {
        self.open_with(&Steps::ending(End::Killed, u64::MAX))
    }

    pub(crate) fn open_with(&self, steps: &Arc<Steps>) -> Result<(Objects, OpenReport), OpenError> {
        open(&self.media, steps)
    }

    /// Opens with another medium in the place of a tier.
    pub(crate) fn open_in_place_of(
        &self,
        tier: usize,
        medium: Arc<dyn Medium>,
    ) -> Result<(Objects, OpenReport), OpenError> {
        let mut media = self.media.clone();
        media[tier + 1] = medium;
        open(&media, &Steps::ending(End::Killed, u64::MAX))
    }
}

fn open(
    media: &[Arc<dyn Medium>; 4],
    steps: &Arc<Steps>,
) -> Result<(Objects, OpenReport), OpenError> {
    let stepped = |medium: &Arc<dyn Medium>| -> Arc<dyn Medium> {
        Arc::new(Stepped::new(Arc::clone(medium), steps))
    };
    let tier = |(at, medium)| TierConfig {
        medium: stepped(medium),
        capacity_bytes: if at == 0 { FAST } else { 1 << 20 },
    };
    let tiers = media[1..].iter().enumerate().map(tier).collect();
    Objects::open(stepped(&media[0]), tiers)
}

/// What must be there, and what may be because something ended in the middle.
#[derive(Debug, Default)]
pub(crate) struct Model(Account<u64>);

impl Model {
    /// What is there.
    pub(crate) fn of(objects: &Objects) -> Self {
        let there = (0..NUMBERS).filter(|number| objects.get(id(*number)).is_some());
        Self(Account::of(there))
    }

    pub(crate) fn add(&mut self, objects: &Objects, number: u64, to: usize) -> bool {
        let mut bytes = content(number);
        let len = bytes.len() as u64;
        let added = objects.add(id(number), len, TierIndex(to), &mut bytes, &Unhurried);
        self.0.added(number, &added)
    }

    pub(crate) fn copy(&mut self, objects: &Objects, number: u64, to: usize) {
        drop(objects.copy(id(number), TierIndex(to), &Unhurried));
    }

    pub(crate) fn leave(&mut self, objects: &Objects, number: u64, from: usize) {
        drop(objects.leave(id(number), TierIndex(from)));
    }

    pub(crate) fn shift(&mut self, objects: &Objects, number: u64, from: usize, to: usize) {
        drop(objects.shift(id(number), TierIndex(from), TierIndex(to), &Unhurried));
    }

    pub(crate) fn remove(&mut self, objects: &Objects, number: u64) {
        let removed = objects.remove(id(number));
        self.0.removed(number, &removed);
    }

    /// Does something.
    pub(crate) fn random_change(&mut self, objects: &Objects, random: &mut Random) {
        let number = random.below(NUMBERS);
        let tier = |random: &mut Random| usize::try_from(random.below(3)).unwrap();
        let (one, other) = (tier(random), tier(random));
        match random.below(10) {
            0..=3 => drop(self.add(objects, number, one)),
            4..=5 => self.copy(objects, number, one),
            6 => self.leave(objects, number, one),
            7..=8 => self.shift(objects, number, one, other),
            _ => self.remove(objects, number),
        }
    }

    /// Compares what can be read, at once.
    pub(crate) fn check_reads(&self, objects: &Objects, when: &str) {
        for number in 0..NUMBERS {
            let want = content(number);
            let there = objects.get(id(number)).is_some();
            self.0.check(number, there, when);
            if there {
                let mut buf = vec![0; want.len() + 1];
                let read = objects.read_at(id(number), 0, &mut buf).unwrap();
                assert!(buf[..read] == *want, "{when}: {number} is wrong");
            }
        }
    }

    /// Compares everything, after it was opened again: reads, files and room.
    pub(crate) fn check(&self, objects: &Objects, rig: &Rig, when: &str) {
        self.check_reads(objects, when);
        let list = objects.list();
        for tier in 0..3 {
            let here = list
                .iter()
                .filter(|object| object.tiers.contains(&TierIndex(tier)));
            let mut want: BTreeMap<String, u64> = here
                .map(|object| (object.id.to_string(), object.len))
                .collect();
            let used: u64 = want.values().sum();
            assert_eq!(objects.used_bytes(TierIndex(tier)), used, "{when}");
            want.insert("tier".to_owned(), 64);
            let mut found: BTreeMap<String, u64> =
                rig.tier(tier).list().unwrap().into_iter().collect();
            found.remove("tier.new");
            assert_eq!(found, want, "{when}: files of tier {tier}");
        }
    }
}
