//! Files that are passed through: to the source, or to a copy on faster memory.
//!
//! The kernel refuses to have one inode open through its page cache and passed through at the
//! same time, and to pass it through to two files. So what the first open came to holds for all
//! opens until the last of them is closed; the next one is free again.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::sync::Arc;

use blocks::FileId;
use fuser::BackingId;
use parking_lot::Mutex;

use crate::fs::{Backing, OpenDecision, PassedTo};

/// How a file was opened.
#[derive(Clone, Debug)]
pub(super) enum Opened {
    /// Through the page cache.
    Cached,
    /// To the file that the kernel knows by this id.
    Passed(Arc<BackingId>, PassedTo),
}

/// A file that is open.
#[derive(Debug)]
struct OpenFile {
    /// Where it is passed to, unless it goes through the page cache.
    passed: Option<(Arc<BackingId>, PassedTo)>,
    opens: u64,
    /// Whether the kernel refused all files that it was offered: no more are offered.
    refused: bool,
}

/// The decisions about open files. When the last user closes one, the kernel has dropped the decision
/// before it notifies us.
#[derive(Debug, Default)]
pub(super) struct Backings {
    ways: Mutex<HashMap<FileId, OpenFile>>,
}

impl Backings {
    /// Opens a file as it is open already; `None` if it is not, and no decision was made
    /// yet.
    pub(super) fn open_again(&self, file: FileId) -> Option<Opened> {
        let mut ways = self.ways.lock();
        ways.get_mut(&file).map(OpenFile::open)
    }

    /// Opens a file the way it is open already, or else as decided; `register` makes a file known
    /// to the kernel.
    pub(super) fn open(
        &self,
        file: FileId,
        decision: OpenDecision,
        register: impl FnMut(&Backing) -> io::Result<BackingId>,
    ) -> Opened {
        let mut ways = self.ways.lock();
        let way = match ways.entry(file) {
            Entry::Occupied(way) => way.into_mut(),
            Entry::Vacant(vacant) => vacant.insert(OpenFile::decide(decision, register)),
        };
        way.open()
    }

    /// Closes a file; with the last close of one that was passed through the kernel forgets its id.
    pub(super) fn close(&self, file: FileId) {
        let mut ways = self.ways.lock();
        if let Entry::Occupied(mut way) = ways.entry(file) {
            let opens = &mut way.get_mut().opens;
            *opens = opens.saturating_sub(1);
            if *opens == 0 && !way.get().refused {
                way.remove();
            }
        }
    }
}

impl OpenFile {
    fn open(&mut self) -> Opened {
        self.opens += 1;
        match &self.passed {
            Some((id, to)) => Opened::Passed(Arc::clone(id), *to),
            None => Opened::Cached,
        }
    }

    /// Takes the first file that the kernel does, and the page cache if it takes none.
    fn decide(
        decision: OpenDecision,
        mut register: impl FnMut(&Backing) -> io::Result<BackingId>,
    ) -> Self {
        let offered = match decision {
            OpenDecision::Cached => Vec::new(),
            OpenDecision::Passthrough(offered) => offered,
        };
        let mut refused = false;
        for backing in offered {
            match register(&backing) {
                Ok(id) => {
                    return Self {
                        passed: Some((Arc::new(id), backing.to)),
                        opens: 0,
                        refused: false,
                    };
                }
                // An old kernel, or a file that lies on a stacked file system.
                Err(error) => {
                    let to = backing.to.name();
                    log::info!("files are not passed through to the {to}: {error}");
                    refused = true;
                }
            }
        }
        Self {
            passed: None,
            opens: 0,
            refused,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::errno::Errno;
    use std::os::fd::OwnedFd;

    #[test]
    fn what_the_kernel_does_not_pass_through_is_cached_from_then_on() {
        let backings = Backings::default();
        let mut asked = Vec::new();
        for _ in 0..3 {
            let opened = backings.open(FileId(1), offered(), |backing| {
                asked.push(backing.to);
                Err(Errno::ENFILE.into())
            });
            assert!(matches!(opened, Opened::Cached));
            backings.close(FileId(1));
        }
        assert_eq!(asked, [PassedTo::Copy, PassedTo::Source], "once only");
    }

    #[test]
    fn what_is_open_through_the_page_cache_stays_so_until_it_is_closed() {
        let backings = Backings::default();
        for _ in 0..2 {
            let never =
                |_: &Backing| -> io::Result<BackingId> { panic!("it was not to be passed") };
            assert!(matches!(
                backings.open(FileId(1), OpenDecision::Cached, never),
                Opened::Cached
            ));
        }
        backings.close(FileId(1));
        // The kernel would not take one file both ways.
        let never = |_: &Backing| -> io::Result<BackingId> { panic!("it is open another way") };
        assert!(matches!(
            backings.open(FileId(1), offered(), never),
            Opened::Cached
        ));
        backings.close(FileId(1));
        backings.close(FileId(1));
        let mut asked = 0;
        backings.open(FileId(1), offered(), |_| {
            asked += 1;
            Err(Errno::ENFILE.into())
        });
        assert_eq!(asked, 2, "nobody has it open any more");
        // One that nobody has open, as after another process served the mount.
        backings.close(FileId(2));
    }

    /// A copy and the source.
    fn offered() -> OpenDecision {
        let file = |to| Backing {
            fd: OwnedFd::from(std::fs::File::open("/").unwrap()),
            to,
        };
        OpenDecision::Passthrough(vec![file(PassedTo::Copy), file(PassedTo::Source)])
    }
}
