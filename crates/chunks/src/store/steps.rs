//! All changes to the disk, one at a time, so that tests can stop before step *n*, for each *n*, as a
//! kill or a power cut would, or let it fail as a full disk does.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
#[cfg(test)]
use std::sync::Arc;

#[cfg(test)]
pub(super) use testing::{End, Ending};

/// Makes changes.
#[derive(Clone, Debug, Default)]
pub(super) struct Steps {
    #[cfg(test)]
    pub(super) ending: Option<Arc<Ending>>,
}

impl Steps {
    fn take(&self) -> io::Result<()> {
        #[cfg(test)]
        if let Some(ending) = &self.ending {
            return ending.take();
        }
        Ok(())
    }

    /// Creates a file that is not there.
    pub(super) fn create(&self, path: &Path) -> io::Result<File> {
        self.take()?;
        let mut options = File::options();
        options.read(true).write(true).create_new(true).open(path)
    }

    /// Writes all of `bytes` at `offset` of the file at `path`.
    pub(super) fn write(
        &self,
        file: &File,
        path: &Path,
        bytes: &[u8],
        offset: u64,
    ) -> io::Result<()> {
        #[cfg(test)]
        if let Some(ending) = &self.ending {
            return ending.write(file, path, bytes, offset);
        }
        let _ = path;
        file.write_all_at(bytes, offset)
    }

    /// Cuts a file.
    pub(super) fn cut(&self, file: &File, len: u64) -> io::Result<()> {
        self.take()?;
        file.set_len(len)
    }

    /// Makes what was written to a file durable.
    pub(super) fn sync(&self, file: &File, path: &Path) -> io::Result<()> {
        #[cfg(test)]
        if let Some(ending) = &self.ending {
            // Noted, not done: the power cut of the tests is made of the notes, and syncing is slow.
            ending.take()?;
            ending.synced(file, path);
            return Ok(());
        }
        let _ = path;
        file.sync_data()
    }

    /// Makes the names in a directory durable.
    pub(super) fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        #[cfg(test)]
        if let Some(ending) = &self.ending {
            return ending.take();
        }
        File::open(dir)?.sync_all()
    }

    /// Removes a file.
    pub(super) fn remove(&self, path: &Path) -> io::Result<()> {
        self.take()?;
        fs::remove_file(path)
    }
}

#[cfg(test)]
mod testing {
    use std::collections::HashMap;
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use parking_lot::Mutex;

    use super::*;

    /// What happens when the steps are used up.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(in crate::store) enum End {
        /// Nothing more is done: the process was killed, in the middle of a write.
        Killed,
        /// So many steps fail, the writes after half of their bytes, as on a full disk.
        DiskFull {
            /// How many steps fail.
            steps: u64,
        },
    }

    /// Counts steps, and knows what is not durable.
    #[derive(Debug)]
    pub(in crate::store) struct Ending {
        end: End,
        after: u64,
        taken: AtomicU64,
        /// Length up to which each file that was written is durable.
        durable: Mutex<HashMap<PathBuf, u64>>,
    }

    impl Ending {
        pub(in crate::store) fn new(end: End, after: u64) -> Arc<Self> {
            Arc::new(Self {
                end,
                after,
                taken: AtomicU64::new(0),
                durable: Mutex::default(),
            })
        }

        /// Returns whether the end was reached.
        pub(in crate::store) fn reached(&self) -> bool {
            self.taken.load(Relaxed) > self.after
        }

        pub(super) fn take(&self) -> io::Result<()> {
            let taken = self.taken.fetch_add(1, Relaxed);
            match self.end {
                End::Killed if taken >= self.after => Err(io::ErrorKind::Interrupted.into()),
                End::DiskFull { steps } if (self.after..self.after + steps).contains(&taken) => {
                    Err(io::ErrorKind::StorageFull.into())
                }
                _ => Ok(()),
            }
        }

        pub(super) fn write(
            &self,
            file: &File,
            path: &Path,
            bytes: &[u8],
            offset: u64,
        ) -> io::Result<()> {
            let first = !self.reached();
            let result = self.take();
            self.durable.lock().entry(path.to_owned()).or_insert(0);
            if result.is_err() && first {
                file.write_all_at(&bytes[..bytes.len() / 2], offset)?;
            }
            result?;
            file.write_all_at(bytes, offset)
        }

        pub(super) fn synced(&self, file: &File, path: &Path) {
            let len = file.metadata().map_or(0, |meta| meta.len());
            self.durable.lock().insert(path.to_owned(), len);
        }

        /// Does what a power cut does to what was not made durable: half of it is lost, with or
        /// without its length.
        pub(in crate::store) fn cut_power(&self, keeps_length: bool) {
            for (path, durable) in self.durable.lock().drain() {
                let Ok(file) = File::options().write(true).open(&path) else {
                    continue;
                };
                let len = file.metadata().unwrap().len();
                file.set_len(durable + (len.saturating_sub(durable)) / 2)
                    .unwrap();
                if keeps_length {
                    file.set_len(len).unwrap();
                }
            }
        }
    }
}
