//! The mount table.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::os::fd::{AsFd, BorrowedFd};

use rawio::mount::MountIds;

/// What the mount table shows at one moment: the device of each mount.
#[derive(Clone, Debug, Default)]
pub struct MountTable(HashMap<u64, (u32, u32)>);

impl MountTable {
    /// Reads `/proc/self/mountinfo`, which takes a moment on a machine with many mounts.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn read() -> io::Result<Self> {
        Table::open()?.read()
    }

    /// Takes ids and devices from `text`, that of `/proc/self/mountinfo`. What is not a line of it
    /// lists nothing.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        Self(text.lines().filter_map(mount_and_device).collect())
    }

    /// Returns whether a mount is listed.
    #[must_use]
    pub fn lists(&self, mount: MountIds) -> bool {
        self.0.get(&mount.id) == Some(&(mount.major, mount.minor))
    }
}

/// The mount table, open. The kernel signals `POLLPRI` on it when it has changed since it was
/// read.
#[derive(Debug)]
pub(crate) struct Table {
    file: File,
    text: Vec<u8>,
}

impl Table {
    pub(crate) fn open() -> io::Result<Self> {
        Ok(Self {
            file: File::open("/proc/self/mountinfo")?,
            text: Vec::new(),
        })
    }

    pub(crate) fn read(&mut self) -> io::Result<MountTable> {
        self.text.clear();
        self.file.rewind()?;
        self.file.read_to_end(&mut self.text)?;
        Ok(MountTable::parse(&String::from_utf8_lossy(&self.text)))
    }
}

impl AsFd for Table {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// The first and the third field of a line: the id, and the device as `major:minor`.
fn mount_and_device(line: &str) -> Option<(u64, (u32, u32))> {
    let mut fields = line.split(' ');
    let id = fields.next()?.parse().ok()?;
    let (major, minor) = fields.nth(1)?.split_once(':')?;
    Some((id, (major.parse().ok()?, minor.parse().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn mount(id: u64, minor: u32) -> MountIds {
        MountIds {
            id,
            major: 0,
            minor,
        }
    }

    #[test]
    fn a_mount_is_known_by_id_and_device() {
        let table = MountTable::parse(
            "28 1 0:25 / /run rw,nosuid shared:5 - tmpfs tmpfs rw\n\
             31 28 0:47 / /mnt/a\\040b ro - fuse.yolofs src ro\n\
             no line of it\n",
        );
        assert!(table.lists(mount(31, 47)));
        assert!(table.lists(mount(28, 25)));
        assert!(!table.lists(mount(31, 25)));
        assert!(!table.lists(mount(1, 25)));
        assert!(!table.lists(mount(31, 4)));
        assert!(!MountTable::parse("").lists(mount(31, 47)));
    }
}
