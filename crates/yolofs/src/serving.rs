//! The threads that serve a file system, whatever process made its mount.
//!
//! A server may die at any moment. The holder of the device passes it to the next one, which
//! agrees to the first handshake, takes over the requests that the dead one had read and not answered
//! (the kernel sends them again on request since Linux 6.9), and continues. Open files have no state, files
//! keep their numbers if the names are the same, and the files that changed are in a
//! [ledger](crate::Ledger): users only notice a delay.

mod again;
mod invalidate;
mod retire;
mod session;
mod state;

use std::fmt;
use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use again::Predecessors;
pub use retire::NotRetired;
pub(crate) use state::{Inner, State};

use crate::connection::{Connection, Hello};
use crate::fs::{Counters, FileSystem};
use crate::fuse::Adapter;
use crate::mount::MountError;
use crate::notify::Notifier;
use crate::visible::Readahead;
use again::Again;
use invalidate::Invalidator;
use session::{Agreed, ServedBefore, Session};

/// How long a thread that drops a [`Serving`] waits for its users before it leaves them alone.
pub(crate) const DROP_PATIENCE: Duration = Duration::from_secs(2);

/// A callback for the end of a session, on a thread of its own.
#[derive(Clone)]
pub struct Ended(Arc<dyn Fn(&End) + Send + Sync>);

impl Ended {
    /// Returns one that calls `tell`.
    #[must_use]
    pub fn new(tell: impl Fn(&End) + Send + Sync + 'static) -> Self {
        Self(Arc::new(tell))
    }

    fn tell(&self, end: &End) {
        (self.0)(end);
    }
}

impl fmt::Debug for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ended").finish_non_exhaustive()
    }
}

/// How a file system is served.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// How many threads serve requests. Two are enough: more gained nothing in measurements.
    pub threads: NonZeroUsize,
    /// How far the kernel reads ahead; see [`Visible::set_readahead`](crate::Visible::set_readahead),
    /// which has to follow. Ignored by a file system that records: that reads nothing ahead.
    pub readahead: Readahead,
    /// Is notified of the end.
    pub ended: Option<Ended>,
    /// Detects whether the servers before this one are gone. Without it they are assumed to be: pages that
    /// a killed one still pushes into a changed file may stay then.
    pub predecessors: Option<Predecessors>,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            threads: const { NonZeroUsize::new(2).unwrap() },
            readahead: Readahead::default(),
            ended: None,
            predecessors: None,
        }
    }
}

/// Why a mount is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The visible mount is gone: it was unmounted. Remaining users, such as an overlay,
    /// are still served.
    Unmounted,
    /// The session is over: no users remain, or the connection was aborted.
    SessionOver,
    /// The session failed with this message; the mount does not respond any more.
    Failed(String),
}

/// The threads that answer the kernel's requests. They end when the last user of the file system
/// is gone, which is not before all holders of the private mount have released it.
#[derive(Debug)]
pub struct Serving {
    fs: Arc<FileSystem>,
    hello: Hello,
    served_before: ServedBefore,
    notifier: Arc<Notifier>,
    state: Arc<State>,
    invalidator: Option<Invalidator>,
    again: Option<Again>,
    session: Option<Session>,
    threads: usize,
}

