//! The way between a keeper and its child: a pair of connected sockets that have no name.
//!
//! Who holds the child's end is heard, and nobody else can be: there is nothing to connect or to
//! send to, and so nothing to be checked or forged. The child takes its end when it starts
//! ([`Inherited`]) and passes it on to nobody.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

use crate::{Inherited, Result, StoreError};

/// The name that the child's end has among its descriptors.
pub(crate) const NAME: &str = "keeper-link";

/// The value of `NOTIFY_SOCKET` for who has a link. A release that knows only names takes it for
/// none, says so, and ends; without a value it would be a keeper itself.
pub(crate) const ADDRESS: &str = "fd:keeper-link";

/// The child's end. Clones are of the same end.
#[derive(Clone, Debug)]
pub struct Link(Arc<OwnedFd>);

impl Link {
    /// Takes this program's end from what it was started with.
    ///
    /// # Errors
    /// If it is not there.
    pub(crate) fn take(inherited: &mut Inherited) -> Result<Self> {
        // The keeper's own comes first, whatever it was given to keep.
        match inherited.remove(NAME).into_iter().next() {
            Some(end) => Ok(Self(Arc::new(end))),
            None => Err(StoreError::Unlinked),
        }
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Makes a pair: the keeper's end and the child's. Messages stay apart from each other.
pub(crate) fn pair() -> nix::Result<(OwnedFd, Link)> {
    let (keepers, childs) = socketpair(
        AddressFamily::Unix,
        SockType::SeqPacket,
        None,
        SockFlag::SOCK_CLOEXEC,
    )?;
    Ok((keepers, Link(Arc::new(childs))))
}

/// Has reads of the keeper's end wait for nothing.
pub(crate) fn without_waiting(end: &OwnedFd) -> nix::Result<()> {
    fcntl(end, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map(drop)
}
