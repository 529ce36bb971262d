//! The snapshotter itself: containerd's overlayfs snapshotter, with a seam for the lower layers.
//!
//! Its calls block and do not use gRPC; [`service`](crate::service) serves it at a socket.

mod home;
mod janitor;
mod make;
mod place;
mod remote;
mod reuse;
mod written;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;

use crate::block::BlockImages;
use crate::block_layer::{BLOB_NAME, BlockLayer};
use crate::catalog::{Catalog, LabelChange};
use crate::directories::{CATALOG, Directories};
use crate::disk_usage::disk_usage;
use crate::error::{Result, SnapshotError};
use crate::fast::{FastConfig, FastLayers, clear, turning};
use crate::filter::Filter;
use crate::known::{KnownLayers, Unpacker};
use crate::lowers::{LayerDir, Lowers};
use crate::overlay::{Mount, OverlayOptions, mountable};
use crate::own_device::COMMITTED;
use crate::pace::Pace;
use crate::snapshot::{Kind, Labels, Snapshot, SnapshotId, Usage};
use crate::staged;
use crate::tier::{Tier, UpperConfig, UpperUsage};
use crate::unpacks::{Unpack, unpacks};
use janitor::Janitor;

/// Where the snapshots are kept, and how.
#[derive(Clone, Debug)]
pub struct Config {
    /// The directory of everything: `metadata.redb`, `snapshots/`, perhaps `upper/`.
    pub root: PathBuf,
    /// A fast tier for upper directories.
    pub upper: Option<UpperConfig>,
    /// A fast place for layers.
    pub layers: Option<FastConfig>,
    /// Unpacks layers; `None` for one without capabilities.
    pub unpacker: Option<Arc<dyn Unpacker>>,
    /// Makes file systems of block images; without it their layers are unpacked as all others.
    pub blocks: Option<Arc<dyn BlockImages>>,
}

/// The directories in which layers are staged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Staging {
    /// On the disk of the root.
    pub disk: PathBuf,
    /// On the fast place, if there is one: only with room that was
    /// [booked](crate::FastLayers::book_staged).
    pub fast: Option<PathBuf>,
}

/// A snapshotter on one root. Only one process can have it open.
#[derive(Debug)]
pub struct Snapshotter<L: Lowers> {
    state: Arc<State<L>>,
    /// Deletes directories in the background; dropped first, so that it ends with us.
    janitor: Janitor,
}

#[derive(Debug)]
struct State<L> {
    catalog: Catalog,
    root: Directories,
    tier: Option<Tier>,
    fast: Option<Arc<FastLayers>>,
    known: KnownLayers,
    unpacker: Option<Arc<dyn Unpacker>>,
    blocks: Option<Arc<dyn BlockImages>>,
    lowers: L,
    options: OverlayOptions,
    next_id: AtomicU64,
    /// The numbers whose directories are being filled: a record may follow.
    reserved: Mutex<HashSet<SnapshotId>>,
    /// Held while directories are deleted.
    sweeping: Mutex<()>,
}

impl<L: Lowers> Snapshotter<L> {
    /// Opens the root of `config`, or creates it, and recovers from an unclean end of the former
    /// process: directories without a record are deleted, snapshots whose directories are missing are
    /// reported, and one bad snapshot does not affect others.
    ///
    /// # Errors
    /// If the root cannot be created or its metadata cannot be opened: another version's format, a
    /// damaged file, or a lock of another process.
    pub fn open(config: Config, lowers: L) -> Result<Self> {
        mountable(&config.root)?;
        let root = Directories::open(&config.root)?;
        root.check_records()?;
        let catalog = Catalog::open(&config.root.join(CATALOG))?;
        staged::open(&root)?;
        let tier = config.upper.map(|upper| Tier::open(upper, &config.root));
        // What a former process left there leads nowhere. Without the fast place, too: it may be copies
        // that were not finished.
        clear(&turning(&root))?;
        let fast = config.layers.map(|layers| FastLayers::open(layers, &root));
        let state = Arc::new(State {
            next_id: AtomicU64::new(1),
            catalog,
            root,
            tier: tier.transpose()?,
            fast: fast.transpose()?.map(Arc::new),
            known: KnownLayers::default(),
            unpacker: config.unpacker,
            blocks: config.blocks,
            lowers,
            options: OverlayOptions::of_this_kernel(),
            reserved: Mutex::default(),
            sweeping: Mutex::default(),
        });
        state.recover()?;
        Ok(Self {
            janitor: Janitor::start(&state)?,
            state,
        })
    }

