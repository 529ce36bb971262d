//! A file system in the kernel, from the first request to the last.
//!
//! Two mounts of it exist. The *visible* one lies at the target, for everybody. The *private* one
//! is a detached copy that no path leads to: the prewarm walks through it and holds its pins in
//! it, so that neither ever makes an `umount` of the visible one fail. When the visible mount is
//! gone, whoever removed it, a watcher drops the private one; the session ends when the last user
//! is gone too, such as an overlay that has the mount below it.

mod error;
mod invalidate;
mod session;
mod visible;
mod watch;

use std::fs::OpenOptions;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::fcntl::{OFlag, open};
use nix::mount::{MntFlags, umount2};
use nix::sys::stat::Mode as FileMode;
use nix::unistd::{getegid, geteuid};
use parking_lot::{Condvar, Mutex};
use rawio::mount::{DetachedMount, MountContext, mount_id};

pub use error::MountError;

use crate::fs::{Counters, FileSystem};
use crate::fuse::Adapter;
use crate::notify::Notifier;
use crate::prewarm::Held;
use invalidate::Invalidator;
use session::Session;
use visible::MountRecord;
use watch::Watch;

/// How long a thread that drops a [`Mount`] waits for its users before it leaves them alone.
const DROP_PATIENCE: Duration = Duration::from_secs(2);

/// How often an unmount of a mount in use is tried again.
const BUSY_RETRY: Duration = Duration::from_millis(20);

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
    const fn bytes(self) -> Option<u32> {
        match self {
            Self::Kernel => None,
            Self::Kib(kib) => Some(kib.saturating_mul(1024)),
        }
    }
}

/// How a file system is mounted.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// The directory to mount over.
    pub target: PathBuf,
    /// What the mount table shows as its source.
    pub source: String,
    /// How many threads serve requests. Two are enough: more gained nothing in measurements.
    pub threads: NonZeroUsize,
    /// How far the kernel reads ahead. A file system that records reads nothing ahead, whatever
    /// is said here.
    pub readahead: Readahead,
}

impl MountOptions {
    /// Returns the options to mount over `target`, all others at their defaults.
    pub fn new(target: impl Into<PathBuf>, source: impl Into<String>) -> Self {
        Self {
            target: target.into(),
            source: source.into(),
            threads: const { NonZeroUsize::new(2).unwrap() },
            readahead: Readahead::default(),
        }
    }
}

/// What to do about a mount that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Busy {
    /// Wait until it is not.
    Wait,
    /// Take it out of the tree of files now; those who use it keep it.
    Lazy,
}

/// Why a mount is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The visible mount is gone: somebody unmounted it. Users that remain, such as an overlay,
    /// are still served.
    Unmounted,
    /// The session is over: no users remain, or somebody aborted the connection.
    SessionOver,
    /// The session failed with this message; the mount answers nothing any more.
    Failed(String),
}

/// A mounted file system. Dropping it unmounts it, lazily if it is in use.
#[derive(Debug)]
pub struct Mount {
    fs: Arc<FileSystem>,
    target: PathBuf,
    record: MountRecord,
    notifier: Arc<Notifier>,
    state: Arc<State>,
    watch: Option<Watch>,
    invalidator: Option<Invalidator>,
    session: Option<Session>,
}

/// What the threads of a mount tell each other.
#[derive(Debug, Default)]
pub(crate) struct State {
    inner: Mutex<Inner>,
    changed: Condvar,
    /// Locked for as long as a prewarm runs; never while `inner` is.
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Inner {
    private: Option<Arc<OwnedFd>>,
    visible_gone: bool,
    session_end: Option<End>,
}

impl Inner {
    fn end(&self) -> Option<End> {
        let gone = self.visible_gone.then_some(End::Unmounted);
        self.session_end.clone().or(gone)
    }

    fn gone(&self) -> Option<()> {
        self.visible_gone.then_some(())
    }
}

impl State {
    /// Waits until `ready` gives something, or until the deadline.
    fn wait_for<T>(
        &self,
        deadline: Option<Instant>,
        ready: impl Fn(&Inner) -> Option<T>,
    ) -> Option<T> {
        let mut inner = self.inner.lock();
        loop {
            if let Some(value) = ready(&inner) {
                return Some(value);
            }
            match deadline {
                Some(deadline) => {
                    if self.changed.wait_until(&mut inner, deadline).timed_out() {
                        return ready(&inner);
                    }
                }
                None => self.changed.wait(&mut inner),
            }
        }
    }

