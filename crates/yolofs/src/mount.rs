//! A file system in the kernel, from the first request to the last, all in one process.
//!
//! Two mounts of it exist. The *visible* one is at the target, for all users. The *private* one
//! is a detached copy that no path leads to: the prewarm walks through it and holds its descriptors in
//! it, so that neither ever makes an `umount` of the visible one fail. When the visible mount is
//! gone, for whatever reason, a watcher drops the private one; the session ends when the last user
//! is gone too, such as an overlay with the mount as a lower layer.

mod error;
mod watch;

use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use error::MountError;

use crate::connection::{Connection, Writes};
use crate::fs::{Counters, FileSystem};
use crate::serving::{DROP_PATIENCE, End, Inner, ServeOptions, Serving, State};
use crate::visible::{
    BUSY_RETRY, Busy, Itself, Layering, MountTarget, Mounter, Privileges, Readahead, Tried, Visible,
};
use watch::Watch;

/// How a file system is mounted.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// The directory to mount over.
    pub target: PathBuf,
    /// What the mount table shows as its source.
    pub source: String,
    /// How many threads serve requests. Two are enough: more gained nothing in measurements.
    pub threads: NonZeroUsize,
    /// How far the kernel reads ahead. Ignored by a file system that records: that reads nothing
    /// ahead.
    pub readahead: Readahead,
    /// Whether set-user-id bits and devices count.
    pub privileges: Privileges,
    /// Where the mount goes if something is mounted at the target already.
    pub layering: Layering,
    /// Mounts and unmounts it.
    pub mounter: Arc<dyn Mounter>,
}

impl MountOptions {
    /// Returns the options to mount over `target`, all others at their defaults.
    pub fn new(target: impl Into<PathBuf>, source: impl Into<String>) -> Self {
        Self {
            target: target.into(),
            source: source.into(),
            threads: const { NonZeroUsize::new(2).unwrap() },
            readahead: Readahead::default(),
            privileges: Privileges::default(),
            layering: Layering::default(),
            mounter: Arc::new(Itself),
        }
    }
}

/// A mounted file system. Dropping it unmounts it, lazily if it is in use.
#[derive(Debug)]
pub struct Mount {
    visible: Visible,
    mounter: Arc<dyn Mounter>,
    watch: Option<Watch>,
    // Dropped last: it waits for those who use the mount.
    serving: Serving,
}

impl Mount {
    /// Mounts a file system and serves it from threads of its own until it is unmounted.
    ///
    /// The target may be the source directory itself, if the source was opened before.
    ///
    /// # Errors
    /// If the process may not mount, or the target is no directory.
    pub fn start(fs: Arc<FileSystem>, options: &MountOptions) -> Result<Self, MountError> {
        let place = MountTarget::open(&options.target)?;
        let readahead = if fs.is_recording() {
            Readahead::Kib(0)
        } else {
            options.readahead
        };
        let writes = match fs.is_writable() {
            true => Writes::Allowed,
            false => Writes::Refused,
        };
        let (connection, detached) = Connection::open_for(&options.source, writes)?;
        if options.privileges == Privileges::Honoured {
            detached
                .honour_privileges()
                .map_err(MountError::step("honouring the privileges of files"))?;
        }
        let serve = ServeOptions {
            threads: options.threads,
            readahead,
            ..ServeOptions::default()
        };
        // Served before anybody sees it. From here on an error drops `detached`, which ends the
        // session and its threads.
        let serving = Serving::start(fs, &connection, None, &serve)?;
        drop(connection);
        let (visible, root) = place.attach(detached, options.layering, &*options.mounter)?;
        visible.set_readahead(readahead);
        let mut mount = Self {
            visible,
            mounter: Arc::clone(&options.mounter),
            watch: None,
            serving,
        };
        // From here on an error drops `mount`, which unmounts.
        mount.watch = Some(Watch::start(mount.visible.ids(), mount.state())?);
        let private = mount.visible.private(&root);
        // An open root of the visible mount would make it busy.
        drop(root);
        mount.state().set_private(private?);
        Ok(mount)
    }

