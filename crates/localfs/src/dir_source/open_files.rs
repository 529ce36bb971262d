//! A bounded number of files that are held open between reads.

use std::collections::HashMap;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use blocks::FileId;
use parking_lot::Mutex;
use rawio::readahead::{FileReadahead, Readahead};

/// An open file, and what the kernel reads ahead of it.
#[derive(Debug)]
pub(super) struct OpenFile {
    fd: OwnedFd,
    readahead: FileReadahead,
}

impl OpenFile {
    pub(super) fn new(fd: OwnedFd) -> Self {
        Self {
            fd,
            readahead: FileReadahead::default(),
        }
    }

    /// Sets what the kernel reads ahead of the next reads.
    pub(super) fn set_readahead(&self, readahead: Readahead) {
        self.readahead.set(&self.fd, readahead);
    }
}

impl AsFd for OpenFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Open files, shared by threads. Evicts by the clock algorithm: a hand goes round and evicts the
/// first file that was not used since its last visit.
///
/// The lock is held for a look-up only: files are opened, read and closed outside.
pub(super) struct OpenFiles {
    limit: usize,
    clock: Mutex<Clock>,
}

#[derive(Default)]
struct Clock {
    slots: Vec<Slot>,
    by_file: HashMap<FileId, usize>,
    hand: usize,
}

struct Slot {
    file: FileId,
    fd: Arc<OpenFile>,
    used: bool,
}

impl OpenFiles {
    /// Returns a cache for at most `limit` files, at least one.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit: limit.max(1),
            clock: Mutex::default(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.clock.lock().slots.len()
    }

    pub(super) fn get(&self, file: FileId) -> Option<Arc<OpenFile>> {
        let mut clock = self.clock.lock();
        let at = *clock.by_file.get(&file)?;
        let slot = clock.slots.get_mut(at)?;
        slot.used = true;
        Some(Arc::clone(&slot.fd))
    }

    pub(super) fn insert(&self, file: FileId, fd: Arc<OpenFile>) {
        // Closed when this function returns, which is after the lock is released: closing a
        // file may take long on a network file system.
        let _evicted = self.clock.lock().insert(file, fd, self.limit);
    }

    /// Closes all of them; a file that is being read is closed after the read.
    pub(super) fn clear(&self) {
        let _removed = std::mem::take(&mut *self.clock.lock());
    }

    pub(super) fn remove(&self, file: FileId) {
        let _removed = self.clock.lock().remove(file);
    }
}

impl Clock {
    /// Returns the file that had to go, or an older descriptor of the same file.
    fn insert(&mut self, file: FileId, fd: Arc<OpenFile>, limit: usize) -> Option<Slot> {
        let slot = Slot {
            file,
            fd,
            used: false,
        };
        let at = match self.by_file.get(&file) {
            Some(at) => *at,
            None if self.slots.len() < limit => {
                self.by_file.insert(file, self.slots.len());
                self.slots.push(slot);
                return None;
            }
            None => self.victim(),
        };
        let old = std::mem::replace(&mut self.slots[at], slot);
        self.by_file.remove(&old.file);
        self.by_file.insert(file, at);
        Some(old)
    }

    fn victim(&mut self) -> usize {
        loop {
            self.hand = (self.hand + 1) % self.slots.len();
            if !std::mem::replace(&mut self.slots[self.hand].used, false) {
                return self.hand;
            }
        }
    }

    fn remove(&mut self, file: FileId) -> Option<Slot> {
        let at = self.by_file.remove(&file)?;
        let slot = self.slots.swap_remove(at);
        if let Some(moved) = self.slots.get(at) {
            self.by_file.insert(moved.file, at);
        }
        Some(slot)
    }
}

impl fmt::Debug for OpenFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenFiles")
            .field("limit", &self.limit)
            .field("open", &self.len())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Op {
        Get(u32),
        Insert(u32),
        Remove(u32),
    }

    fn any_op() -> impl Strategy<Value = Op> {
        let file = || 0..12_u32;
        prop_oneof![
            file().prop_map(Op::Get),
            file().prop_map(Op::Insert),
            file().prop_map(Op::Remove),
        ]
    }

    fn some_fd() -> Arc<OpenFile> {
        Arc::new(OpenFile::new(std::io::pipe().unwrap().0.into()))
    }

    proptest! {
        #[test]
        fn it_has_at_most_so_many_and_never_the_wrong_one(
            limit in 1..6_usize,
            ops in prop::collection::vec(any_op(), 0..100),
        ) {
            let open = OpenFiles::new(limit);
            let mut latest: HashMap<u32, Arc<OpenFile>> = HashMap::new();
            for op in ops {
                match op {
                    Op::Insert(file) => {
                        let fd = some_fd();
                        open.insert(FileId(file), Arc::clone(&fd));
                        let got = open.get(FileId(file));
                        prop_assert!(got.is_some_and(|got| Arc::ptr_eq(&got, &fd)));
                        latest.insert(file, fd);
                    }
                    Op::Get(file) => {
                        if let Some(got) = open.get(FileId(file)) {
                            let fd = latest.get(&file);
                            prop_assert!(fd.is_some_and(|fd| Arc::ptr_eq(&got, fd)));
                        }
                    }
                    Op::Remove(file) => {
                        open.remove(FileId(file));
                        latest.remove(&file);
                        prop_assert!(open.get(FileId(file)).is_none());
                    }
                }
                prop_assert!(open.len() <= limit);
                let here = (0..12).filter(|file| open.get(FileId(*file)).is_some()).count();
                prop_assert_eq!(here, open.len());
            }
        }
    }

    #[test]
    fn what_was_used_stays_and_the_others_go() {
        let open = OpenFiles::new(3);
        for file in 0..3 {
            open.insert(FileId(file), some_fd());
        }
        let used = open.get(FileId(1)).unwrap();
        open.insert(FileId(3), some_fd());
        open.insert(FileId(4), some_fd());
        assert!(Arc::ptr_eq(&open.get(FileId(1)).unwrap(), &used));
        assert_eq!(open.len(), 3);
    }
}
