//! Eviction policies: which entry a cache drops when it is full.
//!
//! A [`Policy`] knows entries by the [`Slot`] that [`Residents`] gave them. It knows nothing of pins,
//! budgets or disks, so the store and the simulator run the same code. The cost to fetch an entry again
//! is about proportional to its bytes; so sizes count against the budget, and not in the choice.

use std::fmt;
use std::str::FromStr;

use crate::Class;

mod learned;
mod lfu;
mod lru;
mod queue;
mod residents;
mod s3fifo;
mod sieve;

pub use residents::{Fingerprint, Limit, Residents};

/// A place in the table of residents; those that are given back are used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(u32);

impl Slot {
    const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The data about a chunk for a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// A hash of its name, which is the same whenever it is added again.
    pub fingerprint: u64,
    /// Its size in bytes.
    pub bytes: u32,
    /// Why it was added.
    pub class: Class,
}

/// An order in which chunks go.
pub trait Policy: Send + fmt::Debug {
    /// Learns of a chunk that came in, to a slot that it has not now.
    fn insert(&mut self, slot: Slot, item: Item);

    /// Records a request for a chunk, on demand or ahead of time.
    fn hit(&mut self, slot: Slot, class: Class);

    /// Chooses a chunk, and removes it; `None` if it has none.
    fn evict(&mut self) -> Option<Slot>;

    /// Forgets a chunk that it has.
    fn remove(&mut self, slot: Slot);
}

/// The available policies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PolicyKind {
    /// Evicts the least recently used.
    Lru,
    /// Evicts the least frequently used, with old uses weighted less.
    Lfu,
    /// First in, first out, but entries that were used meanwhile are skipped.
    Sieve,
    /// Evicts early what is not used soon after it was added; the rest as in Sieve.
    S3Fifo,
    /// Uses the policy that is best on a sample of the requests.
    #[default]
    Learned,
}

impl PolicyKind {
    /// All policies.
    pub const ALL: [Self; 5] = [
        Self::Lru,
        Self::Lfu,
        Self::Sieve,
        Self::S3Fifo,
        Self::Learned,
    ];

    /// Returns the name by which it is chosen.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lru => "lru",
            Self::Lfu => "lfu",
            Self::Sieve => "sieve",
            Self::S3Fifo => "s3-fifo",
            Self::Learned => "learned",
        }
    }

    /// Returns the policy, for a cache with room for so many bytes.
    #[must_use]
    pub fn build(self, capacity_bytes: u64) -> Box<dyn Policy> {
        match self {
            Self::Lru => Box::<lru::Lru>::default(),
            Self::Lfu => Box::<lfu::Lfu>::default(),
            Self::Sieve => Box::<sieve::Sieve>::default(),
            Self::S3Fifo => Box::new(s3fifo::S3Fifo::new(capacity_bytes)),
            Self::Learned => Box::new(learned::Learned::new(capacity_bytes)),
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The text names no policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a policy is lru, lfu, sieve, s3-fifo or learned")]
pub struct ParsePolicyError;

impl FromStr for PolicyKind {
    type Err = ParsePolicyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == text);
        found.ok_or(ParsePolicyError)
    }
}

/// Returns the entry of a table by slot, which grows as needed.
fn entry<T: Clone + Default>(table: &mut Vec<T>, slot: Slot) -> &mut T {
    if table.len() <= slot.index() {
        table.resize(slot.index() + 1, T::default());
    }
    &mut table[slot.index()]
}
