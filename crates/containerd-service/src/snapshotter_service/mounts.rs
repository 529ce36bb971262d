//! The mounts of a former process, and those that outlive this one.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use host::mount_table::MOUNT_KIND;
use host::mount_table::{clear, kind_at};

/// How long it takes at most until it is seen that a container let go of a layer. A container
/// has a mount table of its own, whose changes do not wake a poll of this one.
const LOOK_EVERY_MS: u16 = 1000;

/// Unmounts the mounts on the directories in `dir`, and in their subdirectories, and removes them. A
/// process that still serves there has detached its mounts before it released the metadata, so
/// these belong to a dead one; `living` are the node's, and stay.
pub(super) fn clear_dead(dir: &Path, living: &BTreeSet<PathBuf>) -> anyhow::Result<()> {
    let entries = std::fs::read_dir(dir).with_context(|| format!("listing {}", dir.display()))?;
    for entry in entries {
        let path = entry
            .with_context(|| format!("listing {}", dir.display()))?
            .path();
        if living.contains(&path) {
            continue;
        }
        // Not looked into if something dead is mounted there: it would answer ENOTCONN.
        if kind_at(&path)?.as_deref() == Some(MOUNT_KIND) {
            log::warn!("{} was served by a process that died", path.display());
            clear(&path)?;
        } else if path.is_dir() {
            clear_dead(&path, living)?;
        }
        if let Err(error) = std::fs::remove_dir(&path) {
            log::warn!("{}: {error}; left alone", path.display());
        }
    }
    Ok(())
}

/// Waits until `in_use` returns 0, however long that takes: a second signal ends it.
pub(super) fn wait_for_the_last(in_use: impl Fn() -> usize) -> anyhow::Result<()> {
    let table = File::open("/proc/self/mountinfo").context("opening the list of mounts")?;
    let users = in_use();
    if users > 0 {
        log::warn!("{users} layers are still in use: serving them until their containers end");
    }
    while in_use() > 0 {
        let mut waits = [PollFd::new(table.as_fd(), PollFlags::POLLPRI)];
        match poll(&mut waits, PollTimeout::from(LOOK_EVERY_MS)) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno).context("waiting for containers to end"),
        }
    }
    Ok(())
}
