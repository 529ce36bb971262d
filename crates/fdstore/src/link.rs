//! The link between a keeper and its child: a pair of connected, unnamed sockets.
//!
//! Only the holder of the child's end can send messages: there is no name to connect or to
//! send to, and so nothing to check or forge. The child takes its end when it starts
//! ([`Inherited`]) and passes it to no other process.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

use crate::{Inherited, Result, StoreError};

/// The name that the child's end has among its descriptors.
pub(crate) const NAME: &str = "keeper-link";

/// The value of `NOTIFY_SOCKET` for a child with a link. A release that knows only names rejects it
/// with an error, and ends; without a value it would become a keeper itself.
pub(crate) const ADDRESS: &str = "fd:keeper-link";

/// The child's end. Clones are of the same end.
#[derive(Clone, Debug)]
pub struct Link(Arc<OwnedFd>);

impl Link {
    /// Takes this program's end from the inherited descriptors.
    ///
    /// # Errors
    /// If it is missing.
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
