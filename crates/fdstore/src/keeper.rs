//! The manager's side: a process that only starts a program, holds its descriptors, and
//! restarts it.
//!
//! It has one thread and no state on disk. It waits for three things: a signal, a message, the
//! end of its child. Each child has a separate [link](crate::link). Messages of a child from before its
//! end are handled before the next one is started, so a descriptor that was sent is never lost.

mod child;
mod claim;
mod restarts;

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rawio::{inherit, passing};

use crate::link::{self, Link};
use crate::store::Store;
use crate::{Inherited, Limits, Message, Result, StoreError};
use child::{Child, Death};
use claim::Claim;
use restarts::{Cause, Restarts};

/// The variable with the process id of the keeper, so that its child can watch
/// it. Not set under systemd.
pub const KEEPER_PID: &str = "YOLOFS_KEEPER_PID";

/// The variable with the way to the manager.
const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";

/// What the name under which [`surround`] hands over the keeper's end of a link begins with; the
/// number of the process that did follows.
const LINK_PREFIX: &str = "keepers-end-";

/// The same of releases that handed over a socket with a name, to which anybody could send.
const NAMED_PREFIX: &str = "keeper-socket-";

/// The name of a descriptor that came without one, as systemd has it.
const NAMELESS: &str = "stored";

/// The longest message: names and paths.
const MESSAGE_BYTES: usize = 16 << 10;

/// So many messages are taken before it is looked at what else there is. More than a socket holds:
/// all that a child has sent before its end is taken at once.
const ROUND: usize = 4096;

/// How long a keeper that died may take to be gone.
const SUCCESSION: Duration = Duration::from_secs(5);

/// The program of a keeper.
#[derive(Clone, Debug)]
pub struct Program {
    /// The program; absolute.
    pub path: PathBuf,
    /// Its arguments, without its name.
    pub arguments: Vec<OsString>,
    /// Its environment. What the protocol sets is added.
    pub variables: Vec<(OsString, OsString)>,
}

/// Why a keeper has ended: its child has, on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The child's exit code, if it had one and the keeper is its parent.
    pub code: Option<i32>,
}

/// Starts a program, holds its descriptors, and restarts it when it dies.
#[derive(Debug)]
pub struct Keeper {
    program: Program,
    /// The program before `program.path`, which is used again if that never becomes ready.
    former: Option<PathBuf>,
    /// What to run when the child ends.
    next: Option<PathBuf>,
    /// The lock against a second keeper.
    _claim: Claim,
    /// This end of the link to the child, as long as messages may arrive.
    link: Option<OwnedFd>,
    signals: SignalFd,
    store: Store,
    child: Option<Child>,
    restarts: Restarts,
    start_at: Instant,
    /// Whether a signal has requested the end.
    told_to_end: bool,
}

impl Keeper {
    /// Makes a keeper that will start `program`. It is the only one that has `lock`, a file that it
    /// makes if need be.
    ///
    /// Blocks the signals that it waits for in the calling thread, which must be the only one.
    ///
    /// # Errors
    /// [`StoreError::Taken`] if there is another keeper.
    pub fn new(program: Program, lock: &Path, limits: Limits) -> Result<Self> {
        let claim = Claim::take(lock, Duration::ZERO)?;
        Self::prepare(program, claim, limits)
    }

    /// Makes a keeper for the process that has started this one with [`surround`], with the descriptors
    /// from that. When it dies, or has died already, `program` is started.
    ///
    /// # Errors
    /// If there are no descriptors from it.
    pub fn adopt(
        program: Program,
        lock: &Path,
        limits: Limits,
        mut inherited: Inherited,
    ) -> Result<Self> {
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let (end, pid) = handed_over(&mut inherited)
            .ok_or_else(missing)
            .map_err(StoreError::step("taking over what a keeper needs"))?;
        // The one before has died, and may be on its way out yet.
        let claim = Claim::take(lock, SUCCESSION)?;
        let mut keeper = Self::prepare(program, claim, limits)?;
        match end {
            Some(end) => keeper.hear(end)?,
            None => log::warn!(
                "process {pid} is of an earlier release, whose messages can be forged: they are \
                 ignored until it is restarted"
            ),
        }
        for (name, descriptor) in inherited {
            keeper.keep(&name, descriptor);
        }
        let child = Child::parent(pid);
        keeper.child = child.map_err(StoreError::step("watching over the parent"))?;
        Ok(keeper)
    }

