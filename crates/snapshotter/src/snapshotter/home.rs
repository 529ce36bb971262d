//! Moving layers from the fast place to the disk.
//!
//! A layer is copied, compared, flushed, and then replaces the link to it, by an atomic exchange of
//! names: later mounts use the copy. The original is freed when it cannot be mounted
//! any more.

use std::collections::HashSet;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;

use nix::sys::statvfs::statvfs;

use super::State;
use super::make::sync;
use crate::copy::copy_tree;
use crate::error::{Result, SnapshotError};
use crate::fast::{FastLayers, clear, exchange, link_of, turning};
use crate::filter::Filter;
use crate::lowers::Lowers;
use crate::pace::{Pace, turn};
use crate::same::check_same;
use crate::snapshot::{Kind, Snapshot, SnapshotId};

/// The file beside what a layer left: the number that the next snapshot had then. Those below may
/// have it mounted.
const LEFT: &str = "left";
/// What a copy leaves free on the disk, for containers write there, too: this part of it, or these
/// bytes if they are less.
const SPARED: u64 = 16;
const SPARED_MAX: u64 = 1 << 30;

impl<L: Lowers> State<L> {
    pub(super) fn bring_home(&self, pace: &dyn Pace) -> Result<usize> {
        let Some(fast) = self.fast.as_ref().filter(|fast| fast.usage().layers > 0) else {
            return Ok(0);
        };
        let (mut copied, mut failed) = (Vec::new(), None);
        for layer in self.away(fast)? {
            match self.copy_home(fast, &layer, pace) {
                Ok(()) => copied.push(layer),
                Err(SnapshotError::Stopped) => return Err(SnapshotError::Stopped),
                // It is to hinder no other, and not to fill the disk with half a copy.
                Err(error) => {
                    drop(clear(&self.spare(&layer)));
                    // Of one that was removed meanwhile, nothing is missing.
                    failed = failed.or(self.has(&layer).then_some(error));
                }
            }
        }
        if !copied.is_empty() {
            // What the exchange leads to must be on the disk before it is. Once for all of them: this
            // waits for what others have written, too.
            sync(&turning(&self.root))?;
        }
        let mut home = 0;
        for layer in &copied {
            home += usize::from(self.switch(layer, pace)?);
        }
        self.free(fast, pace)?;
        failed.map_or(Ok(home), Err)
    }

    /// Returns the layers that are on the fast place of ours, and whole.
    fn away(&self, fast: &FastLayers) -> Result<Vec<Snapshot>> {
        let mut all = self.walk(&Filter::default())?;
        all.retain(|snapshot| {
            let at = link_of(&self.root.of(snapshot.id));
            snapshot.kind == Kind::Committed
                && at.is_some_and(|at| at.base() == fast.directories().base())
                && self.present(snapshot).is_ok()
        });
        Ok(all)
    }

    /// Returns whether there is still a record of a layer.
    fn has(&self, layer: &Snapshot) -> bool {
        let found = self.catalog.get(&layer.name);
        found.is_ok_and(|found| found.id == layer.id)
    }

    /// Returns the name under which a layer's copy is made.
    fn spare(&self, layer: &Snapshot) -> PathBuf {
        turning(&self.root).join(layer.id.to_string())
    }

    fn copy_home(&self, fast: &FastLayers, layer: &Snapshot, pace: &dyn Pace) -> Result<()> {
        let (fs, spare) = (self.root.fs(layer.id), self.spare(layer));
        turn(pace, 0)?;
        clear(&spare)?;
        // It may have been home before the machine lost its power, and be mounted by others since.
        clear(&fast.directories().of(layer.id).join(LEFT))?;
        self.check_room(layer)?;
        let made = DirBuilder::new().mode(0o700).create(&spare);
        made.map_err(SnapshotError::io("make", &spare))?;
        copy_tree(&fs, &spare.join("fs"), pace)?;
        turn(pace, 0)?;
        check_same(&fs, &spare.join("fs"), pace)
    }

