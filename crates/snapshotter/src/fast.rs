//! A fast place for layers: how a layer gets there, and its contents.
//!
//! The path of a layer is `<root>/snapshots/<number>/fs`, wherever it is stored: for one on the fast place,
//! `<number>` is a symbolic link to `<fast>/snapshots/<number>`. That link is the only record. It
//! replaces the directory, or is replaced by it, by an atomic exchange of two names, so after a crash
//! one of the two is complete. containerd receives the path when it prepares the snapshot, and uses
//! it when it has the layer: until then the link may change.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use blocks::Digest;
use nix::sys::statvfs::statvfs;
use parking_lot::Mutex;

use crate::directories::{Directories, keep, owner};
use crate::error::{Result, SnapshotError};
use crate::snapshot::{Kind, SnapshotId};
use crate::staged::{self, StagedName};
use crate::tier::FastPlace;
use crate::unpacks::Unpacks;

/// The part of the file system that is free when nothing there is to blame on its size.
const ROOMY: u64 = 16;
/// Layers that did not fit which are remembered.
const MISFITS_MAX: usize = 1024;

/// A fast place for layers.
#[derive(Clone, Debug)]
pub struct FastConfig {
    /// The place.
    pub place: FastPlace,
    /// Most bytes of layers there.
    pub max_bytes: u64,
    /// Decides which layers go there.
    pub unpacks: Arc<dyn Unpacks>,
}

/// What became of a layer that was to go to the fast place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It will be unpacked there.
    Fast,
    /// There is no room for it: it will be unpacked on the disk.
    Full,
    /// Its directory has content already, or does not exist any more.
    Begun,
}

/// How full the fast place for layers is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FastUsage {
    /// Its directory.
    pub dir: PathBuf,
    /// The layers there, and those that are being unpacked there.
    pub layers: usize,
    /// The space that they use, or are expected to.
    pub used_bytes: u64,
    /// The maximum.
    pub max_bytes: u64,
}

/// The fast place for layers.
#[derive(Debug)]
pub struct FastLayers {
    root: Directories,
    dirs: Directories,
    max_bytes: u64,
    pub(crate) unpacks: Arc<dyn Unpacks>,
    /// The bytes of all layers there: used, or expected while they are unpacked.
    held: Mutex<Held>,
    /// Layers that took more than foreseen, and more than there was.
    misfits: Mutex<HashSet<Digest>>,
}

/// What is set aside, by whom.
#[derive(Debug, Default)]
struct Held {
    layers: HashMap<SnapshotId, u64>,
    /// Bytes reserved for layers that other processes unpack here.
    staged: HashMap<StagedName, u64>,
}

impl Held {
    fn sum(&self) -> u64 {
        let all = self.layers.values().chain(self.staged.values());
        all.fold(0u64, |sum, of| sum.saturating_add(*of))
    }
}

impl FastLayers {
    pub(crate) fn open(config: FastConfig, root: &Directories) -> Result<Self> {
        let dirs = config.place.open(root.base(), "layers", config.max_bytes)?;
        keeps_attributes(dirs.base())?;
        staged::open(&dirs)?;
        keep(&turning(root))?;
        Ok(Self {
            root: root.clone(),
            dirs,
            max_bytes: config.max_bytes,
            unpacks: config.unpacks,
            held: Mutex::default(),
            misfits: Mutex::default(),
        })
    }

    /// Makes a layer be unpacked here for which containerd has prepared the snapshot `id`, and which is
    /// expected to need `bytes`. To be called before it is being unpacked.
    ///
    /// # Errors
    /// If a directory cannot be created or exchanged: then it will be unpacked on the disk.
    pub fn take(&self, id: SnapshotId, layer: &Digest, bytes: u64) -> Result<Taken> {
        let dir = self.root.of(id);
        if link_of(&dir).is_some() || !is_empty(&self.root.fs(id)) {
            return Ok(Taken::Begun);
        }
        if self.misfits.lock().contains(layer) || !self.book(id, bytes)? {
            return Ok(Taken::Full);
        }
        let taken = self.turn_over(id);
        // Only what no link leads to: whatever went wrong, a layer may be there by now.
        if link_of(&dir).is_none() {
            self.let_go(id);
            drop(self.dirs.delete(id));
        }
        taken
    }

    /// Returns how full it is.
    #[must_use]
    pub fn usage(&self) -> FastUsage {
        let held = self.held.lock();
        FastUsage {
            dir: self.dirs.base().to_owned(),
            layers: held.layers.len() + held.staged.len(),
            used_bytes: held.sum(),
            max_bytes: self.max_bytes,
        }
    }

    pub(crate) fn directories(&self) -> &Directories {
        &self.dirs
    }

    /// Records the space that a layer uses here.
    pub(crate) fn hold(&self, id: SnapshotId, bytes: u64) {
        self.held.lock().layers.insert(id, bytes);
    }

    /// Forgets a layer that is not here any more.
    pub(crate) fn let_go(&self, id: SnapshotId) {
        self.held.lock().layers.remove(&id);
    }

    /// Forgets the layers that are not here any more.
    pub(crate) fn keep_only(&self, is_here: impl Fn(SnapshotId) -> bool) {
        self.held.lock().layers.retain(|id, _| is_here(*id));
    }

