//! The rig's own mounts.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};

/// Gives the calling thread, and what it starts, a mount namespace: whatever happens to the rig,
/// its mounts go with the last process in it. Call it before any thread is started.
///
/// # Errors
/// If the kernel refuses, as it does without root.
pub fn enter() -> anyhow::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS).context("making a mount namespace (are you root?)")?;
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(None::<&str>, "/", None::<&str>, private, None::<&str>)
        .context("making the mounts private")
}

/// A mount that goes with its owner.
#[derive(Debug)]
pub struct Mounted {
    target: PathBuf,
}

impl Mounted {
    /// Mounts `what`, a file system of type `kind`, on the directory `target`.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn new(
        what: &str,
        target: &Path,
        kind: &str,
        flags: MsFlags,
        options: &str,
    ) -> anyhow::Result<Self> {
        mount(Some(what), target, Some(kind), flags, Some(options)).with_context(|| {
            format!(
                "mounting {what} ({kind}, {options}) on {}",
                target.display()
            )
        })?;
        Ok(Self {
            target: target.to_owned(),
        })
    }

    /// Takes over what is mounted on the directory `target`.
    #[must_use]
    pub fn adopt(target: &Path) -> Self {
        Self {
            target: target.to_owned(),
        }
    }

    /// Returns where it is mounted.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.target
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Busy means that a killed child has not died yet; the mount goes when it is gone.
        let unmounted = umount2(&self.target, MntFlags::empty())
            .or_else(|_| umount2(&self.target, MntFlags::MNT_DETACH));
        if let Err(error) = unmounted {
            eprintln!("warning: cannot unmount {}: {error}", self.target.display());
        }
    }
}