    fn session_ended(&self, end: End) {
        self.inner.lock().session_end = Some(end);
        self.changed.notify_all();
    }

    /// Notes that the visible mount is gone, and tells whoever waits for that. Returns the private
    /// one, to be let go.
    fn mark_gone(&self) -> Option<Arc<OwnedFd>> {
        let private = {
            let mut inner = self.inner.lock();
            inner.visible_gone = true;
            inner.private.take()
        };
        self.changed.notify_all();
        private
    }

    /// Lets go of the private mount and of everything held in it.
    fn let_go(&self, private: Option<Arc<OwnedFd>>) {
        // Without the other lock: closing the last descriptor ends the session, which takes it. A
        // prewarm that is running notices that the mount is gone, and ends first.
        *self.held.lock() = Held::default();
        drop(private);
    }
}

impl Mount {
    /// Mounts a file system and serves it from threads of its own until it is unmounted.
    ///
    /// The target may be the source directory itself, if the source was opened before.
    ///
    /// # Errors
    /// If the process may not mount, or the target is no directory.
    pub fn start(fs: Arc<FileSystem>, options: &MountOptions) -> Result<Self, MountError> {
        let target = options
            .target
            .canonicalize()
            .map_err(|error| MountError::target(&options.target, error))?;
        let spot = open_dir(&target).map_err(|error| MountError::target(&target, error))?;
        let readahead = if fs.is_recording() {
            Readahead::Kib(0)
        } else {
            options.readahead
        };
        let device = open_device().map_err(MountError::Device)?;
        let detached = create(&device, &options.source)?;
        let state = Arc::new(State::default());
        let raw = device.try_clone().map_err(MountError::Device)?;
        let notifier = Arc::new(Notifier::new(raw));
        let adapter = Adapter::new(Arc::clone(&fs), readahead.bytes());
        // From here on an error drops `detached`, which ends the session and its threads.
        let session = Session::start(adapter, device, options.threads, &state, &notifier)?;
        let record = MountRecord::of(&detached).map_err(MountError::step("finding the mount"))?;
        if let Readahead::Kib(kib) = readahead {
            record.set_readahead(kib);
        }
        let visible = detached
            .attach(spot.as_fd())
            .map_err(|error| MountError::target(&target, error))?;
        let mut mount = Self {
            fs,
            target,
            record,
            notifier,
            state,
            watch: None,
            invalidator: None,
            session: Some(session),
        };
        // From here on an error drops `mount`, which unmounts.
        mount.keep_watch(visible.as_fd())?;
        Ok(mount)
    }

    /// Starts what goes beside a visible mount: the private one, the watch over the mount table,
    /// and what makes the kernel forget.
    fn keep_watch(&mut self, visible: BorrowedFd<'_>) -> Result<(), MountError> {
        self.watch = Some(Watch::start(self.record, &self.state)?);
        self.invalidator = Some(Invalidator::start(&self.fs, &self.notifier));
        // Linux before 6.15 cannot copy a detached mount, so the private one is a copy of the
        // visible one, not the reverse.
        let private = DetachedMount::copy_of(visible)
            .map_err(MountError::step("making the private mount"))?;
        let mut inner = self.state.inner.lock();
        // Somebody may have been quick to unmount.
        if !inner.visible_gone {
            inner.private = Some(Arc::new(private.into()));
        }
        Ok(())
    }

    /// Returns the file system that is mounted.
    #[must_use]
    pub const fn file_system(&self) -> &Arc<FileSystem> {
        &self.fs
    }

    /// Returns where it is mounted: an absolute path without symbolic links.
    #[must_use]
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// Returns what was asked and answered so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.fs.counters()
    }

    /// Returns the root of the private mount, open as a path, or `None` when the visible mount is
    /// gone. Whoever keeps it keeps the session alive.
    #[must_use]
    pub fn dir_fd(&self) -> Option<Arc<OwnedFd>> {
        self.state.inner.lock().private.clone()
    }

    /// Returns whether the visible mount is there.
    #[must_use]
    pub fn visible(&self) -> bool {
        !self.state.inner.lock().visible_gone
    }

    /// Waits until the mount is over, and returns why.
    #[must_use]
    pub fn wait(&self) -> End {
        // Without a deadline it comes back only with an end.
        let end = self.state.wait_for(None, Inner::end);
        end.unwrap_or(End::SessionOver)
    }

    /// Returns why the mount is over, or `None` if it is not by the time `patience` has passed.
    #[must_use]
    pub fn wait_for(&self, patience: Duration) -> Option<End> {
        let deadline = Instant::now() + patience;
        self.state.wait_for(Some(deadline), Inner::end)
    }