    /// Reserves space for a layer that is being unpacked in a directory staged here, `bytes` in total,
    /// and returns whether there was enough. A layer that grows calls this again: the reservation
    /// stays if there is no more.
    ///
    /// # Errors
    /// If the file system cannot be examined, or no such directory is staged here.
    pub fn book_staged(&self, name: &StagedName, bytes: u64) -> Result<bool> {
        // Whoever is gone would leave it booked.
        if staged::find(&self.dirs, name)?.is_none() {
            return Err(staged::not_staged(name.as_str()));
        }
        let available = self.available()?;
        let mut held = self.held.lock();
        let before = held.staged.get(name).copied().unwrap_or(0);
        let has_room = (held.sum() - before).saturating_add(bytes) <= self.max_bytes
            && bytes.saturating_sub(before) <= available;
        if has_room {
            held.staged.insert(name.clone(), bytes);
        }
        Ok(has_room)
    }

    /// Gives a staged directory to a snapshot, with the room that was set aside for it; returns whether
    /// it was staged here.
    pub(crate) fn adopt(&self, name: &StagedName, id: SnapshotId) -> Result<bool> {
        let Some(staged) = staged::find(&self.dirs, name)? else {
            return Ok(false);
        };
        let (to, link) = (self.dirs.of(id), self.root.of(id));
        fs::rename(&staged, &to).map_err(SnapshotError::io("adopt", &staged))?;
        {
            let mut held = self.held.lock();
            let bytes = held.staged.remove(name).unwrap_or(0);
            held.layers.insert(id, bytes);
        }
        symlink(&to, &link).map_err(SnapshotError::io("link", &link))?;
        Ok(true)
    }

    /// Releases the reservations of directories that are not staged here any more.
    pub(crate) fn keep_staged(&self, here: &[StagedName]) {
        self.held
            .lock()
            .staged
            .retain(|name, _| here.contains(name));
    }

    /// Notes that a layer could not be unpacked. If that may be for lack of space, it goes to the disk the
    /// next time.
    pub(crate) fn gave_up(&self, layer: Digest) {
        let is_tight =
            statvfs(self.dirs.base()).is_ok_and(|of| of.blocks_available() < of.blocks() / ROOMY);
        if is_tight {
            let mut misfits = self.misfits.lock();
            if misfits.len() == MISFITS_MAX {
                misfits.clear();
            }
            misfits.insert(layer);
        }
    }

    /// Sets room aside, if there is enough.
    fn book(&self, id: SnapshotId, bytes: u64) -> Result<bool> {
        let available = self.available()?;
        let mut held = self.held.lock();
        let has_room = held.sum().saturating_add(bytes) <= self.max_bytes && bytes <= available;
        if has_room {
            held.layers.insert(id, bytes);
        }
        Ok(has_room)
    }

    /// Returns the bytes that the file system has left.
    fn available(&self) -> Result<u64> {
        let base = self.dirs.base();
        let of = statvfs(base).map_err(|e| SnapshotError::io("look at", base)(e.into()))?;
        Ok(of.blocks_available() * of.fragment_size())
    }

    fn turn_over(&self, id: SnapshotId) -> Result<Taken> {
        let (dir, fs) = (self.root.of(id), self.root.fs(id));
        self.dirs.delete(id)?;
        self.dirs.create(id, Kind::Active, Some(owner(&fs)?))?;
        let spare = turning(&self.root).join(id.to_string());
        clear(&spare)?;
        symlink(self.dirs.of(id), &spare).map_err(SnapshotError::io("link", &spare))?;
        exchange(&spare, &dir)?;
        // Fails if somebody was faster, against all agreements: then what is there counts.
        let taken = match fs::remove_dir(spare.join("fs")) {
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => {
                exchange(&spare, &dir)?;
                Taken::Begun
            }
            _ => Taken::Fast,
        };
        if let Err(error) = clear(&spare) {
            log::warn!("{error}; it is tried again at the next start");
        }
        Ok(taken)
    }
}

/// Where names are made that are then exchanged with those of snapshots.
pub(crate) fn turning(root: &Directories) -> PathBuf {
    root.base().join("turning")
}

/// Returns the fast place that the directory of a snapshot is a link to; `None` for a link to another
/// snapshot's.
pub(crate) fn link_of(dir: &Path) -> Option<Directories> {
    let to = fs::read_link(dir).ok().filter(|to| to.is_absolute())?;
    Some(Directories::at(to.parent()?.parent()?))
}

/// Exchanges two names atomically.
pub(crate) fn exchange(one: &Path, other: &Path) -> Result<()> {
    rawio::rename::exchange(one, other).map_err(SnapshotError::io("exchange", other))
}

/// Deletes a tree, or a link, if there is one.
pub(crate) fn clear(path: &Path) -> Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(of) if of.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(SnapshotError::io("delete", path)(error))
        }
        _ => Ok(()),
    }
}

fn is_empty(dir: &Path) -> bool {
    fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_none())
}

/// Refuses a place that would lose attributes of files: containerd leaves out without a word to its
/// client what a file system does not take, and a tmpfs takes those of users since Linux 6.6.
fn keeps_attributes(base: &Path) -> Result<()> {
    let probe = base.join("attributes");
    let kept = fs::File::create(&probe).and_then(|_| {
        let dir = fs::File::open(base)?;
        [c"user.yolofs", c"trusted.yolofs"]
            .into_iter()
            .try_for_each(|name| rawio::xattr::set_at(&dir, b"attributes", name, b"1"))
    });
    let _gone = fs::remove_file(&probe);
    kept.map_err(|error| match error.kind() {
        ErrorKind::Unsupported => SnapshotError::io("keep the attributes of files in", base)(
            io::Error::new(ErrorKind::Unsupported, "a tmpfs can from Linux 6.6 on"),
        ),
        _ => SnapshotError::io("keep the attributes of files in", base)(error),
    })
}