    fn prepare(program: Program, claim: Claim, limits: Limits) -> Result<Self> {
        let mut signals = SigSet::empty();
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
            signals.add(signal);
        }
        let step = || StoreError::step("waiting for signals");
        signals.thread_block().map_err(step())?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let signals = SignalFd::with_flags(&signals, flags).map_err(step())?;
        raise_descriptor_limit();
        Ok(Self {
            program,
            former: None,
            next: None,
            _claim: claim,
            link: None,
            signals,
            store: Store::new(limits),
            child: None,
            restarts: Restarts::default(),
            start_at: Instant::now(),
            told_to_end: false,
        })
    }

    /// Hears what comes from the other end from now on.
    fn hear(&mut self, end: OwnedFd) -> Result<()> {
        link::without_waiting(&end).map_err(StoreError::step("listening for the service"))?;
        self.link = Some(end);
        Ok(())
    }

    /// Runs until the child ends on purpose: with code 0, after `STOPPING=1`, or after
    /// this process received `SIGTERM` or `SIGINT`, which it passes on.
    ///
    /// # Errors
    /// If a system call that a keeper needs fails. A program that cannot be started is no error: it
    /// is retried.
    pub fn run(mut self) -> Result<Ended> {
        loop {
            if self.child.is_none() {
                if self.told_to_end {
                    return Ok(Ended { code: None });
                }
                // What a child that is gone has sent comes before its successor.
                self.take_messages()?;
                self.start_if_due();
            }
            let child_ended = self.wait()?;
            self.take_signals()?;
            self.take_messages()?;
            if child_ended && let Some(ended) = self.bury()? {
                return Ok(ended);
            }
        }
    }

    /// Waits until there is something to do. Returns whether the child has ended.
    fn wait(&self) -> Result<bool> {
        let event = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut events = vec![event(self.signals.as_fd())];
        let timeout = match &self.child {
            Some(child) => {
                events.push(event(child.end()));
                PollTimeout::NONE
            }
            None => {
                let left = self.start_at.saturating_duration_since(Instant::now());
                // The rest of a millisecond is waited for, too, rather than run through.
                PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
            }
        };
        events.extend(self.link.as_ref().map(|link| event(link.as_fd())));
        match poll(&mut events, timeout) {
            Ok(_) | Err(Errno::EINTR) => (),
            Err(errno) => return Err(StoreError::step("waiting for the service")(errno)),
        }
        let end = events.get(1).filter(|_| self.child.is_some());
        Ok(end.and_then(PollFd::any).unwrap_or(false))
    }

    fn start_if_due(&mut self) {
        if Instant::now() < self.start_at {
            return;
        }
        match self.start() {
            Ok((child, end)) => {
                self.child = Some(child);
                self.link = Some(end);
            }
            Err(error) => {
                let path = self.program.path.display().to_string();
                log::warn!("starting {path}: {error}");
                self.fall_back();
                self.start_at =
                    Instant::now() + self.restarts.died_after(Duration::ZERO, Cause::Failed);
            }
        }
    }

    /// Starts the program, and returns it and the keeper's end of the way from it.
    fn start(&self) -> io::Result<(Child, OwnedFd)> {
        let Program {
            path,
            arguments,
            variables,
        } = &self.program;
        let (end, childs) = link::pair()?;
        link::without_waiting(&end)?;
        let own_pid = std::process::id().to_string();
        let ours = [
            (OsString::from(NOTIFY_SOCKET), link::ADDRESS.into()),
            (OsString::from(KEEPER_PID), own_pid.into()),
        ];
        let others = variables
            .iter()
            .filter(|(name, _)| ours.iter().all(|(ours, _)| ours != name));
        let variables = others.cloned().chain(ours.clone());
        let kept = self.store.kept();
        let all: Vec<_> = std::iter::once((link::NAME, childs.as_fd()))
            .chain(kept)
            .collect();
        let pid = start_with(path, arguments, variables, &all)?;
        Ok((Child::started(pid)?, end))
    }

    fn take_signals(&mut self) -> Result<()> {
        let step = || StoreError::step("reading signals");
        while let Some(info) = self.signals.read_signal().map_err(step())? {
            let number = i32::try_from(info.ssi_signo).unwrap_or_default();
            let Ok(signal) = Signal::try_from(number) else {
                continue;
            };
            self.told_to_end |= signal != Signal::SIGHUP;
            if let Some(child) = &self.child
                && let Err(error) = child.signal(signal)
            {
                log::warn!("passing {signal} on: {error}");
            }
        }
        Ok(())
    }

    fn take_messages(&mut self) -> Result<()> {
        let mut buffer = [0; MESSAGE_BYTES];
        for _ in 0..ROUND {
            let Some(link) = &self.link else { break };
            match passing::receive_message(link.as_fd(), &mut buffer) {
                // Nobody has the other end any more.
                Ok(received) if received.len == 0 => self.link = None,
                Ok(received) if received.truncated => {
                    log::warn!("a message of the service was truncated, and is dropped");
                }
                Ok(received) => {
                    self.heed(
                        Message::parse(&buffer[..received.len]),
                        received.descriptors,
                    );
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(StoreError::step("receiving a message")(error)),
            }
        }
        Ok(())
    }

    /// Does what a message says.
    fn heed(&mut self, message: Message, descriptors: Vec<OwnedFd>) {
        if let Some(child) = &mut self.child {
            child.ready |= message.ready;
            child.stopping |= message.stopping;
        }
        if message.ready {
            self.former = None;
        }
        if message.program.is_some() {
            self.next = message.program;
        }
        let name = message.name.as_deref();
        match (message.remove, name) {
            (true, Some(name)) => self.store.remove(name),
            _ if message.store => {
                for descriptor in descriptors {
                    self.keep(name.unwrap_or(NAMELESS), descriptor);
                }
            }
            // A barrier is answered by closing what came with it.
            _ => (),
        }
    }

    fn keep(&mut self, name: &str, descriptor: OwnedFd) {
        if self.store.put(name, descriptor).is_err() {
            log::warn!("no room for descriptor {name}: it is dropped");
        }
    }

    /// Reaps the child, and decides what comes after it: the end, or another start.
    fn bury(&mut self) -> Result<Option<Ended>> {
        let Some(child) = self.child.take() else {
            return Ok(None);
        };
        let Death { code, cause } = child
            .reap()
            .map_err(StoreError::step("reaping the service"))?;
        if self.told_to_end {
            return Ok(Some(Ended { code }));
        }
        if let Some(next) = self.next.take() {
            log::info!("starting {} from now on", next.display());
            self.former = Some(std::mem::replace(&mut self.program.path, next));
            self.restarts.forget();
            self.start_at = Instant::now();
            return Ok(None);
        }
        if child.stopping || code == Some(0) {
            return Ok(Some(Ended { code }));
        }
        if !child.ready {
            self.fall_back();
        }
        let wait = self.restarts.died_after(child.lived(), cause);
        log::warn!(
            "the service died (process {}); next start in {wait:?}",
            child.pid
        );
        self.start_at = Instant::now() + wait;
        Ok(None)
    }

    /// Goes back to the program before an upgrade that never became ready.
    fn fall_back(&mut self) {
        if let Some(former) = self.former.take() {
            log::warn!("starting {} again, as before the upgrade", former.display());
            self.program.path = former;
        }
    }
}

