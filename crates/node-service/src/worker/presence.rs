//! Detects whether an earlier worker of a mount still runs, if only with a thread that cannot be killed.
//!
//! Each worker opens the file of the names once more, and locks a byte of it for reading. The lock
//! belongs to the open file, which the kernel closes for a killed process when the last of its
//! threads has ended. So a worker that finds no lock but its own is the only one left.
//! Workers of earlier releases have no lock, and count as gone.

use std::fs::File;
use std::os::fd::{AsRawFd as _, OwnedFd};

use anyhow::Context as _;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc::{F_RDLCK, F_UNLCK, F_WRLCK, SEEK_SET, c_int, c_short, flock};
use yolofs::Predecessors;

/// The byte: behind the end of every file of names.
const BYTE: i64 = i64::MAX - 1;

/// Marks this process as serving the mount with these names, until the returned value is dropped, and
/// returns a check for earlier workers; `None`, which is logged, if the lock cannot be taken.
pub(super) fn predecessors(names: &OwnedFd, id: &str) -> Option<Predecessors> {
    let present = Presence::enter(names).inspect_err(|error| {
        log::warn!("{id}: cannot wait for the end of an earlier worker: {error:#}");
    });
    let present = present.ok()?;
    Some(Predecessors::new(move || present.is_alone()))
}

#[derive(Debug)]
struct Presence(File);

impl Presence {
    fn enter(names: &OwnedFd) -> anyhow::Result<Self> {
        // What was handed over is open once for all workers: a lock on that would be everybody's.
        let path = format!("/proc/self/fd/{}", names.as_raw_fd());
        let file = File::open(path).context("opening the names once more")?;
        fcntl(&file, FcntlArg::F_OFD_SETLK(&lock(F_RDLCK))).context("locking the names")?;
        Ok(Self(file))
    }

    fn is_alone(&self) -> bool {
        // Its own lock is in nobody's way. If the kernel does not say, there is somebody.
        let mut found = lock(F_WRLCK);
        let asked = fcntl(&self.0, FcntlArg::F_OFD_GETLK(&mut found));
        asked.is_ok() && c_int::from(found.l_type) == F_UNLCK
    }
}

fn lock(kind: c_int) -> flock {
    flock {
        l_type: c_short::try_from(kind).unwrap_or_default(),
        l_whence: c_short::try_from(SEEK_SET).unwrap_or_default(),
        l_start: BYTE,
        l_len: 1,
        l_pid: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_left_is_told_until_he_is_gone() {
        let names: OwnedFd = tempfile::tempfile().unwrap().into();
        let first = Presence::enter(&names).unwrap();
        assert!(first.is_alone());
        // As the node hands it to the next one.
        let handed = names.try_clone().unwrap();
        let next = Presence::enter(&handed).unwrap();
        assert!(!next.is_alone() && !first.is_alone());
        drop(names);
        assert!(!next.is_alone(), "what was handed over is not the lock");
        let last = Presence::enter(&handed).unwrap();
        drop(next);
        assert!(!last.is_alone());
        drop(first);
        assert!(last.is_alone());
    }
}
