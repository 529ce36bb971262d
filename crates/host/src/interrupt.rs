//! Clean Ctrl-C: signals become a flag that long work looks at.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::{SigSet, Signal};

/// Signals that ask the program to end.
const ENDING: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];

/// Signals closer together than this are one request: programs send them back to back, and nobody
/// presses Ctrl-C twice that fast and means it.
const ONE_REQUEST: Duration = Duration::from_millis(300);

/// The user, or the system, requested the end of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

/// Whether the end of the program was requested. Cheap to clone and to check.
#[derive(Clone, Debug)]
pub struct Interrupt {
    asked: Arc<AtomicBool>,
    /// Whether even the first signal ends the process.
    abrupt: Arc<AtomicBool>,
    wake: Arc<EventFd>,
}

impl Interrupt {
    /// Takes over SIGINT, SIGTERM and SIGHUP for the whole process. To be called before any thread is
    /// started, so that all of them leave these signals to the thread that waits here.
    ///
    /// A second signal ends the process at once, with code 130, for a user in a hurry or a process
    /// stuck in a bug of ours. One that comes within `ONE_REQUEST` of the first is the same request:
    /// `timeout`(1) signals its child, and then the process group that it is in.
    ///
    /// # Errors
    /// If no thread or descriptor can be made.
    pub fn install() -> anyhow::Result<Self> {
        let signals = Self::block()?;
        Self::unarmed()?.listen(signals)
    }

    /// Does what [`install`](Self::install) does, but the first signal ends the process at once,
    /// with code 130, until [`be_orderly`](Self::be_orderly): a process that only reads, from a source
    /// that may never respond, has nothing to undo.
    ///
    /// # Errors
    /// As [`install`](Self::install).
    pub fn install_abrupt() -> anyhow::Result<Self> {
        let interrupt = Self::unarmed()?;
        interrupt.abrupt.store(true, SeqCst);
        interrupt.listen(Self::block()?)
    }

    /// Makes later signals request an orderly end.
    pub fn be_orderly(&self) {
        self.abrupt.store(false, SeqCst);
    }

    fn block() -> anyhow::Result<SigSet> {
        let signals: SigSet = ENDING.into_iter().collect();
        signals.thread_block().context("blocking signals")?;
        Ok(signals)
    }

    fn listen(self, signals: SigSet) -> anyhow::Result<Self> {
        let told = self.clone();
        std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || {
                let mut first: Option<Instant> = None;
                while signals.wait().is_ok() {
                    if told.abrupt.load(SeqCst) {
                        std::process::exit(130);
                    }
                    match first {
                        None => first = Some(Instant::now()),
                        Some(first) if first.elapsed() > ONE_REQUEST => std::process::exit(130),
                        Some(_) => {}
                    }
                    told.ask();
                }
            })
            .context("starting the thread that waits for signals")?;
        Ok(self)
    }

    /// Returns one that only [`ask`](Self::ask) triggers.
    ///
    /// # Errors
    /// If no descriptor can be made.
    pub fn unarmed() -> anyhow::Result<Self> {
        let wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .context("making an eventfd")?;
        Ok(Self {
            asked: Arc::default(),
            abrupt: Arc::default(),
            wake: Arc::new(wake),
        })
    }

    /// Requests the end of the program.
    pub fn ask(&self) {
        self.asked.store(true, SeqCst);
        // The counter can only be full after 2^64 - 2 signals.
        let _written = self.wake.write(1);
    }

    /// Returns whether the end was requested.
    #[must_use]
    pub fn asked(&self) -> bool {
        self.asked.load(SeqCst)
    }

    /// Waits until the end is requested.
    pub fn wait(&self) {
        while !self.asked() {
            let mut fds = [PollFd::new(self.fd(), PollFlags::POLLIN)];
            if poll(&mut fds, PollTimeout::NONE).is_err_and(|error| error != Errno::EINTR) {
                return;
            }
        }
    }

    /// Fails with [`Interrupted`] if the end was requested.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn check(&self) -> anyhow::Result<()> {
        if self.asked() {
            Err(Interrupted.into())
        } else {
            Ok(())
        }
    }

    /// Returns a descriptor that is readable once the end was requested.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

/// Unblocks the signals that [`Interrupt::install`] blocked, for this process and what it
/// executes: a child inherits the blocked set.
///
/// # Errors
/// If the system refuses.
pub fn unblock_signals() -> anyhow::Result<()> {
    SigSet::all().thread_unblock().context("unblocking signals")
}
