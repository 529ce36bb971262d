//! The service's side: sending messages to the manager.

use std::ffi::OsStr;
use std::io::Read as _;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{setsockopt, sockopt::SendTimeout};
use nix::sys::time::{TimeVal, TimeValLike as _};
use rawio::passing;

use crate::link::{self, Link};
use crate::{Address, Inherited, Message, Result, StoreError, is_name};

/// How long a message waits for room in the manager's queue. It takes them in microseconds
/// unless it is stopped.
const SEND_PATIENCE: Duration = Duration::from_secs(5);

/// The way to the service manager, systemd or a [`Keeper`](crate::Keeper).
///
/// Messages are in the manager's queue when a call returns, and are taken in their order;
/// [`barrier`](Self::barrier) waits until they were. Each goes to the manager of that moment:
/// another may have [taken over](Self::relink).
#[derive(Debug)]
pub struct Notifier(Mutex<Channel>);

#[derive(Clone, Debug)]
enum Channel {
    /// systemd's, or that of a keeper of a release that had a name: it identifies senders by the kernel's
    /// credentials.
    Name(Address),
    /// The keeper's.
    Link(Link),
}

impl Notifier {
    /// Returns the manager of `NOTIFY_SOCKET`; the link of a keeper is taken from the inherited
    /// descriptors.
    ///
    /// # Errors
    /// If it is no address, or the inherited descriptor is not the keeper's.
    pub fn find(value: &OsStr, inherited: &mut Inherited) -> Result<Self> {
        let way = if value == link::ADDRESS {
            Channel::Link(Link::take(inherited)?)
        } else {
            Channel::Name(Address::parse(value)?)
        };
        Ok(Self(Mutex::new(way)))
    }

    /// Returns whether the manager accepts forged credentials of another process.
    #[must_use]
    pub fn has_name(&self) -> bool {
        matches!(self.way(), Channel::Name(_))
    }

    /// Goes another way from now on: another keeper has taken over.
    pub fn relink(&self, link: Link) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Channel::Link(link);
    }

    fn way(&self) -> Channel {
        let way = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        way.clone()
    }

    /// Notifies that the start is complete.
    ///
    /// # Errors
    /// If the manager has ended, or does not accept messages any more.
    pub fn ready(&self) -> Result<()> {
        self.tell(&Message {
            ready: true,
            ..Message::default()
        })
    }

    /// Sends the status, in one line for people.
    ///
    /// # Errors
    /// As [`ready`](Self::ready).
    pub fn status(&self, status: &str) -> Result<()> {
        self.tell(&Message {
            status: Some(status.to_owned()),
            ..Message::default()
        })
    }

    /// Notifies that the service is ending on purpose, whatever its exit code.
    ///
    /// # Errors
    /// As [`ready`](Self::ready).
    pub fn stopping(&self) -> Result<()> {
        self.tell(&Message {
            stopping: true,
            ..Message::default()
        })
    }

    /// Stores a descriptor with the manager under a name, in addition to those with that name.
    ///
    /// It is not polled: a manager that did would be woken by each request on a FUSE device.
    ///
    /// # Errors
    /// As [`ready`](Self::ready), and if the protocol does not allow the name. A full store is
    /// not reported.
    pub fn store(&self, name: &str, descriptor: BorrowedFd<'_>) -> Result<()> {
        let message = Message {
            store: true,
            unpolled: true,
            name: Some(checked(name)?),
            ..Message::default()
        };
        self.send(&message, &[descriptor])
    }

    /// Has the manager forget all descriptors of a name.
    ///
    /// # Errors
    /// As [`store`](Self::store).
    pub fn remove(&self, name: &str) -> Result<()> {
        self.tell(&Message {
            remove: true,
            name: Some(checked(name)?),
            ..Message::default()
        })
    }

    /// Sets the program to start when this one ends, whatever its exit code. A
    /// [`Keeper`](crate::Keeper) supports that; systemd ignores it. If a program ends before
    /// it reports [`ready`](Self::ready), the one before it is started.
    ///
    /// # Errors
    /// As [`ready`](Self::ready).
    pub fn run_next(&self, program: &Path) -> Result<()> {
        self.tell(&Message {
            program: Some(program.to_owned()),
            ..Message::default()
        })
    }

    /// Waits until the manager has taken all that was sent before.
    ///
    /// # Errors
    /// [`StoreError::Unanswered`] if it has not by the time `patience` has passed.
    pub fn barrier(&self, patience: Duration) -> Result<()> {
        let step = || StoreError::step("waiting for the service manager");
        let (mut taken, sent) = std::io::pipe().map_err(step())?;
        let message = Message {
            barrier: true,
            ..Message::default()
        };
        self.send(&message, &[sent.as_fd()])?;
        drop(sent);
        let deadline = Instant::now() + patience;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            // The end of the pipe is no event that is asked for: it is always told.
            match poll(
                &mut [PollFd::new(taken.as_fd(), PollFlags::empty())],
                timeout,
            ) {
                Ok(0) if left.is_zero() => return Err(StoreError::Unanswered),
                Ok(0) | Err(Errno::EINTR) => (),
                Ok(_) => return taken.read(&mut [0]).map(drop).map_err(step()),
                Err(errno) => return Err(step()(errno.into())),
            }
        }
    }

    fn tell(&self, message: &Message) -> Result<()> {
        self.send(message, &[])
    }

    fn send(&self, message: &Message, descriptors: &[BorrowedFd<'_>]) -> Result<()> {
        let bytes = message.encode();
        let step = || StoreError::step("telling the service manager");
        // A message is taken whole or not at all, on either way.
        match self.way() {
            Channel::Name(address) => {
                let socket = address.connect()?;
                socket
                    .set_write_timeout(Some(SEND_PATIENCE))
                    .map_err(step())?;
                passing::send(socket.as_fd(), &bytes, descriptors)
            }
            Channel::Link(link) => {
                let patience = TimeVal::seconds(SEND_PATIENCE.as_secs().cast_signed());
                setsockopt(&link, SendTimeout, &patience).map_err(|errno| step()(errno.into()))?;
                passing::send(link.as_fd(), &bytes, descriptors)
            }
        }
        .map(drop)
        .map_err(step())
    }
}

fn checked(name: &str) -> Result<String> {
    match is_name(name) {
        true => Ok(name.to_owned()),
        false => Err(StoreError::Name(name.to_owned())),
    }
}
