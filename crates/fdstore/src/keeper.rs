//! The manager's side: a process that does nothing but start a program, hold its descriptors, and
//! start it again.
//!
//! It has one thread and no state on disk. It waits for three things: a signal, a message, the
//! end of its child. What a child said before its end is heard before the next one is started, so
//! a descriptor that was sent is never lost.

mod child;
mod restarts;

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rawio::{inherit, passing};

use crate::address::Claim;
use crate::store::Store;
use crate::{Address, Inherited, Limits, Message, Result, StoreError};
use child::{Child, Death};
use restarts::{Cause, Restarts};

/// The variable that tells a child the process that keeps its descriptors, so that it can watch
/// over it in turn. Not set under systemd.
pub const KEEPER_PID: &str = "YOLOFS_KEEPER_PID";

/// The variable with the address of the manager's socket.
const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";

/// What the name under which [`surround`] hands over the socket begins with; the number of the
/// process that did follows.
const SOCKET_PREFIX: &str = "keeper-socket-";

/// The name of a descriptor that came without one, as systemd has it.
const NAMELESS: &str = "stored";

/// The longest message: names and paths, far below what a datagram may have.
const MESSAGE_BYTES: usize = 16 << 10;

/// How long a keeper that died may take to be gone.
const SUCCESSION: Duration = Duration::from_secs(5);

/// What a keeper starts.
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

/// Starts a program, holds its descriptors, and starts it again when it dies.
#[derive(Debug)]
pub struct Keeper {
    program: Program,
    /// What was run before `program.path`: the way back if that never becomes ready.
    former: Option<PathBuf>,
    /// What to run when the child ends.
    next: Option<PathBuf>,
    address: Address,
    /// Keeps other keepers from the address.
    _claim: Claim,
    socket: UnixDatagram,
    signals: SignalFd,
    store: Store,
    child: Option<Child>,
    /// Whose messages count: the child, also after its end for what it sent before.
    heard: u32,
    restarts: Restarts,
    start_at: Instant,
    /// A signal has asked for the end.
    told_to_end: bool,
}

impl Keeper {
    /// Makes a keeper that listens at `address`, and will start `program`.
    ///
    /// Blocks the signals that it waits for in the calling thread, which must be the only one.
    ///
    /// # Errors
    /// If it cannot listen there: [`StoreError::Taken`] if another keeper does.
    pub fn new(program: Program, address: Address, limits: Limits) -> Result<Self> {
        // Before the socket, which replaces what is there.
        let claim = address.claim(Duration::ZERO)?;
        let socket = address.bind()?;
        Self::listen(program, (address, claim), socket, limits)
    }

    /// Makes a keeper for the process that has started this one with [`surround`], with what
    /// that handed over. When it dies, or has died already, `program` is started.
    ///
    /// # Errors
    /// If nothing was handed over.
    pub fn adopt(
        program: Program,
        address: Address,
        limits: Limits,
        mut inherited: Inherited,
    ) -> Result<Self> {
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let name = inherited
            .names()
            .find(|name| name.starts_with(SOCKET_PREFIX));
        let name = name.map(str::to_owned).ok_or_else(missing);
        let name = name.map_err(StoreError::step("taking the socket over"))?;
        let socket = inherited.remove(&name).pop().ok_or_else(missing);
        let socket = socket.map_err(StoreError::step("taking the socket over"))?;
        // The one before has died, and may be on its way out yet.
        let claim = address.claim(SUCCESSION)?;
        let mut keeper = Self::listen(program, (address, claim), socket.into(), limits)?;
        for (name, descriptor) in inherited {
            keeper.keep(&name, descriptor);
        }
        keeper.heard = name[SOCKET_PREFIX.len()..].parse().unwrap_or(0);
        let child = Child::parent(keeper.heard);
        keeper.child = child.map_err(StoreError::step("watching over the parent"))?;
        Ok(keeper)
    }

