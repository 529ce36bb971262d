//! Read-around on the source of a boot that is being recorded.
//!
//! A recorder's mount reads nothing ahead, so that it records what was requested and no more (ADR 4).
//! On a disk that is slow at small requests that made a recorded boot several times slower than a
//! native one, for which the kernel reads around each page fault. So the source does that here: a
//! read of pages that are not in memory loads the pages around them into the page cache of the
//! *source*. The trace is the same; the disk gets the same requests as without yolofs.

use std::sync::Arc;

use blocks::{BlockRange, BlockSource, FileKey, Residency as _, SourceError};
use localfs::{DirSource, Prompt};

/// How much is read around, aligned to as much. What of it the disk's own readahead has no room for
/// is left to the next miss. Of a Python program that a native boot reads with 374 requests from a
/// disk with 8 MiB of readahead, a recorded one makes 1009 without this, 481 with 128 KiB, 410 with
/// 512 KiB and 386 with 2 MiB.
const WINDOW_BYTES: u64 = 2 << 20;

/// A source that reads around misses.
#[derive(Debug)]
pub struct ReadAround(Arc<DirSource>);

impl ReadAround {
    /// Returns `source`, reading around.
    #[must_use]
    pub const fn new(source: Arc<DirSource>) -> Self {
        Self(source)
    }

    /// Has the window around `offset` brought into the source's page cache. Nobody waits for it but
    /// who reads from it: a program goes on with its page while the rest comes, as natively.
    fn bring(&self, file: &FileKey, offset: u64) {
        let start = offset - offset % WINDOW_BYTES;
        let end = start.saturating_add(WINDOW_BYTES).min(file.version.size);
        self.0.begin_to_read(file, start, end.saturating_sub(start));
    }
}

impl BlockSource for ReadAround {
    fn read_at(&self, file: &FileKey, offset: u64, buf: &mut [u8]) -> Result<usize, SourceError> {
        let len = buf.len() as u64;
        if len < WINDOW_BYTES && self.0.is_resident(file, offset, len) == Some(false) {
            self.bring(file, offset);
        }
        self.0.read_at(file, offset, buf)
    }

    fn advise(&self, file: &FileKey, ranges: &[BlockRange]) {
        self.0.advise(file, ranges);
    }
}

impl Prompt for ReadAround {
    fn read_now(
        &self,
        file: &FileKey,
        offset: u64,
        buf: &mut [u8],
    ) -> Option<Result<usize, SourceError>> {
        self.0.read_now(file, offset, buf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Source;
    use std::time::{Duration, Instant};

    use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

    #[test]
    fn a_miss_brings_its_surroundings() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let content: Vec<u8> = (0..2_u32 << 20).map(|byte| byte.to_le_bytes()[1]).collect();
        std::fs::write(&path, &content).unwrap();
        let file = std::fs::File::open(&path).unwrap();
        file.sync_all().unwrap();
        posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
        let source = Source::open(dir.path()).unwrap();
        let key = source
            .tree
            .key(source.tree.resolve(b"file").unwrap())
            .unwrap();
        let reader = source.reader();
        let (asked, near) = ((1 << 20) + 4096, (1 << 20) + (256 << 10));
        assert_eq!(reader.is_resident(&key, near, 4096), Some(false));
        let mut buf = [0; 4096];
        let around = ReadAround::new(Arc::clone(&reader));
        assert_eq!(around.read_at(&key, asked, &mut buf).unwrap(), buf.len());
        let at = usize::try_from(asked).unwrap();
        assert_eq!(buf, content[at..at + buf.len()]);
        let deadline = Instant::now() + Duration::from_secs(60);
        while reader.is_resident(&key, near, 4096) == Some(false) {
            assert!(Instant::now() < deadline, "the surroundings do not come");
            std::thread::sleep(Duration::from_millis(1)); // nothing tells
        }
        assert_eq!(reader.is_resident(&key, near, 4096), Some(true));
    }
}
