//! The visible mount: its line in the mount table, and a thread that watches it.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::JoinHandle;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::stat::{fstat, major, minor};
use rawio::mount::{DetachedMount, mount_id};

use super::{MountError, State};

/// What tells our mount from all others: its id and the device number of its file system. Ids are
/// used again by later mounts, but the device number is ours as long as the private mount is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MountRecord {
    pub(super) id: u64,
    major: u64,
    minor: u64,
}

impl MountRecord {
    pub(super) fn of(mount: &DetachedMount) -> io::Result<Self> {
        let device = fstat(mount)?.st_dev;
        Ok(Self {
            id: mount_id(mount.as_fd())?,
            major: major(device),
            minor: minor(device),
        })
    }

    /// Whether `table`, the text of `/proc/self/mountinfo`, lists the mount.
    fn is_in(&self, table: &str) -> bool {
        let device = format!("{}:{}", self.major, self.minor);
        table.lines().any(|line| {
            let mut fields = line.split(' ');
            let id = fields.next().and_then(|id| id.parse().ok());
            id == Some(self.id) && fields.nth(1) == Some(&device)
        })
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

/// Watches the mount table until the visible mount is gone, or until dropped.
#[derive(Debug)]
pub(super) struct Watcher {
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    pub(super) fn start(record: MountRecord, state: &Arc<State>) -> Result<Self, MountError> {
        let step = "watching the mount table";
        let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC);
        let stop = Arc::new(event.map_err(|errno| MountError::step(step)(errno.into()))?);
        let table = File::open("/proc/self/mountinfo").map_err(MountError::step(step))?;
        let worker = (Arc::clone(&stop), Arc::clone(state));
        let thread = std::thread::Builder::new()
            .name("yolofs-watch".to_owned())
            .spawn(move || match watch(record, table, &worker.0) {
                Ok(Seen::Gone) => worker.1.visible_gone(),
                Ok(Seen::Stopped) => (),
                Err(error) => log::error!("cannot watch the mount table: {error}"),
            })
            .map_err(MountError::step(step))?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        if let Err(error) = self.stop.write(1) {
            log::error!("cannot stop watching the mount table: {error}");
            return;
        }
        if self
            .thread
            .take()
            .is_some_and(|thread| thread.join().is_err())
        {
            log::error!("the thread that watches the mount table panicked");
        }
    }
}

enum Seen {
    Gone,
    Stopped,
}

fn watch(record: MountRecord, mut table: File, stop: &EventFd) -> io::Result<Seen> {
    let mut text = Vec::new();
    loop {
        text.clear();
        table.rewind()?;
        table.read_to_end(&mut text)?;
        if !record.is_in(&String::from_utf8_lossy(&text)) {
            return Ok(Seen::Gone);
        }
        // The kernel remembers what it last reported to this descriptor: a change between the
        // read above and the poll is not lost.
        let mut waits = [
            PollFd::new(table.as_fd(), PollFlags::POLLPRI),
            PollFd::new(stop.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut waits, PollTimeout::NONE) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => (),
            Err(errno) => return Err(errno.into()),
        }
        if waits[1].any().unwrap_or(false) {
            return Ok(Seen::Stopped);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_known_by_id_and_device() {
        let table = "28 1 0:25 / /run rw,nosuid shared:5 - tmpfs tmpfs rw\n\
                     31 28 0:47 / /mnt/a\\040b ro - fuse.yolofs src ro\n";
        let record = |id, minor| MountRecord {
            id,
            major: 0,
            minor,
        };
        assert!(record(31, 47).is_in(table));
        assert!(record(28, 25).is_in(table));
        assert!(!record(31, 25).is_in(table));
        assert!(!record(1, 25).is_in(table));
        assert!(!record(31, 4).is_in(table));
        assert!(!record(31, 47).is_in(""));
    }
}