    /// Returns the file system that is mounted.
    #[must_use]
    pub const fn file_system(&self) -> &Arc<FileSystem> {
        self.serving.file_system()
    }

    /// Returns where it is mounted: an absolute path without symbolic links.
    #[must_use]
    pub fn target(&self) -> &Path {
        self.visible.target()
    }

    /// Returns the counters of requests and responses.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.serving.counters()
    }

    /// Returns the root of the private mount, open as a path, or `None` when the visible mount is
    /// gone. Holding it keeps the session alive.
    #[must_use]
    pub fn dir_fd(&self) -> Option<Arc<OwnedFd>> {
        self.serving.dir_fd()
    }

    /// Returns whether the visible mount is there.
    #[must_use]
    pub fn visible(&self) -> bool {
        self.serving.visible()
    }

    /// Returns whether what the target's path leads to is this mount, and not another on top.
    #[must_use]
    pub fn is_on_top(&self) -> bool {
        self.visible.is_on_top()
    }

    /// Waits until the mount is over, and returns why.
    #[must_use]
    pub fn wait(&self) -> End {
        // Without a deadline it comes back only with an end.
        let end = self.state().wait_for(None, Inner::end);
        end.unwrap_or(End::SessionOver)
    }

    /// Returns why the mount is over, or `None` if it is not within `patience`.
    #[must_use]
    pub fn wait_for(&self, patience: Duration) -> Option<End> {
        let deadline = Instant::now() + patience;
        self.state().wait_for(Some(deadline), Inner::end)
    }

    /// Unmounts the visible mount, and releases the private one and everything in it.
    ///
    /// Users that remain, after [`Busy::Lazy`] or below an overlay, are still served.
    ///
    /// # Errors
    /// If the mount is in use until `patience` has passed, or another mount covers it.
    pub fn unmount(&self, busy: Busy, patience: Duration) -> Result<(), MountError> {
        let deadline = Instant::now() + patience;
        while self.visible() {
            match self.mounter.unmount(&self.visible, busy) {
                Tried::Unmounted => return self.await_gone(deadline, || MountError::Lost),
                // It may have gone just now.
                Tried::Covered => {
                    return self.await_gone(deadline, || MountError::Covered {
                        target: self.target().to_owned(),
                    });
                }
                Tried::InUse if Instant::now() < deadline => {
                    let retry = deadline.min(Instant::now() + BUSY_RETRY);
                    self.state().wait_for(Some(retry), Inner::gone);
                }
                Tried::InUse => return Err(self.not_unmounted(nix::errno::Errno::EBUSY.into())),
                Tried::Failed(error) => return Err(self.not_unmounted(error)),
            }
        }
        Ok(())
    }

    /// Waits until the last user is gone and every serving thread has ended. Returns whether
    /// that was within `patience`.
    #[must_use]
    pub fn wait_for_users(&self, patience: Duration) -> bool {
        self.serving.wait_for_users(patience)
    }

    /// Drops what the prewarm holds: pins and locked memory. Waits for a prewarm that is running.
    pub fn release(&self) {
        self.serving.release();
    }

    pub(crate) const fn serving(&self) -> &Serving {
        &self.serving
    }

    const fn state(&self) -> &Arc<State> {
        self.serving.state()
    }

    fn await_gone(
        &self,
        deadline: Instant,
        otherwise: impl FnOnce() -> MountError,
    ) -> Result<(), MountError> {
        let gone = self.state().wait_for(Some(deadline), Inner::gone);
        gone.ok_or_else(otherwise)
    }

    fn not_unmounted(&self, error: std::io::Error) -> MountError {
        MountError::unmount(self.target(), error)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Err(error) = self.unmount(Busy::Lazy, DROP_PATIENCE) {
            log::warn!("unmounting {}: {error}", self.target().display());
        }
        drop(self.watch.take());
    }
}