    /// Returns the directory of the snapshots.
    #[must_use]
    pub fn root(&self) -> &Path {
        self.state.root.base()
    }

    /// Returns the server of the layers.
    #[must_use]
    pub fn lowers(&self) -> &L {
        &self.state.lowers
    }

    /// Returns how full the fast tier is, if there is one.
    ///
    /// # Errors
    /// If it cannot be looked at.
    pub fn upper(&self) -> Result<Option<UpperUsage>> {
        self.state.tier.as_ref().map(Tier::usage).transpose()
    }

    /// Returns the fast place for layers, if there is one.
    #[must_use]
    pub fn fast_layers(&self) -> Option<&Arc<FastLayers>> {
        self.state.fast.as_ref()
    }

    /// Returns where layers may be [staged](crate::Staged) that a snapshot is to adopt, and deletes
    /// staged layers of dead processes in the background.
    #[must_use]
    pub fn staging(&self) -> Staging {
        self.janitor.wake();
        Staging {
            disk: staged::staging(&self.state.root),
            fast: self
                .state
                .fast
                .as_ref()
                .map(|fast| staged::staging(fast.directories())),
        }
    }

    /// Returns how many layers of an image exist in any namespace, counted from the lowest, given their chain IDs. A
    /// client that prepares these one after another is told that they exist.
    #[must_use]
    pub fn count_known(&self, chains: &[String]) -> usize {
        self.state.count_known(chains)
    }

    /// Returns the snapshot `key`.
    ///
    /// # Errors
    /// If there is none, or the metadata cannot be read.
    pub fn stat(&self, key: &str) -> Result<Snapshot> {
        self.state.catalog.get(key)
    }

    /// Returns the snapshots that `filters` match, in the order of their names.
    ///
    /// # Errors
    /// If a filter is bad, or the metadata cannot be read.
    pub fn walk(&self, filters: &[String]) -> Result<Vec<Snapshot>> {
        self.state.walk(&Filter::parse(filters)?)
    }

    /// Changes the labels of the snapshot `key` that `paths` name (`labels`, `labels.x`), or all
    /// of them.
    ///
    /// # Errors
    /// If there is no such snapshot, or a path is not of labels.
    pub fn update(&self, key: &str, mut labels: Labels, paths: &[String]) -> Result<Snapshot> {
        if paths.is_empty() || paths.iter().any(|path| path == "labels") {
            refuse_others(key, paths)?;
            return self
                .state
                .catalog
                .update(key, &LabelChange::Replace(labels));
        }
        refuse_others(key, paths)?;
        let named = paths.iter().filter_map(|path| path.strip_prefix("labels."));
        let named = named.map(|label| (label.to_owned(), labels.remove(label).unwrap_or_default()));
        self.state
            .catalog
            .update(key, &LabelChange::Set(named.collect()))
    }

    /// Returns the disk usage of the snapshot `key` without its parents. For an active one it is
    /// counted now.
    ///
    /// # Errors
    /// If there is none, or its directory cannot be read.
    pub fn usage(&self, key: &str) -> Result<Usage> {
        let snapshot = self.state.catalog.get(key)?;
        match (snapshot.kind, snapshot.usage) {
            (Kind::Active, _) if snapshot.device.is_some() => self.state.device_usage(&snapshot),
            (Kind::Active, _) => disk_usage(&self.state.fs(&snapshot)),
            (_, usage) => Ok(usage.unwrap_or_default()),
        }
    }

    /// Makes an active snapshot `key` on `parent`, and returns its mounts.
    ///
    /// # Errors
    /// If the key exists, the parent does not exist or is not committed, or there is no space.
    pub fn prepare(&self, key: &str, parent: Option<&str>, labels: Labels) -> Result<Vec<Mount>> {
        self.state.create(Kind::Active, key, parent, labels)
    }

    /// Makes a read-only snapshot `key` of `parent`, and returns what shows it.
    ///
    /// # Errors
    /// As [`prepare`](Self::prepare).
    pub fn view(&self, key: &str, parent: Option<&str>, labels: Labels) -> Result<Vec<Mount>> {
        self.state.create(Kind::View, key, parent, labels)
    }

    /// Returns the mounts of the active snapshot or view `key`.
    ///
    /// # Errors
    /// If there is none, it is committed, or a directory of it is missing.
    pub fn mounts(&self, key: &str) -> Result<Vec<Mount>> {
        let stack = self.state.catalog.stack(key)?;
        if stack.snapshot.kind == Kind::Committed {
            return Err(SnapshotError::WrongKind {
                key: key.to_owned(),
                kind: Kind::Committed,
                needed: "only an active one or a view can be mounted",
            });
        }
        self.state.present(&stack.snapshot)?;
        self.state.mounts(&stack)
    }

