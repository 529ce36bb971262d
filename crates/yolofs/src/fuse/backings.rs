//! Files that are passed through to the source.
//!
//! The kernel refuses to have one inode open through its page cache and passed through at the
//! same time, and to pass it through to two files. So what the first open came to holds: for all
//! opens until the last passed one is closed, and for good if it was cached.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use blocks::FileId;
use fuser::BackingId;
use parking_lot::Mutex;

use crate::fs::OpenDecision;

/// How a file was opened.
#[derive(Debug)]
pub(super) enum Opened {
    /// Through the page cache.
    Cached,
    /// To the file that the kernel knows by this id.
    Passed(Arc<BackingId>),
}

#[derive(Debug)]
enum Way {
    Cached,
    Passed { id: Arc<BackingId>, opens: u64 },
}

/// What the opens of each file came to.
#[derive(Debug, Default)]
pub(super) struct Backings {
    ways: Mutex<HashMap<FileId, Way>>,
}

impl Backings {
    /// Opens a file the way it is open already, or else as decided; `register` makes a file known
    /// to the kernel.
    pub(super) fn open(
        &self,
        file: FileId,
        decision: OpenDecision,
        register: impl FnOnce(OwnedFd) -> io::Result<BackingId>,
    ) -> Opened {
        match self.ways.lock().entry(file) {
            Entry::Occupied(mut way) => match way.get_mut() {
                Way::Cached => Opened::Cached,
                Way::Passed { id, opens } => {
                    *opens += 1;
                    Opened::Passed(Arc::clone(id))
                }
            },
            Entry::Vacant(vacant) => {
                let OpenDecision::Passthrough(fd) = decision else {
                    vacant.insert(Way::Cached);
                    return Opened::Cached;
                };
                match register(fd) {
                    Ok(id) => {
                        let id = Arc::new(id);
                        vacant.insert(Way::Passed {
                            id: Arc::clone(&id),
                            opens: 1,
                        });
                        Opened::Passed(id)
                    }
                    // An old kernel, or a source that lies on a stacked file system.
                    Err(error) => {
                        log::info!("files are not passed through: {error}");
                        vacant.insert(Way::Cached);
                        Opened::Cached
                    }
                }
            }
        }
    }

    /// Closes a file that was passed through; with the last close the kernel forgets its id.
    pub(super) fn close(&self, file: FileId) {
        let mut ways = self.ways.lock();
        if let Some(Way::Passed { opens, .. }) = ways.get_mut(&file) {
            *opens -= 1;
            if *opens == 0 {
                ways.remove(&file);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::errno::Errno;

    #[test]
    fn what_the_kernel_does_not_pass_through_is_cached_from_then_on() {
        let backings = Backings::default();
        let file = || OwnedFd::from(std::fs::File::open("/").unwrap());
        for _ in 0..2 {
            let pass = OpenDecision::Passthrough(file());
            let opened = backings.open(FileId(1), pass, |_| Err(Errno::ENFILE.into()));
            assert!(matches!(opened, Opened::Cached));
        }
        // Nor would it take one file both ways.
        let never = |_| -> io::Result<BackingId> { panic!("it was opened another way") };
        let opened = backings.open(FileId(1), OpenDecision::Passthrough(file()), never);
        assert!(matches!(opened, Opened::Cached));
    }
}