    fn listen(
        program: Program,
        (address, claim): (Address, Claim),
        socket: UnixDatagram,
        limits: Limits,
    ) -> Result<Self> {
        let mut signals = SigSet::empty();
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
            signals.add(signal);
        }
        let step = || StoreError::step("waiting for signals");
        signals.thread_block().map_err(step())?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let signals = SignalFd::with_flags(&signals, flags).map_err(step())?;
        let step = StoreError::step("listening for the service");
        socket.set_nonblocking(true).map_err(step)?;
        raise_descriptor_limit();
        Ok(Self {
            program,
            former: None,
            next: None,
            address,
            _claim: claim,
            socket,
            signals,
            store: Store::new(limits),
            child: None,
            heard: 0,
            restarts: Restarts::default(),
            start_at: Instant::now(),
            told_to_end: false,
        })
    }

    /// Does its work until the child ends on purpose: with code 0, after `STOPPING=1`, or after
    /// this process was told to end by `SIGTERM` or `SIGINT`, which it passes on.
    ///
    /// # Errors
    /// If the kernel refuses what a keeper needs. A program that cannot be started is none: it
    /// is tried again.
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
        let mut events = vec![event(self.signals.as_fd()), event(self.socket.as_fd())];
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
        match poll(&mut events, timeout) {
            Ok(_) | Err(Errno::EINTR) => (),
            Err(errno) => return Err(StoreError::step("waiting for the service")(errno)),
        }
        Ok(events.get(2).and_then(PollFd::any).unwrap_or(false))
    }

    fn start_if_due(&mut self) {
        if Instant::now() < self.start_at {
            return;
        }
        match self.start() {
            Ok(child) => {
                self.heard = child.pid;
                self.child = Some(child);
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

    fn start(&self) -> io::Result<Child> {
        let Program {
            path,
            arguments,
            variables,
        } = &self.program;
        let own_pid = std::process::id().to_string();
        let ours = [
            (OsString::from(NOTIFY_SOCKET), self.address.to_value()),
            (OsString::from(KEEPER_PID), own_pid.into()),
        ];
        let others = variables
            .iter()
            .filter(|(name, _)| ours.iter().all(|(ours, _)| ours != name));
        let variables = others.cloned().chain(ours.clone());
        let (descriptors, names) = (self.store.descriptors(), self.store.names());
        let pid = inherit::start(path, arguments, variables, &descriptors, &names)?;
        Child::started(pid)
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
        loop {
            let received = match passing::receive_message(self.socket.as_fd(), &mut buffer) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(StoreError::step("receiving a message")(error)),
            };
            let from = received.sender.map_or(0, |sender| sender.pid);
            if from != self.heard {
                log::warn!("process {from} is not the service: its message is dropped");
                continue;
            }
            if received.truncated {
                log::warn!("a message of the service was cut short, and is dropped");
                continue;
            }
            let message = Message::parse(&buffer[..received.len]);
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
                    for descriptor in received.descriptors {
                        self.keep(name.unwrap_or(NAMELESS), descriptor);
                    }
                }
                // A barrier is answered by closing what came with it.
                _ => (),
            }
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
            log::warn!("going back to {}", former.display());
            self.program.path = former;
        }
    }
}

/// Starts another keeper around this process, after its keeper has died, and returns its process,
/// which is a child of this one.
///
/// `keeper` has to call [`Keeper::adopt`] with the same address. It gets `descriptors`, and a
/// socket that listens already: what is sent to `address` from now on waits there.
///
/// # Errors
/// If the address cannot be listened at, or the program not be started.
pub fn surround(
    keeper: &Program,
    address: &Address,
    descriptors: &[(String, std::os::fd::BorrowedFd<'_>)],
) -> Result<u32> {
    let socket = address.bind()?;
    let socket_name = format!("{SOCKET_PREFIX}{}", std::process::id());
    let names: Vec<&str> = [socket_name.as_str()]
        .into_iter()
        .chain(descriptors.iter().map(|(name, _)| name.as_str()))
        .collect();
    let all: Vec<_> = [socket.as_fd()]
        .into_iter()
        .chain(descriptors.iter().map(|(_, descriptor)| *descriptor))
        .collect();
    let path: &Path = &keeper.path;
    let variables = keeper.variables.iter().cloned();
    inherit::start(path, &keeper.arguments, variables, &all, &names.join(":"))
        .map_err(StoreError::step("starting another keeper"))
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
