//! Simulates a policy: replays accesses against [`Residents`], as the store does, without the content.

use crate::policy::{Fingerprint, Item, Limit, PolicyKind, Residents};
use crate::{ChunkId, Class};

mod access_trace;
mod many_vms;
mod random;

pub use access_trace::{AccessTraceError, read_accesses, write_accesses};
pub use many_vms::ManyVms;
pub use random::{Random, Zipf};

/// One access to a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkAccess {
    /// A number that is used in place of its name.
    pub chunk: u64,
    /// How many bytes it has, at least 1.
    pub bytes: u32,
    /// Whether a client waited for it.
    pub class: Class,
}

impl ChunkAccess {
    /// Returns the number of a chunk that is known by its id.
    #[must_use]
    pub fn number(id: &ChunkId) -> u64 {
        id.fingerprint()
    }
}

/// Accesses, and how many of them, by number and by bytes, found their chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Accesses.
    pub accesses: u64,
    /// Those that found it.
    pub hits: u64,
    /// Requested bytes.
    pub bytes: u64,
    /// Those that were there.
    pub hit_bytes: u64,
}

/// What a simulation came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// All accesses.
    pub all: Tally,
    /// Those that a client waited for.
    pub demand: Tally,
    /// Evicted chunks.
    pub evicted: u64,
}

/// A number of a trace, as a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Numbered(u64);

impl Fingerprint for Numbered {
    fn fingerprint(&self) -> u64 {
        random::mix(self.0)
    }
}

impl Tally {
    fn count(&mut self, bytes: u32, hit: bool) {
        self.accesses += 1;
        self.bytes += u64::from(bytes);
        if hit {
            self.hits += 1;
            self.hit_bytes += u64::from(bytes);
        }
    }
}

/// Runs accesses through a cache with room for `capacity_bytes`, empty at first: what misses comes
/// in.
pub fn simulate(
    accesses: impl IntoIterator<Item = ChunkAccess>,
    policy: PolicyKind,
    capacity_bytes: u64,
) -> Outcome {
    let mut residents = Residents::new(policy, Limit::bytes(capacity_bytes));
    let mut outcome = Outcome::default();
    for ChunkAccess {
        chunk,
        bytes,
        class,
    } in accesses
    {
        let key = Numbered(chunk);
        let hit = residents.hit(&key, class);
        outcome.all.count(bytes, hit);
        if class == Class::Demand {
            outcome.demand.count(bytes, hit);
        }
        if !hit {
            let fingerprint = key.fingerprint();
            let item = Item {
                fingerprint,
                bytes,
                class,
            };
            residents.admit(key, (), item, &mut |_, ()| outcome.evicted += 1);
        }
    }
    outcome
}

/// Returns the bytes of all different chunks of some accesses: the capacity at which nothing has to
/// go.
#[must_use]
pub fn footprint_bytes(accesses: &[ChunkAccess]) -> u64 {
    let chunks: std::collections::HashMap<u64, u32> = accesses
        .iter()
        .map(|access| (access.chunk, access.bytes))
        .collect();
    chunks.values().map(|bytes| u64::from(*bytes)).sum()
}
