//! Who serves instead of root.

use std::path::Path;

use anyhow::Context as _;
use confine::Identity;
use nix::unistd::{Gid, Uid, geteuid};
use recording::sandbox::user::resolve;

/// Who workers are where the machine has such a user: packaging/yolofs.sysusers makes it.
const WORKER_USER: &str = "yolofs";

/// The user that serves.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct WorkerUserArg {
    /// User of the workers, and of the daemon of a block image without a node: a name, or `UID:GID` [default: `yolofs` if
    /// there is such a user, else the caller]
    #[arg(long, value_name = "NAME")]
    worker_user: Option<String>,
}

impl WorkerUserArg {
    pub(crate) const fn is_given(&self) -> bool {
        self.worker_user.is_some()
    }

    /// Returns who they become, or `None` if they stay who this process is.
    ///
    /// # Errors
    /// If it was said, and there is no such user.
    pub(crate) fn identity(&self) -> anyhow::Result<Option<Identity>> {
        let root = Path::new("/");
        let ids = match &self.worker_user {
            Some(user) => resolve(root, user).context("--worker-user")?,
            None => match resolve(root, WORKER_USER) {
                Ok(ids) if geteuid().is_root() => ids,
                _ => return Ok(None),
            },
        };
        let identity = Identity {
            uid: Uid::from_raw(ids.uid),
            gid: Gid::from_raw(ids.gid),
        };
        Ok((identity.uid != geteuid()).then_some(identity))
    }
}
