//! The mount that everybody sees.

mod table;

mod mounter;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::mount::{MntFlags, umount2};
use nix::sys::stat::Mode as FileMode;
pub use rawio::mount::MountIds;
use rawio::mount::{DetachedMount, mount_ids};

pub use table::MountTable;
pub(crate) use table::Table;

use crate::control::Control;
use crate::mount::MountError;

pub use mounter::{Itself, Mounter};

/// How often an unmount of a mount in use is tried again: the kernel sends no event when a mount is
/// no longer in use.
pub(crate) const BUSY_RETRY: Duration = Duration::from_millis(20);

/// How far the kernel reads ahead in files that are read in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Readahead {
    /// What the kernel does by default: 128 KiB.
    #[default]
    Kernel,
    /// So many KiB; 0 reads exactly what was asked for.
    Kib(u32),
}

impl Readahead {
    pub(crate) const fn bytes(self) -> Option<u32> {
        match self {
            Self::Kernel => None,
            Self::Kib(kib) => Some(kib.saturating_mul(1024)),
        }
    }
}

/// Whether files of a mount can be more than files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Privileges {
    /// Set-user-id bits, file capabilities and devices count for nothing (`nosuid,nodev`).
    #[default]
    Ignored,
    /// They count, as in the source: for trees that somebody vouches for, such as the layers of
    /// containers.
    Honoured,
}

/// Where a mount goes at a target that has one already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layering {
    /// Over it.
    #[default]
    Over,
    /// Below the topmost one, to take its place when that is unmounted (Linux 6.5).
    Beneath,
}

/// What to do about a mount that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Busy {
    /// Wait until it is not.
    Wait,
    /// Take it out of the tree of files now; those who use it keep it.
    Lazy,
}

/// A mount at its place. Dropping it unmounts nothing.
///
/// Nothing here asks the file system itself, so that all of it works on a mount that nobody
/// serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visible {
    target: PathBuf,
    ids: MountIds,
}

impl Visible {
    /// Puts a mount over `target`, and returns with it the root of its private copy, which no
    /// path leads to.
    ///
    /// The target may be the source directory itself, if the source was opened before. As long as
    /// somebody holds the private root, the file system lives and its device number is given to
    /// no other.
    ///
    /// # Errors
    /// If the target is no directory, or the process may not mount.
    pub fn attach(detached: DetachedMount, target: &Path) -> Result<(Self, OwnedFd), MountError> {
        let place = MountTarget::open(target)?;
        let (visible, root) = place.attach(detached, Layering::Over, &Itself)?;
        match visible.private(&root) {
            Ok(private) => Ok((visible, private)),
            Err(error) => {
                // Whatever hinders this is the lesser trouble.
                let _undone = umount2(&visible.target, MntFlags::MNT_DETACH);
                Err(error)
            }
        }
    }

    /// Returns the mount that was attached earlier or elsewhere, found again by its ids. It may be
    /// gone by now: [`Visible::is_listed`] tells, as long as the private root is held.
    #[must_use]
    pub const fn resume(target: PathBuf, ids: MountIds) -> Self {
        Self { target, ids }
    }

    /// Returns where it is: an absolute path without symbolic links.
    #[must_use]
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// Returns what tells it from all other mounts.
    #[must_use]
    pub const fn ids(&self) -> MountIds {
        self.ids
    }

    /// Returns whether a table lists the mount, wherever.
    #[must_use]
    pub fn is_listed(&self, table: &MountTable) -> bool {
        table.lists(self.ids)
    }

    /// Returns whether what the target's path leads to is this mount, and not another on top.
    #[must_use]
    pub fn is_on_top(&self) -> bool {
        let ids = open_dir(&self.target).and_then(|dir| mount_ids(dir.as_fd()));
        ids.is_ok_and(|ids| ids == self.ids)
    }

    /// Sets how far the kernel reads ahead in all files opened from now on. To be called when the
    /// first server has answered: that answer can only make it less than the kernel's default.
    /// What hinders it is logged, and costs speed only.
    pub fn set_readahead(&self, readahead: Readahead) {
        let Readahead::Kib(kib) = readahead else {
            return;
        };
        let MountIds { major, minor, .. } = self.ids;
        let path = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
        if let Err(error) = std::fs::write(&path, kib.to_string()) {
            log::warn!("readahead stays as it is: writing {path}: {error}");
        }
    }