/// Starts another keeper around this process, after its keeper has died. Returns that keeper, which is a
/// child of this process, and the link to it.
///
/// `keeper` has to call [`Keeper::adopt`]. It gets `descriptors`; messages to it from now on
/// wait until it listens.
///
/// # Errors
/// If the program cannot be started.
pub fn surround(keeper: &Program, descriptors: &[(String, BorrowedFd<'_>)]) -> Result<(u32, Link)> {
    let step = || StoreError::step("starting another keeper");
    let (end, ours) = link::pair().map_err(|errno| step()(errno.into()))?;
    let end_name = format!("{LINK_PREFIX}{}", std::process::id());
    let kept = descriptors
        .iter()
        .map(|(name, file)| (name.as_str(), *file));
    let all: Vec<_> = std::iter::once((end_name.as_str(), end.as_fd()))
        .chain(kept)
        .collect();
    let variables = keeper.variables.iter().cloned();
    let pid = start_with(&keeper.path, &keeper.arguments, variables, &all);
    Ok((pid.map_err(step())?, ours))
}

/// Takes what [`surround`] handed over: the keeper's end of the link, which there is none of if the
/// release of that process has only a socket with a name, and the number of the process.
fn handed_over(inherited: &mut Inherited) -> Option<(Option<OwnedFd>, u32)> {
    let prefixes = [LINK_PREFIX, NAMED_PREFIX];
    let (name, prefix) = inherited.names().find_map(|name| {
        let prefix = prefixes
            .into_iter()
            .find(|prefix| name.starts_with(prefix))?;
        Some((name.to_owned(), prefix))
    })?;
    let end = inherited.remove(&name).pop()?;
    let pid = name[prefix.len()..].parse().ok()?;
    Some(((prefix == LINK_PREFIX).then_some(end), pid))
}

/// Starts a program that is handed descriptors with names.
fn start_with(
    path: &Path,
    arguments: &[OsString],
    variables: impl IntoIterator<Item = (OsString, OsString)>,
    all: &[(&str, BorrowedFd<'_>)],
) -> io::Result<u32> {
    let (names, descriptors): (Vec<_>, Vec<_>) = all.iter().copied().unzip();
    inherit::start(path, arguments, variables, &descriptors, &names.join(":"))
}

/// A descriptor for each thing kept: as many as this process may have, not as many as a shell
/// usually wants. The child inherits the limit.
fn raise_descriptor_limit() {
    let raise = || {
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
    };
    if let Err(errno) = raise() {
        log::warn!("raising the limit of open files: {errno}");
    }
}
