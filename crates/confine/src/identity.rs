//! The user that a process is.

use nix::sys::prctl::set_keepcaps;
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};

use caps::CapSet;

use crate::ConfineError;

/// A user and its one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The user.
    pub uid: Uid,
    /// The group; the process is in no other.
    pub gid: Gid,
}

impl Identity {
    /// Changes the user of the calling process, which must have one thread, for good. It keeps its
    /// capabilities: [`keep_only`](crate::capabilities::keep_only) drops those that it does not
    /// need.
    ///
    /// The kernel then protects the process from inspection by others of the same user.
    ///
    /// # Errors
    /// If the process may not change its user.
    pub fn assume(self) -> Result<(), ConfineError> {
        let Self { uid, gid } = self;
        let doing = "becoming another user";
        set_keepcaps(true)
            .and_then(|()| setgroups(&[]))
            .and_then(|()| setresgid(gid, gid, gid))
            .and_then(|()| setresuid(uid, uid, uid))
            .and_then(|()| set_keepcaps(false))
            .map_err(|errno| ConfineError::step(doing)(errno.into()))?;
        // Those that are permitted were kept, those in effect were not.
        let permitted = caps::read(None, CapSet::Permitted)?;
        caps::set(None, CapSet::Effective, &permitted)?;
        log::debug!("user {uid} and group {gid} from now on");
        Ok(())
    }
}
