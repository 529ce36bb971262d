//! Recovery, and the deletion of directories without a record.
//!
//! Deleting a tree on a busy disk takes seconds, and containerd waits for Remove with its lock
//! held: so the response is sent once the record is gone, and the directory is deleted later.

use std::collections::{BTreeSet, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use super::State;
use crate::directories::{Directories, mount_points};
use crate::error::{Result, SnapshotError};
use crate::fast::{FastLayers, link_of};
use crate::filter::Filter;
use crate::lowers::Lowers;
use crate::snapshot::{Kind, SnapshotId};
use crate::staged;

/// The thread that deletes.
#[derive(Debug)]
pub(super) struct Janitor {
    /// Holds one pending wake-up: several during a sweep cause one more sweep, not many.
    wake: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Janitor {
    pub(super) fn start<L: Lowers>(state: &Arc<State<L>>) -> Result<Self> {
        let (wake, woken) = sync_channel(1);
        let state = Arc::clone(state);
        let thread = std::thread::Builder::new()
            .name("janitor".to_owned())
            .spawn(move || work(&woken, || state.sweep()))
            .map_err(|source| SnapshotError::Io {
                doing: "start the thread that deletes below",
                path: PathBuf::from("snapshots"),
                source,
            })?;
        Ok(Self {
            wake: Some(wake),
            thread: Some(thread),
        })
    }

    pub(super) fn wake(&self) {
        if let Some(wake) = &self.wake {
            // Full: it is to sweep anyway.
            let _sent = wake.try_send(());
        }
    }
}

impl Drop for Janitor {
    fn drop(&mut self) {
        drop(self.wake.take());
        if let Some(thread) = self.thread.take() {
            // A sweep that panics does not end it.
            let _ended = thread.join();
        }
    }
}

/// Sweeps whenever it is woken, until nobody can wake it any more.
fn work(woken: &Receiver<()>, sweep: impl Fn() -> Result<()>) {
    while woken.recv().is_ok() {
        // After a panic its locks are let go, and the next sweep begins from what is on the disk.
        match catch_unwind(AssertUnwindSafe(&sweep)) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                log::warn!("cannot delete directories of removed snapshots yet: {error}");
            }
            Err(_) => log::error!(
                "deleting directories of removed snapshots panicked, which is a bug: trying again \
                 after the next removal"
            ),
        }
    }
}

impl<L: Lowers> State<L> {
    /// Brings memory, metadata and directories together after a start.
    pub(super) fn recover(&self) -> Result<()> {
        let mut highest = 0;
        let (bases, fast) = (self.bases(&self.catalog.places()?), self.fast_bases());
        for dirs in bases.iter().chain(&fast) {
            let ids = dirs.list().unwrap_or_default();
            highest = ids.into_iter().fold(highest, |high, id| high.max(id.0));
        }
        let next = self.catalog.next_id()?.max(highest + 1);
        self.next_id.store(next, Relaxed);
        self.sweep()?;
        for snapshot in self.walk(&Filter::default())? {
            // What has gone home takes room as long as somebody may have it mounted.
            if let Some(fast) = &self.fast
                && fast.directories().of(snapshot.id).is_dir()
            {
                fast.hold(snapshot.id, snapshot.usage.unwrap_or_default().bytes);
            }
            match self.present(&snapshot) {
                Err(error) => log::warn!("{error}"),
                Ok(()) if snapshot.kind == Kind::Committed => {
                    self.known.add(&snapshot);
                    if snapshot.block.is_none() {
                        self.lowers.committed(&self.layer(&snapshot));
                    }
                }
                Ok(()) => {}
            }
        }
        Ok(())
    }