    /// Fails if the disk would be too full with a layer.
    fn check_room(&self, layer: &Snapshot) -> Result<()> {
        let base = self.root.base();
        let of = statvfs(base).map_err(|e| SnapshotError::io("look at", base)(e.into()))?;
        let spared = (of.blocks() * of.fragment_size() / SPARED).min(SPARED_MAX);
        let needed = layer.usage.unwrap_or_default().bytes.saturating_add(spared);
        if of.blocks_available() * of.fragment_size() >= needed {
            return Ok(());
        }
        let full = io::Error::new(
            io::ErrorKind::StorageFull,
            format!("no {needed} bytes are free on the disk; remove images there"),
        );
        Err(SnapshotError::io("bring a layer to", base)(full))
    }

    /// Has a copy take the place of the link to the layer; returns whether it did: not if the layer
    /// was removed meanwhile.
    fn switch(&self, layer: &Snapshot, pace: &dyn Pace) -> Result<bool> {
        let (dir, spare) = (self.root.of(layer.id), self.spare(layer));
        turn(pace, 0)?;
        let goes = {
            // Who deletes the link at this moment would find a directory.
            let _nobody_deletes = self.sweeping.lock();
            let goes = self.has(layer) && link_of(&dir).is_some();
            if goes {
                exchange(&spare, &dir)?;
            }
            goes
        };
        turn(pace, 0)?;
        clear(&spare)?;
        Ok(goes)
    }

    /// Frees what layers left, where no process can have it mounted.
    fn free(&self, fast: &FastLayers, pace: &dyn Pace) -> Result<()> {
        let all = self.walk(&Filter::default())?;
        let mut left = fast.directories().list()?;
        let committed = |id| move |of: &&Snapshot| of.id == id && of.kind == Kind::Committed;
        // All others are being unpacked, or garbage, or not home.
        left.retain(|id| {
            all.iter().any(|of| committed(*id)(&of)) && link_of(&self.root.of(*id)).is_none()
        });
        if left.is_empty() {
            return Ok(());
        }
        // Perhaps a former process made the exchange just before it died: it is to be on the disk
        // before anybody relies on it.
        turn(pace, 0)?;
        let names = self.root.base().join("snapshots");
        let flushed = File::open(&names).and_then(|dir| dir.sync_all());
        flushed.map_err(SnapshotError::io("flush", &names))?;
        for layer in left.iter().filter_map(|id| all.iter().find(committed(*id))) {
            let mark = fast.directories().of(layer.id).join(LEFT);
            match read_mark(&mark) {
                // Who serves it may have it open where it was, and give that to others.
                None if !self.lowers.follow(&self.layer(layer)) => {}
                None => {
                    turn(pace, 0)?;
                    match self.mark(&mark) {
                        Err(error) if self.has(layer) => return Err(error),
                        _ => {} // Removed meanwhile, or marked.
                    }
                }
                Some(before) if users_before(before, &all).contains(layer.name.as_str()) => {}
                Some(_) => {
                    turn(pace, 0)?;
                    let _one_at_a_time = self.sweeping.lock();
                    fast.directories().delete(layer.id)?;
                    fast.let_go(layer.id);
                }
            }
        }
        Ok(())
    }

    /// Notes that snapshots that are prepared from now on have the copy.
    fn mark(&self, mark: &PathBuf) -> Result<()> {
        let next = self.next_id.load(Relaxed);
        fs::write(mark, format!("{next}\n")).map_err(SnapshotError::io("write", mark))
    }
}

/// Returns the number in a mark that was written whole.
fn read_mark(mark: &PathBuf) -> Option<SnapshotId> {
    let text = fs::read_to_string(mark).ok()?;
    text.strip_suffix('\n')?.parse().ok().map(SnapshotId)
}

/// Returns the layers that snapshots below a number stand on, and may have mounted.
fn users_before(left: SnapshotId, all: &[Snapshot]) -> HashSet<&str> {
    let by_name = |name: &str| all.iter().find(|snapshot| snapshot.name == name);
    let mut used = HashSet::new();
    for user in all {
        if user.kind == Kind::Committed || user.id >= left {
            continue;
        }
        let mut next = user.parent.as_deref();
        while let Some(name) = next.filter(|name| used.insert(*name)) {
            next = by_name(name).and_then(|layer| layer.parent.as_deref());
        }
    }
    used
}
