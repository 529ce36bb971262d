//! The Zygotes of a program: look-up, creation, replacement and eviction.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::Zygote;
use super::choice::{Candidate, Needs, best, plan};
use super::imports::Imports;
use super::ranges::Ranges;
use super::strays::Strays;
use super::users::Users;
use crate::cache::{Kept, first_to_go};
use crate::packages::Packages;
use crate::request::{Python, Request};

/// The maximum number of Zygotes. One more replaces the least valuable one.
pub(crate) const ZYGOTES_MAX: u32 = 64;

/// Zygotes at a time that began with a program of their own.
const ROOTS_MAX: u32 = 16;

/// Starts of Python, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZygoteCounts {
    /// From a Zygote with all requested packages.
    pub exact: u64,
    /// From one with some of them.
    pub partial: u64,
    /// With a new interpreter.
    pub fresh: u64,
    /// Zygotes that were made.
    pub made: u64,
    /// Those of them that were forked from another one.
    #[serde(default)]
    pub derived: u64,
    /// Zygotes that were ended since they hung, grew, or broke the protocol.
    pub replaced: u64,
    /// Zygotes that were evicted.
    pub evicted: u64,
}

/// What even a Zygote without packages saves: the start of an interpreter.
const LEAST_SAVED_MS: f64 = 10.0;

/// Whether a Zygote has to be one without a parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IsRoot {
    Wanted,
    Any,
}

/// All Zygotes.
#[derive(Debug)]
pub(crate) struct Zygotes {
    /// The users that they and their children are, as the machine sees them.
    ranges: Ranges,
    pub(crate) strays: Strays,
    pub(crate) live: Mutex<Vec<Living>>,
    pub(crate) needs: Mutex<Needs>,
    pub(crate) imports: Mutex<Imports>,
    pub(crate) exact: AtomicU64,
    pub(crate) partial: AtomicU64,
    pub(crate) fresh: AtomicU64,
    pub(crate) made: AtomicU64,
    pub(crate) derived: AtomicU64,
    pub(crate) replaced: AtomicU64,
    pub(crate) evicted: AtomicU64,
}

/// A Zygote.
#[derive(Clone, Debug)]
pub(crate) struct Living {
    pub(crate) zygote: Arc<Zygote>,
}

impl Zygotes {
    /// With users from `first` on, of which a Zygote has `unit` for itself and its children.
    pub(crate) fn new(first: u32, unit: u32) -> Self {
        Self {
            ranges: Ranges::new(first, unit),
            strays: Strays::default(),
            live: Mutex::default(),
            needs: Mutex::default(),
            imports: Mutex::default(),
            exact: AtomicU64::new(0),
            partial: AtomicU64::new(0),
            fresh: AtomicU64::new(0),
            made: AtomicU64::new(0),
            derived: AtomicU64::new(0),
            replaced: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
        }
    }

    /// Returns the numbers of all, and of their children that wait.
    pub(crate) fn pids(&self) -> Vec<u32> {
        let live = self.live.lock().clone();
        let pids = live.iter().flat_map(|Living { zygote }| {
            let mut pids = zygote.spares.pids();
            pids.push(zygote.started.pid);
            pids
        });
        pids.collect()
    }

    /// Returns the fit one that saves most to a request, and the packages that it has.
    pub(crate) fn choose(&self, request: &Request, python: &Python) -> Option<Arc<Zygote>> {
        let live = self.live.lock().clone();
        let usable: Vec<_> = usable(&live, request, python).collect();
        let candidates: Vec<_> = usable.iter().map(|zygote| candidate(zygote)).collect();
        best(&python.packages, &candidates).map(|place| Arc::clone(usable[place]))
    }

    /// Returns which Zygotes are to be made for a request.
    pub(crate) fn plan(
        &self,
        request: &Request,
        python: &Python,
        hot: &[Packages],
    ) -> Vec<Packages> {
        let live = self.live.lock().clone();
        let usable: Vec<_> = usable(&live, request, python).collect();
        let candidates: Vec<_> = usable.iter().map(|zygote| candidate(zygote)).collect();
        plan(&python.packages, &candidates, hot)
    }

