//! Reading whole copies of files for which the kernel does not use passthrough: programs, and all
//! files where passthrough is not supported.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use blocks::{BlockRange, BlockSource, FileKey, SourceError, WholeCopies};

use super::open_files::OpenFiles;

/// A source whose files are read from their copies, as long as these are readable.
pub struct CopiedSource {
    copies: Arc<dyn WholeCopies>,
    open: OpenFiles,
    source: Arc<dyn BlockSource>,
}

impl std::fmt::Debug for CopiedSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CopiedSource").finish_non_exhaustive()
    }
}

impl CopiedSource {
    /// Reads files of `source` from `copies` where these are.
    pub fn new(copies: Arc<dyn WholeCopies>, source: Arc<dyn BlockSource>) -> Self {
        Self {
            copies,
            open: OpenFiles::new(),
            source,
        }
    }

    /// Reads from a copy, or returns `None` if there is none.
    fn read_copy(&self, key: &FileKey, offset: u64, buf: &mut [u8]) -> io::Result<Option<usize>> {
        let file = match self.open.get(key) {
            Some(file) => file,
            None => match self.open_copy(key)? {
                Some(file) => file,
                None => return Ok(None),
            },
        };
        let len = key.version.size.saturating_sub(offset);
        let len = usize::try_from(len).map_or(buf.len(), |len| len.min(buf.len()));
        let read = file.read_exact_at(&mut buf[..len], offset);
        // One that fails is looked for anew the next time.
        read.inspect_err(|_| self.open.forget(key, &file))?;
        Ok(Some(len))
    }

    /// Opens a copy. It comes locked, and is let go of: whoever takes copies away does not wait for a mount that
    /// may never read again.
    fn open_copy(&self, key: &FileKey) -> io::Result<Option<Arc<File>>> {
        let Some(copy) = self.copies.open_copy(key)? else {
            return Ok(None);
        };
        let copy = File::from(copy);
        copy.unlock()?;
        Ok(Some(self.open.keep(key, copy)))
    }

    fn read_usable_copy(&self, file: &FileKey, offset: u64, buf: &mut [u8]) -> Option<usize> {
        let read = self.read_copy(file, offset, buf);
        read.unwrap_or_else(|error| {
            let number = file.file.0;
            log::warn!("cannot read the copy of file {number}, reading its source: {error}");
            None
        })
    }
}

impl BlockSource for CopiedSource {
    fn read_at(&self, file: &FileKey, offset: u64, buf: &mut [u8]) -> Result<usize, SourceError> {
        match self.read_usable_copy(file, offset, buf) {
            Some(len) => Ok(len),
            None => self.source.read_at(file, offset, buf),
        }
    }

    fn read_once(&self, file: &FileKey, offset: u64, buf: &mut [u8]) -> Result<usize, SourceError> {
        match self.read_usable_copy(file, offset, buf) {
            Some(len) => Ok(len),
            None => self.source.read_once(file, offset, buf),
        }
    }

    fn advise(&self, file: &FileKey, ranges: &[BlockRange]) {
        self.source.advise(file, ranges);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::OwnedFd;
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

    use blocks::{FileId, Version};

    use super::*;

    /// Whole copies of each file in one place, which count how often they are opened.
    #[derive(Default)]
    struct Copies {
        path: PathBuf,
        opened: AtomicU64,
    }

    impl WholeCopies for Copies {
        fn open_copy(&self, _: &FileKey) -> io::Result<Option<OwnedFd>> {
            let Ok(file) = File::open(&self.path) else {
                return Ok(None);
            };
            self.opened.fetch_add(1, SeqCst);
            file.try_lock_shared()?;
            Ok(Some(file.into()))
        }
    }

    /// A source that has only zeros.
    struct Zeros;

    impl BlockSource for Zeros {
        fn read_at(&self, _: &FileKey, _: u64, buf: &mut [u8]) -> Result<usize, SourceError> {
            buf.fill(0);
            Ok(buf.len())
        }
    }

    fn key(size: u64) -> FileKey {
        let version = Version {
            size,
            ..Version::default()
        };
        FileKey {
            file: FileId(1),
            version,
        }
    }

    #[test]
    fn a_copy_is_opened_once_for_many_reads_and_can_be_taken_away_at_any_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("copy");
        fs::write(&path, [7; 4096]).unwrap();
        let copies = Arc::new(Copies {
            path: path.clone(),
            ..Copies::default()
        });
        let source = CopiedSource::new(Arc::clone(&copies) as _, Arc::new(Zeros));
        let read = || {
            let mut buf = [1; 100];
            let read = source.read_at(&key(4096), 1000, &mut buf).unwrap();
            assert_eq!(read, 100);
            assert!(buf.iter().all(|byte| *byte == buf[0]));
            buf[0]
        };
        for _ in 0..10 {
            assert_eq!(read(), 7);
        }
        assert_eq!(copies.opened.load(SeqCst), 1);

        // Whoever takes it away locks it first.
        let taken = File::open(&path).unwrap();
        taken.try_lock().unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(read(), 0, "the source has it");
        fs::write(&path, [8; 4096]).unwrap();
        assert_eq!(read(), 8);
        assert_eq!(copies.opened.load(SeqCst), 2);
    }

    #[test]
    fn a_copy_that_is_too_short_is_not_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("copy");
        fs::write(&path, [7; 10]).unwrap();
        let copies = Arc::new(Copies {
            path,
            ..Copies::default()
        });
        let source = CopiedSource::new(Arc::clone(&copies) as _, Arc::new(Zeros));
        for opened in 1..3 {
            let mut buf = [1; 100];
            assert_eq!(source.read_at(&key(100), 0, &mut buf).unwrap(), 100);
            assert_eq!(buf, [0; 100], "the source has it");
            assert_eq!(copies.opened.load(SeqCst), opened);
        }
    }
}