    /// Makes the active snapshot `key` the layer `name`, which never changes again.
    ///
    /// # Errors
    /// If there is no such snapshot, it is not active, the name is taken, or its directory is lost
    /// or cannot be moved to the disk.
    pub fn commit(&self, name: &str, key: &str, labels: Labels) -> Result<()> {
        self.commit_on(name, key, None, labels)
    }

    /// Makes the active snapshot `key` the layer `name` with the parent `parent`, if it was
    /// made without one: layers that are unpacked in parallel get their parents when they are committed.
    ///
    /// # Errors
    /// As [`commit`](Self::commit), and if the snapshot has another parent, or this one does not exist or is
    /// not committed.
    pub fn commit_on(
        &self,
        name: &str,
        key: &str,
        parent: Option<&str>,
        labels: Labels,
    ) -> Result<()> {
        let active = self.state.catalog.check_commit(name, key, parent)?;
        self.state.present(&active)?;
        let held = self.state.settle(&active, name)?;
        let (sealed, sealing) = self.state.seal(&active, name)?.unzip();
        let dir = self.state.root.fs(active.id);
        // What it shares is the other's.
        let usage = match active.shares {
            Some(_) => Usage::default(),
            None => disk_usage(&dir)?,
        };
        let mut labels = labels;
        if sealed.is_some() {
            let blob = dir.join(BLOB_NAME).display().to_string();
            labels.insert(COMMITTED.to_owned(), blob);
        }
        let found = match (&self.state.blocks, &active.block) {
            _ if sealed.is_some() => sealed,
            (Some(_), None) if unpacks(key, &labels) => BlockLayer::unpacked(&dir),
            _ => None,
        };
        let committed =
            self.state
                .catalog
                .commit((name, key), parent, labels, usage, found.as_ref())?;
        self.state.end_device(&active);
        drop((held, sealing));
        self.state.known.add(&committed);
        if let Some(fast) = &self.state.fast {
            fast.unpacks.ended(committed.id);
            if self.state.is_fast(committed.id) {
                fast.hold(committed.id, usage.bytes);
            }
        }
        if active.tier.is_some() {
            self.janitor.wake();
        }
        if committed.block.is_none() {
            self.state.lowers.committed(&LayerDir {
                id: committed.id,
                name: committed.name,
                dir,
            });
        }
        Ok(())
    }

    /// Removes the snapshot `key`. Its directory is deleted in the background.
    ///
    /// # Errors
    /// If there is none, or it has children.
    pub fn remove(&self, key: &str) -> Result<()> {
        let removed = self.state.catalog.remove(key)?;
        self.state.known.remove(&removed);
        self.state.lowers.removed(removed.id);
        self.state.end_device(&removed);
        if let Some(blocks) = self
            .state
            .blocks
            .as_ref()
            .filter(|_| removed.block.is_some())
        {
            blocks.removed(removed.id);
        }
        if let Some(fast) = &self.state.fast {
            fast.unpacks.ended(removed.id);
            let unpack = Unpack::of(&removed).filter(|_| removed.kind == Kind::Active);
            if let Some(unpack) = unpack.filter(|_| self.state.is_fast(removed.id)) {
                fast.gave_up(unpack.chain);
            }
        }
        self.janitor.wake();
        Ok(())
    }

    /// Moves layers from the fast place to the disk, one after another, and frees space that is not used
    /// there any more. Returns the number of layers moved. Whenever it stops, each layer is complete in one place.
    ///
    /// # Errors
    /// If `pace` stops it, a layer cannot be copied, or the metadata cannot be read.
    pub fn bring_home(&self, pace: &dyn Pace) -> Result<usize> {
        self.state.bring_home(pace)
    }

    /// Deletes the directories without a record, now.
    ///
    /// # Errors
    /// If the metadata cannot be read: then no directory counts as garbage. A directory
    /// that cannot be deleted is logged and left for the next time.
    pub fn cleanup(&self) -> Result<()> {
        self.state.sweep()
    }
}

/// Refuses paths of what is not a label.
fn refuse_others(key: &str, paths: &[String]) -> Result<()> {
    let is_label = |path: &&String| *path == "labels" || path.starts_with("labels.");
    match paths.iter().find(|path| !is_label(path)) {
        None => Ok(()),
        Some(field) => Err(SnapshotError::Immutable {
            key: key.to_owned(),
            field: field.clone(),
        }),
    }
}
