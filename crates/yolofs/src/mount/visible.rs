//! The visible mount: its line in the mount table.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;

use nix::sys::stat::{fstat, major, minor};
use rawio::mount::{DetachedMount, mount_id};

/// What tells our mount from all others: its id and the device number of its file system. Ids are
/// used again by later mounts, but the device number is ours as long as the private mount is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MountRecord {
    pub(super) id: u64,
    major: u64,
    minor: u64,
}

/// What the mount table shows at one moment: the device of each mount.
#[derive(Debug)]
pub(super) struct Listed(HashMap<u64, (u64, u64)>);

impl MountRecord {
    pub(super) fn of(mount: &DetachedMount) -> io::Result<Self> {
        let device = fstat(mount)?.st_dev;
        Ok(Self {
            id: mount_id(mount.as_fd())?,
            major: major(device),
            minor: minor(device),
        })
    }

    /// Whether the mount is listed.
    pub(super) fn is_in(&self, listed: &Listed) -> bool {
        listed.0.get(&self.id) == Some(&(self.major, self.minor))
    }

    /// Sets how far the kernel reads ahead in all files opened from now on. What it was told in
    /// the first talk can only be less than its default.
    pub(super) fn set_readahead(&self, kib: u32) {
        let path = format!("/sys/class/bdi/{}:{}/read_ahead_kb", self.major, self.minor);
        if let Err(error) = std::fs::write(&path, kib.to_string()) {
            log::warn!("readahead stays as it is: writing {path}: {error}");
        }
    }
}

impl Listed {
    /// Takes ids and devices from `table`, the text of `/proc/self/mountinfo`. What is not a line
    /// of it lists nothing.
    pub(super) fn of(table: &str) -> Self {
        Self(table.lines().filter_map(mount_and_device).collect())
    }
}

/// The first and the third field of a line: the id, and the device as `major:minor`.
fn mount_and_device(line: &str) -> Option<(u64, (u64, u64))> {
    let mut fields = line.split(' ');
    let id = fields.next()?.parse().ok()?;
    let (major, minor) = fields.nth(1)?.split_once(':')?;
    Some((id, (major.parse().ok()?, minor.parse().ok()?)))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::mount) const fn record(id: u64, minor: u64) -> MountRecord {
        MountRecord {
            id,
            major: 0,
            minor,
        }
    }

    #[test]
    fn a_mount_is_known_by_id_and_device() {
        let listed = Listed::of(
            "28 1 0:25 / /run rw,nosuid shared:5 - tmpfs tmpfs rw\n\
             31 28 0:47 / /mnt/a\\040b ro - fuse.yolofs src ro\n\
             no line of it\n",
        );
        assert!(record(31, 47).is_in(&listed));
        assert!(record(28, 25).is_in(&listed));
        assert!(!record(31, 25).is_in(&listed));
        assert!(!record(1, 25).is_in(&listed));
        assert!(!record(31, 4).is_in(&listed));
        assert!(!record(31, 47).is_in(&Listed::of("")));
    }
}
