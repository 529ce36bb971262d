//! A fast place for the upper directories of containers: a tmpfs, or a directory on a fast disk.
//!
//! A new container writes before it is ready, and on a busy disk each of these writes waits. Layers
//! that are being unpacked stay on the disk: they are to stay anyway.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::mount::{MsFlags, mount};
use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use nix::sys::statvfs::statvfs;
use parking_lot::Mutex;

use crate::directories::Directories;
use crate::disk_usage::disk_usage;
use crate::error::{Result, SnapshotError};
use crate::overlay::mountable;

/// The part of a tier that is kept free: what runs there already may still grow.
const HEADROOM: u64 = 16;
/// How long a count of a directory's bytes is believed: it looks at every file.
const COUNT_FOR: Duration = Duration::from_secs(1);

/// Where a fast place is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FastPlace {
    /// A tmpfs of our own in the root.
    Tmpfs,
    /// A directory that the user knows to be fast.
    Directory(PathBuf),
}

impl FastPlace {
    /// Opens the directories there; of a tmpfs, those at `name` in `root`, where it is mounted
    /// unless a former process did.
    pub(crate) fn open(&self, root: &Path, name: &str, max_bytes: u64) -> Result<Directories> {
        let base = match self {
            Self::Tmpfs => root.join(name),
            Self::Directory(dir) => dir.clone(),
        };
        mountable(&base)?;
        rawio::private::make_dir(&base).map_err(SnapshotError::io("make", &base))?;
        if *self == Self::Tmpfs {
            mount_tmpfs(&base, name, max_bytes)?;
        }
        Directories::open(&base)
    }
}

/// What happens when the tier is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// Prepare fails with an error.
    Refuse,
    /// The snapshot goes to the root's disk.
    Spill,
}

/// A fast tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpperConfig {
    /// The place.
    pub place: FastPlace,
    /// The maximum size.
    pub max_bytes: u64,
    /// What happens when it is full.
    pub when_full: WhenFull,
}

/// How full a fast tier is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpperUsage {
    /// Its directory.
    pub dir: PathBuf,
    /// Bytes in use.
    pub used_bytes: u64,
    /// The maximum.
    pub max_bytes: u64,
}

/// An open tier.
#[derive(Debug)]
pub(crate) struct Tier {
    dirs: Directories,
    config: UpperConfig,
    counted: Mutex<Option<(Instant, u64)>>,
}

impl Tier {
    /// Opens the tier of `config`; mounts its tmpfs unless a former process did.
    pub(crate) fn open(config: UpperConfig, root: &Path) -> Result<Self> {
        Ok(Self {
            dirs: config.place.open(root, "upper", config.max_bytes)?,
            config,
            counted: Mutex::new(None),
        })
    }

    /// Returns how full it is.
    pub(crate) fn usage(&self) -> Result<UpperUsage> {
        Ok(UpperUsage {
            dir: self.dirs.base().to_owned(),
            used_bytes: self.used()?,
            max_bytes: self.config.max_bytes,
        })
    }

    pub(crate) fn directories(&self) -> &Directories {
        &self.dirs
    }

    /// Returns the directories for one more snapshot; `None` if it goes to the disk.
    pub(crate) fn admit(&self) -> Result<Option<&Directories>> {
        let max = self.config.max_bytes;
        let used = self.used()?;
        if used < max - max / HEADROOM {
            return Ok(Some(&self.dirs));
        }
        match self.config.when_full {
            WhenFull::Spill => Ok(None),
            WhenFull::Refuse => Err(SnapshotError::UpperFull {
                dir: self.dirs.base().to_owned(),
                used,
                max,
            }),
        }
    }

    fn used(&self) -> Result<u64> {
        let base = self.dirs.base();
        if self.config.place == FastPlace::Tmpfs {
            let of = statvfs(base).map_err(|e| SnapshotError::io("look at", base)(e.into()))?;
            return Ok((of.blocks() - of.blocks_free()) * of.fragment_size());
        }
        let believed = *self.counted.lock();
        if let Some((at, bytes)) = believed
            && at.elapsed() < COUNT_FOR
        {
            return Ok(bytes);
        }
        let bytes = disk_usage(base)?.bytes;
        *self.counted.lock() = Some((Instant::now(), bytes));
        Ok(bytes)
    }
}

/// Mounts a tmpfs of `max_bytes` at `dir`, or gives the one that is there this size.
fn mount_tmpfs(dir: &Path, name: &str, max_bytes: u64) -> Result<()> {
    let failed = |error: nix::Error| SnapshotError::io("mount a tmpfs at", dir)(error.into());
    let there = statfs(dir).map_err(failed)?.filesystem_type() == TMPFS_MAGIC
        && crate::directories::is_mount_point(dir)?;
    let flags = if there {
        MsFlags::MS_REMOUNT
    } else {
        MsFlags::empty()
    };
    let options = format!("mode=0700,size={max_bytes}");
    mount(
        Some(format!("yolofs-{name}").as_str()),
        dir,
        Some("tmpfs"),
        flags,
        Some(options.as_str()),
    )
    .map_err(failed)
}