    /// Deletes the directories without a record. A directory whose state is unknown is kept.
    pub(super) fn sweep(&self) -> Result<()> {
        let _one_at_a_time = self.sweeping.lock();
        let places = self.catalog.places()?;
        // Before the links go that tell of them.
        let fast = self.fast_bases();
        for dirs in self.bases(&places) {
            // In this order: whoever made a directory before the list was read is either still
            // reserved after it, or has written its record by the time the records are read.
            let Ok(mut ids) = dirs.list() else { continue };
            ids.retain({
                let reserved = self.reserved.lock().clone();
                move |id| !reserved.contains(id)
            });
            if ids.is_empty() {
                continue;
            }
            let tier = self.tier_of(&dirs);
            let places = self.catalog.places()?;
            ids.retain(|id| places.get(id) != Some(&tier));
            delete(&dirs, &ids)?;
        }
        fast.iter().try_for_each(|dirs| self.sweep_fast(dirs))?;
        staged::sweep(&self.root)?;
        for dirs in &fast {
            let here = staged::sweep(dirs)?;
            if let Some(ours) = self.fast.as_ref().filter(|ours| is_of(ours, dirs)) {
                ours.keep_staged(&here);
            }
        }
        Ok(())
    }

    /// Deletes the layers on a fast place that no snapshot has.
    fn sweep_fast(&self, dirs: &Directories) -> Result<()> {
        let Ok(mut ids) = dirs.list() else {
            return Ok(());
        };
        // A record goes before a directory here, and comes before it, unless a snapshot adopts what was
        // staged: until then its number is reserved.
        let reserved = self.reserved.lock().clone();
        let places = self.catalog.places()?;
        ids.retain(|id| !places.contains_key(id) && !reserved.contains(id));
        delete(dirs, &ids)?;
        if let Some(fast) = &self.fast {
            fast.keep_only(|id| places.contains_key(&id) || reserved.contains(&id));
        }
        Ok(())
    }

    /// Returns the fast places for layers: ours, and those that a former process had.
    fn fast_bases(&self) -> Vec<Directories> {
        let ours = self.fast.as_ref().map(|fast| fast.directories().clone());
        let ids = self.root.list().unwrap_or_default().into_iter();
        let former = ids.filter_map(|id| link_of(&self.root.of(id)));
        let mut all: Vec<Directories> = Vec::new();
        for dirs in ours.into_iter().chain(former) {
            if all.iter().all(|known| known.base() != dirs.base()) {
                all.push(dirs);
            }
        }
        all
    }

    /// Returns all the bases that have directories of ours, as far as we know.
    fn bases(&self, places: &HashMap<SnapshotId, Option<PathBuf>>) -> Vec<Directories> {
        let tiers: BTreeSet<_> = places.values().flatten().cloned().collect();
        let current = self.tier.as_ref().map(|tier| tier.directories());
        let known = [Some(&self.root), current];
        let others = tiers
            .iter()
            .filter(|tier| known.iter().flatten().all(|dirs| dirs.base() != *tier))
            .map(|tier| Directories::at(tier));
        known.into_iter().flatten().cloned().chain(others).collect()
    }
}

fn is_of(fast: &FastLayers, dirs: &Directories) -> bool {
    fast.directories().base() == dirs.base()
}

fn delete(dirs: &Directories, ids: &[SnapshotId]) -> Result<()> {
    if ids.is_empty() {
        return Ok(());
    }
    let points = mount_points()?;
    for id in ids {
        let dir = dirs.of(*id);
        if points.iter().any(|point| point.starts_with(&dir)) {
            let dir = dir.display();
            log::warn!("{dir} has no snapshot, but something is mounted in it; left alone");
        } else if let Err(error) = dirs.delete(*id) {
            log::warn!("{error}; it is tried again later");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[test]
    fn a_sweep_that_panics_is_followed_by_the_next() {
        let (wake, woken) = sync_channel(2);
        for _ in 0..2 {
            wake.send(()).unwrap();
        }
        drop(wake);
        let begun = AtomicU32::new(0);
        work(&woken, || {
            assert_ne!(begun.fetch_add(1, Relaxed), 0, "part of the test");
            Ok(())
        });
        assert_eq!(begun.into_inner(), 2);
    }
}
