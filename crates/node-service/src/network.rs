//! The worker of a mount that uses a block service: its permissions and its settings.
//!
//! Data from the service is untrusted, so the worker that reads it has a user of its own, the files and the
//! port of this one mount, and nothing else.

#[cfg(all(test, feature = "privileged"))]
mod tests;

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};

use anyhow::{Context as _, bail};
use confine::Identity;
use mounting::confinement::Connections;
use nix::dir::{Dir, Type};
use nix::fcntl::{AtFlags, OFlag, open, openat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstatat};
use nix::unistd::{Gid, Uid, fchownat, getegid, geteuid};
use rawio::private;
use serde::{Deserialize, Serialize};

use crate::connector;
use node_api::nic::NicSpec;
use node_api::nic_needs::Needs;
use node_api::spec::MountSpec;

/// The variable with which the node passes its settings to such a worker. A worker of an earlier
/// release ignores it, and is not confined further.
pub(crate) const NETWORK_ENV: &str = "YOLOFS_WORKER_NETWORK";

/// How deep a cache is (its directories, those of segments).
const CACHE_DEPTH: u8 = 3;

/// What such a worker is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NetworkWorker {
    /// The user and the group that it becomes; absent if all workers run as the node's user.
    pub user: Option<(u32, u32)>,
    /// The files and ports of the client of the service.
    pub needs: Needs,
    /// Whether it has files of a disk, too, which may be anybody's and anywhere.
    pub disk: bool,
    /// Whether the node connects to the service for it. One of an earlier release does not.
    #[serde(default)]
    pub is_connected_by_node: bool,
}

impl NetworkWorker {
    /// Returns the settings of the worker of a mount; `None` if the mount uses no block service.
    pub(crate) fn of(spec: &MountSpec, user: Option<Identity>) -> Option<Self> {
        let nic = spec.nic.as_ref()?;
        let mut needs = nic.needs();
        if let node_api::boot_choice::BootChoice::File(path) = &spec.boot {
            needs.reads.push(path.clone());
        }
        Some(Self {
            user: user.map(|Identity { uid, gid }| (uid.as_raw(), gid.as_raw())),
            needs,
            disk: spec.is_on_disk(),
            is_connected_by_node: !connector::sockets(nic).is_empty(),
        })
    }

    /// Reads the settings from the node; `None` if the node is of a release without them.
    ///
    /// # Errors
    /// If the settings cannot be parsed.
    pub(crate) fn told() -> anyhow::Result<Option<Self>> {
        let Some(text) = std::env::var_os(NETWORK_ENV) else {
            return Ok(None);
        };
        let text = text.to_str().context("it is no text");
        let told = text.and_then(|text| Ok(serde_json::from_str(text)?));
        told.map(Some)
            .with_context(|| format!("reading {NETWORK_ENV}"))
    }

    /// Returns the variable and its value.
    ///
    /// # Errors
    /// If a path is not UTF-8.
    pub(crate) fn variable(&self) -> anyhow::Result<(&'static str, OsString)> {
        let text = serde_json::to_string(self).context("a path that is not UTF-8")?;
        Ok((NETWORK_ENV, text.into()))
    }

    /// Returns the user that the worker becomes.
    pub(crate) fn identity(&self) -> Option<Identity> {
        self.user.map(|(uid, gid)| Identity {
            uid: Uid::from_raw(uid),
            gid: Gid::from_raw(gid),
        })
    }

    /// Returns which process makes its connections to the service.
    pub(crate) const fn connections(&self) -> Connections {
        match self.is_connected_by_node {
            true => Connections::ByNode,
            false => Connections::Own,
        }
    }

    /// Creates the cache of the mount, if it has one, and gives it to the worker's user.
    ///
    /// # Errors
    /// If that cannot be done, or the cache belongs to another user.
    pub(crate) fn give_cache(
        &self,
        nic: &NicSpec,
        workers: Option<Identity>,
    ) -> anyhow::Result<()> {
        let own = Identity {
            uid: geteuid(),
            gid: getegid(),
        };
        let to = self.identity().unwrap_or(own);
        let ours = [Some(own), workers].map(|user| user.map(|user| user.uid));
        for dir in nic.cache_dirs().into_iter().flatten() {
            let giving = || format!("giving {} to user {}", dir.display(), to.uid);
            private::make_dir(&dir).with_context(giving)?;
            let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            let opened = open(&dir, flags, Mode::empty()).with_context(giving)?;
            let owner = nix::sys::stat::fstat(&opened).with_context(giving)?.st_uid;
            if owner == to.uid.as_raw() {
                private::close_dir(&dir).with_context(giving)?;
                continue;
            }
            if !ours.contains(&Some(Uid::from_raw(owner))) {
                bail!(
                    "the cache {} is user {owner}'s: choose another nic.cache",
                    dir.display()
                );
            }
            // Here, because the worker may not change the mode of anything.
            private::close_dir(&dir).with_context(giving)?;
            // Its own last: if this is interrupted, it is done again.
            give_all(&opened, to, CACHE_DEPTH).with_context(giving)?;
            nix::unistd::fchown(&opened, Some(to.uid), Some(to.gid)).with_context(giving)?;
        }
        Ok(())
    }
}

/// Gives what is in a directory to a user. No link is followed, and no file given that has another
/// name somewhere: who could write there may have made that.
fn give_all(dir: &OwnedFd, to: Identity, depth: u8) -> nix::Result<()> {
    let mut listing = Dir::openat(
        dir,
        ".",
        OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
        Mode::empty(),
    )?;
    for entry in listing.iter() {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let found = fstatat(dir.as_fd(), name, AtFlags::AT_SYMLINK_NOFOLLOW)?;
        let is_dir = kind(&found) == SFlag::S_IFDIR;
        if is_dir && depth > 0 && entry.file_type() != Some(Type::Symlink) {
            let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            let below = openat(dir, name, flags, Mode::empty())?;
            give_all(&below, to, depth - 1)?;
        }
        let alone = kind(&found) == SFlag::S_IFREG && found.st_nlink == 1;
        if is_dir || alone {
            let flags = AtFlags::AT_SYMLINK_NOFOLLOW;
            fchownat(dir.as_fd(), name, Some(to.uid), Some(to.gid), flags)?;
        }
    }
    Ok(())
}

fn kind(found: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(found.st_mode & SFlag::S_IFMT.bits())
}
