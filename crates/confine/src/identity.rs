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
    /// Makes the calling process, which has one thread yet, be this user for ever. It keeps its
    /// capabilities: which of them it can do without is for
    /// [`keep_only`](crate::capabilities::keep_only) to say.
    ///
    /// The kernel takes such a process for one that others of the same user must not look into.
    ///
    /// # Errors
    /// If the process may not become somebody else.
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
