//! Who may ask a process of ours over its unix socket.
//!
//! The socket's directory is for its owner only, and so is the socket. Who still got hold of it,
//! by a directory that was opened up or a descriptor that was passed on, is asked for by the
//! kernel's word.

use std::os::fd::AsFd;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::geteuid;

/// The users who may ask.
#[derive(Clone, Debug)]
pub(crate) struct Admission {
    uids: Vec<u32>,
}

impl Admission {
    /// Root, and whoever runs this process.
    pub(crate) fn own() -> Self {
        Self::of(vec![0, geteuid().as_raw()])
    }

    /// These users.
    pub(crate) const fn of(uids: Vec<u32>) -> Self {
        Self { uids }
    }

    /// Returns them.
    pub(crate) fn users(self) -> Vec<u32> {
        self.uids
    }

    /// Admits a user, whom the kernel names, or says why not.
    pub(crate) fn check(&self, uid: Option<u32>) -> Result<(), String> {
        match uid {
            Some(uid) if self.uids.contains(&uid) => Ok(()),
            Some(uid) => Err(format!(
                "user {uid} may not ask: only root and the user of this process may"
            )),
            None => Err("the kernel does not say who asks".to_owned()),
        }
    }

    /// Admits whoever connected `stream`, or says why not.
    pub(crate) fn check_peer(&self, stream: impl AsFd) -> Result<(), String> {
        let peer = getsockopt(&stream, PeerCredentials).ok();
        self.check(peer.map(|peer| peer.uid()))
    }
}

/// Returns the number of the process at the other end: that which connected, or which listens.
pub(crate) fn peer_pid(stream: impl AsFd) -> Option<u32> {
    let peer = getsockopt(&stream, PeerCredentials).ok()?;
    u32::try_from(peer.pid()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn only_those_who_are_named_are_admitted() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        assert_eq!(Admission::own().check_peer(&ours), Ok(()));
        let others = Admission::of(vec![4_000_000_000]);
        assert!(others.check_peer(&ours).unwrap_err().contains("may not"));
        assert!(others.check(None).is_err());
        assert_eq!(Admission::own().check(Some(0)), Ok(()));
    }
}
