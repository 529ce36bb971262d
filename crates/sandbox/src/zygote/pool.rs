//! The Zygotes of a program: found, made, replaced, and ended for others.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::Zygote;
use super::choice::{Candidate, Needs, best, worst};
use crate::request::{Python, Request};

/// Zygotes at a time. One more takes the place of the one that is worth least.
pub(crate) const ZYGOTES_MAX: u32 = 16;

/// Starts of Python, by what they began with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZygoteCounts {
    /// From a Zygote with all packages that were asked for.
    pub exact: u64,
    /// From one with some of them.
    pub partial: u64,
    /// With an interpreter of its own.
    pub fresh: u64,
    /// Zygotes that were made.
    pub made: u64,
    /// Zygotes that were ended since they hung, grew, or broke the protocol.
    pub replaced: u64,
    /// Zygotes that were ended for others.
    pub evicted: u64,
}

/// All Zygotes.
#[derive(Debug, Default)]
pub(crate) struct Zygotes {
    pub(crate) live: Mutex<Vec<Living>>,
    pub(crate) needs: Mutex<Needs>,
    pub(crate) exact: AtomicU64,
    pub(crate) partial: AtomicU64,
    pub(crate) fresh: AtomicU64,
    pub(crate) made: AtomicU64,
    pub(crate) replaced: AtomicU64,
    pub(crate) evicted: AtomicU64,
}

/// A Zygote, and which block of users it has.
#[derive(Clone, Debug)]
pub(crate) struct Living {
    pub(crate) zygote: Arc<Zygote>,
    pub(crate) block: u32,
}

impl Zygotes {
    /// Returns the fit one that saves most to a request, and the packages that it has.
    pub(crate) fn choose(&self, request: &Request, python: &Python) -> Option<Arc<Zygote>> {
        let live = self.live.lock().clone();
        let usable: Vec<_> = live
            .iter()
            .map(|living| &living.zygote)
            .filter(|zygote| {
                let spec = &zygote.spec;
                spec.base == request.base
                    && spec.interpreter == python.interpreter
                    && (spec.store == request.packages || spec.packages.is_empty())
            })
            .collect();
        let candidates: Vec<_> = usable.iter().map(|zygote| candidate(zygote)).collect();
        best(&python.packages, &candidates).map(|place| Arc::clone(usable[place]))
    }

    /// Takes one out of all, and returns it if it was there.
    pub(crate) fn remove(&self, id: &str) -> Option<Living> {
        let mut live = self.live.lock();
        let place = live.iter().position(|living| living.zygote.id == id)?;
        Some(live.swap_remove(place))
    }

    /// Returns a block of users that nobody has, or the Zygote that is to go first.
    pub(crate) fn free_block(&self) -> std::result::Result<u32, Option<Arc<Zygote>>> {
        let live = self.live.lock();
        let is_free = |block: &u32| live.iter().all(|living| living.block != *block);
        if let Some(block) = (0..ZYGOTES_MAX).find(is_free) {
            return Ok(block);
        }
        let zygotes: Vec<_> = live.iter().map(|living| &living.zygote).collect();
        let bytes: Vec<_> = zygotes.iter().map(|zygote| zygote.memory_bytes()).collect();
        let candidates: Vec<_> = zygotes.iter().map(|zygote| candidate(zygote)).collect();
        Err(worst(&candidates, &bytes).map(|place| Arc::clone(zygotes[place])))
    }

    pub(crate) fn counts(&self) -> ZygoteCounts {
        ZygoteCounts {
            exact: self.exact.load(Relaxed),
            partial: self.partial.load(Relaxed),
            fresh: self.fresh.load(Relaxed),
            made: self.made.load(Relaxed),
            replaced: self.replaced.load(Relaxed),
            evicted: self.evicted.load(Relaxed),
        }
    }
}

fn candidate(zygote: &Arc<Zygote>) -> Candidate<'_> {
    Candidate {
        packages: &zygote.spec.packages,
        import_ms: zygote.import_ms,
        forks: zygote.forks.load(Relaxed),
    }
}