    /// Unmounts. A mount that is gone already is no error.
    ///
    /// Users that remain, after [`Busy::Lazy`] or below an overlay, keep the file system.
    ///
    /// # Errors
    /// If the mount is in use until `patience` has passed, or another mount lies on top of it.
    pub fn unmount(&self, busy: Busy, patience: Duration) -> Result<(), MountError> {
        let deadline = Instant::now() + patience;
        loop {
            let table = MountTable::read().map_err(MountError::step("reading the mount table"))?;
            if !self.is_listed(&table) {
                return Ok(());
            }
            match self.try_unmount(busy) {
                Tried::Unmounted => return Ok(()),
                Tried::InUse if Instant::now() < deadline => std::thread::sleep(BUSY_RETRY),
                // It may have gone since the table was read.
                Tried::Covered if Instant::now() < deadline => std::thread::sleep(BUSY_RETRY),
                Tried::InUse => return Err(MountError::unmount(&self.target, Errno::EBUSY.into())),
                Tried::Covered => {
                    return Err(MountError::Covered {
                        target: self.target.clone(),
                    });
                }
                Tried::Failed(error) => return Err(MountError::unmount(&self.target, error)),
            }
        }
    }

    /// Tries once to unmount. No other mount is removed.
    #[must_use]
    pub fn try_unmount(&self, busy: Busy) -> Tried {
        let flags = match busy {
            Busy::Wait => MntFlags::UMOUNT_NOFOLLOW,
            Busy::Lazy => MntFlags::UMOUNT_NOFOLLOW | MntFlags::MNT_DETACH,
        };
        if !self.is_on_top() {
            return Tried::Covered;
        }
        match umount2(&self.target, flags) {
            Ok(()) => Tried::Unmounted,
            Err(Errno::EBUSY) => Tried::InUse,
            Err(errno) => Tried::Failed(errno.into()),
        }
    }

    /// Ends the file system for good, whoever serves or uses it: every request, waiting or to
    /// come, fails. The mount stays until it is unmounted.
    ///
    /// To be called only while the private root is held, which keeps the device number ours.
    ///
    /// # Errors
    /// If the kernel has no control file system for FUSE, or the process may not.
    pub fn abort(&self) -> io::Result<()> {
        match Control::open()?.end_switch(self.ids) {
            Ok(switch) => switch.throw(),
            // Nothing is there to be aborted.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Returns a copy of the mount at `root` that no path leads to. Linux before 6.15 cannot copy
    /// a detached mount, so it is a copy of the visible one, not the reverse.
    pub(crate) fn private(&self, root: &OwnedFd) -> Result<OwnedFd, MountError> {
        DetachedMount::copy_of(root.as_fd())
            .map(OwnedFd::from)
            .map_err(MountError::step("making the private mount"))
    }
}

/// What became of an attempt to unmount.
#[derive(Debug)]
pub enum Tried {
    /// It is no longer at its place.
    Unmounted,
    /// Somebody uses it.
    InUse,
    /// Another mount lies on top, or it is gone.
    Covered,
    /// The system refuses.
    Failed(io::Error),
}

/// A directory to mount over, found before anything is made.
#[derive(Debug)]
pub struct MountTarget {
    target: PathBuf,
    spot: OwnedFd,
}

impl MountTarget {
    /// Finds the directory.
    ///
    /// # Errors
    /// If there is none.
    pub fn open(target: &Path) -> Result<Self, MountError> {
        let found = target.canonicalize();
        let target = found.map_err(|error| MountError::target(target, error))?;
        let spot = open_dir(&target).map_err(|error| MountError::target(&target, error))?;
        Ok(Self { target, spot })
    }

    /// Returns its path: an absolute one without symbolic links.
    #[must_use]
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// Returns the directory, open as a path.
    #[must_use]
    pub fn spot(&self) -> BorrowedFd<'_> {
        self.spot.as_fd()
    }

    /// Attaches a mount here, and returns it with the descriptor of its root.
    pub(crate) fn attach(
        self,
        detached: DetachedMount,
        layering: Layering,
        mounter: &dyn Mounter,
    ) -> Result<(Visible, OwnedFd), MountError> {
        let ids = mount_ids(detached.as_fd()).map_err(MountError::step("finding the mount"))?;
        mounter
            .attach(detached.as_fd(), &self, layering)
            .map_err(|error| MountError::target(&self.target, error))?;
        let target = self.target;
        Ok((Visible { target, ids }, detached.into()))
    }
}

fn open_dir(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    Ok(open(path, flags, FileMode::empty())?)
}