    /// Unmounts the visible mount, and lets go of the private one and of everything in it.
    ///
    /// Users that remain, after [`Busy::Lazy`] or below an overlay, are still served.
    ///
    /// # Errors
    /// If the mount is in use until `patience` has passed, or another mount lies on top of it.
    pub fn unmount(&self, busy: Busy, patience: Duration) -> Result<(), MountError> {
        let deadline = Instant::now() + patience;
        let flags = match busy {
            Busy::Wait => MntFlags::UMOUNT_NOFOLLOW,
            Busy::Lazy => MntFlags::UMOUNT_NOFOLLOW | MntFlags::MNT_DETACH,
        };
        while self.visible() {
            if !self.is_on_top() {
                // Nobody's mount but ours is taken away. It may have gone just now.
                return self.await_gone(deadline, || MountError::Covered {
                    target: self.target.clone(),
                });
            }
            match umount2(&self.target, flags) {
                Ok(()) => return self.await_gone(deadline, || MountError::Lost),
                Err(nix::errno::Errno::EBUSY) if Instant::now() < deadline => {
                    // The kernel tells nobody when a mount is no longer in use.
                    let retry = deadline.min(Instant::now() + BUSY_RETRY);
                    self.state.wait_for(Some(retry), Inner::gone);
                }
                Err(errno) => return Err(MountError::unmount(&self.target, errno.into())),
            }
        }
        Ok(())
    }

    /// Waits until the last user is gone and every thread that serves has ended. Returns whether
    /// that came true before `patience` had passed.
    #[must_use]
    pub fn wait_for_users(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let ended = self
            .state
            .wait_for(Some(deadline), |inner| inner.session_end.clone());
        ended.is_some()
    }

    pub(crate) const fn notifier(&self) -> &Arc<Notifier> {
        &self.notifier
    }

    pub(crate) fn held(&self) -> &Mutex<Held> {
        &self.state.held
    }

    /// Drops what the prewarm holds: pins and locked memory. Waits for a prewarm that is running.
    pub fn release(&self) {
        *self.state.held.lock() = Held::default();
    }

    /// Whether what the target's path leads to is our mount.
    fn is_on_top(&self) -> bool {
        let id = open_dir(&self.target).and_then(|dir| mount_id(dir.as_fd()));
        id.is_ok_and(|id| id == self.record.id)
    }

    fn await_gone(
        &self,
        deadline: Instant,
        otherwise: impl FnOnce() -> MountError,
    ) -> Result<(), MountError> {
        let gone = self.state.wait_for(Some(deadline), Inner::gone);
        gone.ok_or_else(otherwise)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Err(error) = self.unmount(Busy::Lazy, DROP_PATIENCE) {
            log::warn!("leaving {}: {error}", self.target.display());
        }
        drop(self.watch.take());
        self.state.let_go(self.state.mark_gone());
        drop(self.invalidator.take());
        match self.session.take() {
            Some(session) if self.wait_for_users(DROP_PATIENCE) => session.join(),
            Some(_) => log::warn!(
                "{} is still used; it is served until this process ends",
                self.target.display()
            ),
            None => (),
        }
    }
}

fn open_device() -> io::Result<OwnedFd> {
    let mut options = OpenOptions::new();
    Ok(options.read(true).write(true).open("/dev/fuse")?.into())
}

/// Creates the file system that the kernel asks `device` about.
fn create(device: &OwnedFd, source: &str) -> Result<DetachedMount, MountError> {
    let number = |n: u32| n.to_string().into_bytes();
    let fd = device.as_raw_fd().to_string();
    let make = || {
        let context = MountContext::open(c"fuse")?;
        context.set(c"source", source.as_bytes())?;
        context.set(c"subtype", b"yolofs")?;
        context.set(c"fd", fd.as_bytes())?;
        // A directory, in octal; the attributes of the root come from the file system.
        context.set(c"rootmode", b"40000")?;
        context.set(c"user_id", &number(geteuid().as_raw()))?;
        context.set(c"group_id", &number(getegid().as_raw()))?;
        // The kernel checks permissions against the attributes; everybody may come that far.
        context.set_flag(c"default_permissions")?;
        context.set_flag(c"allow_other")?;
        // The whole file system, not only this mount: then reading changes no access times, which
        // would make the kernel ask for attributes again.
        context.set_flag(c"ro")?;
        context.mount()
    };
    make().map_err(MountError::step("mounting"))
}

fn open_dir(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    Ok(open(path, flags, FileMode::empty())?)
}