impl Serving {
    /// Serves a file system on a connection, whether it was served before or not.
    ///
    /// The names must be those that earlier servers had, with the same numbers, and a file system
    /// that is to outlive its server passes no files through: the kernel's ids of those end
    /// with the server. `private` is the root of a mount that no path leads to: the prewarm walks
    /// through it. The handshake is in [`Serving::hello`]; the starter of the next server must have
    /// it. A process that starts servers keeps no regular file of the mount open: the new program would close its
    /// copy at `execve`, and wait for an answer (FUSE_FLUSH) that only it can give, until one server has given it.
    ///
    /// # Errors
    /// If an earlier server gave another response to the handshake, or the kernel does not respond.
    pub fn start(
        fs: Arc<FileSystem>,
        connection: &Connection,
        private: Option<OwnedFd>,
        options: &ServeOptions,
    ) -> Result<Self, MountError> {
        let readahead = if fs.is_recording() {
            Readahead::Kib(0)
        } else {
            options.readahead
        };
        let state = Arc::new(State::default());
        if let Some(private) = private {
            state.set_private(private);
        }
        let raw = connection.device().try_clone_to_owned();
        let notifier = Arc::new(Notifier::new(raw.map_err(MountError::Device)?));
        let adapter = Adapter::new(
            Arc::clone(&fs),
            readahead.bytes(),
            (connection.hello(), &state),
        );
        let agreed = Agreed::on(connection, adapter, options)?;
        let (hello, served_before) = (agreed.hello.clone(), agreed.served_before);
        if served_before == ServedBefore::Yes && hello.resends() {
            // Before anything is read, so that nothing is sent again that we have read ourselves.
            take_over(&notifier)?;
        }
        // Before the first answer: a change that nobody is told of is never forgotten.
        let invalidator = Some(Invalidator::start(&fs, &notifier, &state));
        let session = agreed.run(&state, &notifier, options)?;
        // Not before it runs: who has the kernel forget waits for readers, and they for the session.
        let again = Some(Again::forget(&fs, options.predecessors.as_ref()));
        Ok(Self {
            fs,
            hello,
            served_before,
            notifier,
            state,
            invalidator,
            again,
            session: Some(session),
            threads: options.threads.get(),
        })
    }

    /// Returns the file system that is served.
    #[must_use]
    pub const fn file_system(&self) -> &Arc<FileSystem> {
        &self.fs
    }

    /// Returns the FUSE handshake (FUSE_INIT), with its response.
    #[must_use]
    pub const fn hello(&self) -> &Hello {
        &self.hello
    }

    /// Returns the counters of this server.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.fs.counters()
    }

    /// Returns the root of the private mount, open as a path, or `None` when it was released.
    /// Holding it keeps the session alive.
    #[must_use]
    pub fn dir_fd(&self) -> Option<Arc<OwnedFd>> {
        self.state.private()
    }

    /// Returns whether the visible mount was not reported gone yet.
    #[must_use]
    pub fn visible(&self) -> bool {
        self.state.visible()
    }

    /// Notes that the visible mount is gone: releases the private one and everything in it.
    /// Waits for a running prewarm to notice. Remaining users are served.
    pub fn let_go(&self) {
        self.state.let_go(self.state.mark_gone());
    }

    /// Drops what the prewarm holds: pins and locked memory. Waits for a prewarm that is running.
    pub fn release(&self) {
        self.state.release();
    }

    /// Returns why the mount is over, or `None` if it is not.
    #[must_use]
    pub fn end(&self) -> Option<End> {
        self.state.look(Inner::end)
    }

    /// Waits until the last user is gone and every serving thread has ended. Returns whether
    /// that was within `patience`.
    #[must_use]
    pub fn wait_for_users(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let ended = self.state.wait_for(Some(deadline), Inner::session_end);
        ended.is_some()
    }

    /// Returns whether there was a server before, whose pages the kernel may still have.
    pub(crate) fn took_over(&self) -> bool {
        self.served_before == ServedBefore::Yes
    }

    pub(crate) const fn notifier(&self) -> &Arc<Notifier> {
        &self.notifier
    }

    pub(crate) const fn state(&self) -> &Arc<State> {
        &self.state
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.let_go();
        drop(self.again.take());
        drop(self.invalidator.take());
        match self.session.take() {
            Some(session) if self.wait_for_users(DROP_PATIENCE) => session.join(),
            Some(_) => log::warn!("a mount is still used; it is served until this process ends"),
            None => (),
        }
    }
}

/// Has the kernel send again what the server before had read and not answered.
fn take_over(notifier: &Notifier) -> Result<(), MountError> {
    notifier
        .resend()
        .map_err(MountError::step("asking the kernel to send requests again"))
}