    /// Removes one, and returns it if it was there.
    pub(crate) fn remove(&self, id: &str) -> Option<Living> {
        let mut live = self.live.lock();
        let place = live.iter().position(|living| living.zygote.id == id)?;
        Some(live.swap_remove(place))
    }

    /// Returns whether there can be one more only if another one is evicted.
    pub(crate) fn is_full(&self, is_root: IsRoot) -> bool {
        let live = self.live.lock();
        let has_no_parent = |living: &&Living| living.zygote.parent.is_none();
        let roots = live.iter().filter(has_no_parent).count();
        live.len() >= ZYGOTES_MAX as usize
            || (is_root == IsRoot::Wanted && roots >= ROOTS_MAX as usize)
    }

    /// Takes a range of users for one, below those of its parent if it has one: see [`Ranges::take`].
    pub(crate) fn take_users(
        &self,
        parent: Option<&Zygote>,
        of_sandboxes: impl FnOnce() -> BTreeSet<u32>,
    ) -> Option<Arc<Users>> {
        let parent = parent.map(|parent| *parent.users);
        self.ranges.take(parent, of_sandboxes)
    }

    /// All users that they and their children can be, as the machine sees them.
    pub(crate) fn users(&self) -> Range<u32> {
        self.ranges.all()
    }

    /// Returns the cache data of each, to choose which is evicted first.
    pub(crate) fn kept(&self) -> Vec<Kept> {
        let live = self.live.lock().clone();
        let now = std::time::Instant::now();
        let children = |id: &str| {
            let parents = live
                .iter()
                .filter_map(|living| living.zygote.parent.as_deref());
            parents.filter(|parent| *parent == id).count()
        };
        let kept = live.iter().map(|Living { zygote }| Kept {
            id: zygote.id.clone(),
            bytes: zygote.unshared_bytes(),
            saved_ms: zygote.own_ms.max(LEAST_SAVED_MS),
            hits: zygote.hits.lock().count(now),
            children: children(&zygote.id),
        });
        kept.collect()
    }

    /// Returns the id of the one that is worth least. Of those that began by themselves if `is_root`.
    pub(crate) fn least(&self, is_root: IsRoot) -> Option<String> {
        let mut kept = self.kept();
        if is_root == IsRoot::Wanted {
            let live = self.live.lock();
            let has_no_parent = |one: &Kept| {
                live.iter()
                    .any(|living| living.zygote.id == one.id && living.zygote.parent.is_none())
            };
            kept.retain(has_no_parent);
        }
        first_to_go(&kept).map(|place| kept[place].id.clone())
    }

    /// Counts that one was of use, and all that it descends from.
    pub(crate) fn hit(&self, zygote: &Zygote) {
        let now = std::time::Instant::now();
        zygote.hits.lock().add(now);
        let live = self.live.lock().clone();
        let parent_of = |zygote: &Zygote| {
            let of = |living: &&Living| Some(&living.zygote.id) == zygote.parent.as_ref();
            live.iter().find(of).map(|living| &living.zygote)
        };
        let mut parent = parent_of(zygote);
        while let Some(found) = parent {
            found.hits.lock().add(now);
            parent = parent_of(found);
        }
    }

    pub(crate) fn counts(&self) -> ZygoteCounts {
        ZygoteCounts {
            exact: self.exact.load(Relaxed),
            partial: self.partial.load(Relaxed),
            fresh: self.fresh.load(Relaxed),
            made: self.made.load(Relaxed),
            derived: self.derived.load(Relaxed),
            replaced: self.replaced.load(Relaxed),
            evicted: self.evicted.load(Relaxed),
        }
    }
}

/// Returns those that a request could be forked from, but for their packages.
fn usable<'a>(
    live: &'a [Living],
    request: &'a Request,
    python: &'a Python,
) -> impl Iterator<Item = &'a Arc<Zygote>> {
    live.iter().map(|living| &living.zygote).filter(|zygote| {
        let spec = &zygote.spec;
        spec.base == request.base
            && spec.interpreter == python.interpreter
            && (spec.store == request.packages || spec.packages.is_empty())
    })
}

fn candidate(zygote: &Arc<Zygote>) -> Candidate<'_> {
    Candidate {
        packages: &zygote.spec.packages,
        import_ms: zygote.import_ms,
        forks: zygote.forks.load(Relaxed),
    }
}
