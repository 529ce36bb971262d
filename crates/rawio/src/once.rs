//! Reads whose bytes are stored elsewhere: they leave no pages in the page cache that were
//! not there before.
//!
//! Linux supports that since 6.14 (`RWF_DONTCACHE`), on some file systems. Elsewhere the pages
//! are checked before a read, and those that it loaded are dropped after it. Pages that another
//! process loads at the same moment may be dropped with them: that costs it a read of the disk.
//!
//! The kernel's readahead is not dropped: such reads should be large, with readahead switched off
//! ([`FileReadahead`](crate::readahead::FileReadahead)). That matters for another reason, too: a page is dropped with
//! all of its folio, and a folio that was read ahead is larger than a read.

#![expect(
    unsafe_code,
    reason = "preadv2 with flags is in no safe wrapper that we depend on"
)]

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use crate::read::{NowaitRead, pread_nowait};
use crate::resident::{Resident, is_only_copy};

/// How the files of one file system are read without leaving pages, as far as it was determined.
#[derive(Debug, Default)]
pub struct Once(AtomicU8);

/// The kernel does it, or was not asked yet.
const BY_KERNEL: u8 = 0;
/// It does not: pages are looked at, and dropped.
const BY_HAND: u8 = 1;

impl Once {
    /// Reads from `offset` into `buf`, as `pread(2)`, and returns how many bytes.
    ///
    /// # Errors
    /// As `preadv2(2)`; never `EINTR`, and never because the pages cannot be dropped.
    pub fn pread(&self, file: impl AsFd, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        if self.0.load(Relaxed) == BY_KERNEL {
            match preadv2(&file, buf, offset, libc::RWF_DONTCACHE) {
                Err(error) if is_unsupported(&error) => self.0.store(BY_HAND, Relaxed),
                read => return read,
            }
        }
        let bytes = range(offset, buf);
        let before = look(&file, bytes.clone());
        let read = preadv2(&file, buf, offset, 0)?;
        if let Some(before) = before {
            // Whatever cannot be dropped stays: only memory is lost.
            before.drop_others(&file, bytes).unwrap_or_default();
        }
        Ok(read)
    }

    /// Reads from `offset` into `buf` what the page cache has, as [`pread_nowait`].
    ///
    /// # Errors
    /// As there.
    pub fn pread_nowait(
        &self,
        file: impl AsFd,
        buf: &mut [u8],
        offset: u64,
    ) -> io::Result<NowaitRead> {
        if self.0.load(Relaxed) == BY_KERNEL {
            let flags = libc::RWF_NOWAIT | libc::RWF_DONTCACHE;
            match preadv2(&file, buf, offset, flags) {
                Ok(read) => return Ok(NowaitRead::Read(read)),
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {
                    return Ok(NowaitRead::WouldBlock);
                }
                Err(error) if is_unsupported(&error) => {}
                Err(error) => return Err(error),
            }
        }
        // Such a read may begin to bring what is missing, and then nobody could tell any more that
        // it was missing.
        match Resident::look(&file, range(offset, buf)) {
            Ok(there) if !there.is_all() && !is_past_end(&file, offset, buf) => {
                Ok(NowaitRead::WouldBlock)
            }
            _ => pread_nowait(file, buf, offset),
        }
    }
}

/// What is there before a read; `None` if nothing is to be dropped after it, or it cannot be determined.
fn look(file: &impl AsFd, bytes: Range<u64>) -> Option<Resident> {
    if is_only_copy(file).unwrap_or(true) {
        return None;
    }
    Resident::look(file, bytes).ok()
}

/// Whether a read reaches the end of the file, behind which no pages are.
fn is_past_end(file: &impl AsFd, offset: u64, buf: &[u8]) -> bool {
    let Ok(stat) = nix::sys::stat::fstat(file.as_fd()) else {
        return false;
    };
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    if range(offset, buf).end <= size {
        return false;
    }
    let there = Resident::look(file, offset..size.max(offset));
    there.is_ok_and(|there| there.is_all())
}

fn range(offset: u64, buf: &[u8]) -> Range<u64> {
    offset..offset.saturating_add(buf.len() as u64)
}

fn is_unsupported(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS))
}

fn preadv2(file: &impl AsFd, buf: &mut [u8], offset: u64, flags: libc::c_int) -> io::Result<usize> {
    let Ok(offset) = libc::off_t::try_from(offset) else {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    };
    let part = libc::iovec {
        iov_base: buf.as_mut_ptr().cast(),
        iov_len: buf.len(),
    };
    loop {
        // SAFETY: `part` is one iovec that describes exactly `buf`, which is borrowed mutably for
        // the whole call; the descriptor is borrowed and open. The kernel writes nothing else.
        let read =
            unsafe { libc::preadv2(file.as_fd().as_raw_fd(), &raw const part, 1, offset, flags) };
        if let Ok(read) = usize::try_from(read) {
            return Ok(read);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Write as _;
    use std::os::unix::fs::FileExt as _;

    use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

    use crate::cached::cached_pages;
    use crate::readahead::{FileReadahead, Readahead};

    const PAGE: usize = 4096;
    const PAGES: usize = 512;

    /// What the bytes of a page are.
    fn mark(page: usize) -> u8 {
        u8::try_from(page % 251).unwrap()
    }

    /// On the disk that the sources lie on, and cold.
    fn file() -> File {
        let mut file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let bytes: Vec<u8> = (0..PAGES).flat_map(|page| [mark(page); PAGE]).collect();
        file.write_all(&bytes[..bytes.len() - 100]).unwrap();
        file.sync_all().unwrap();
        posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
        FileReadahead::default().set(&file, Readahead::Off);
        file
    }

    fn cached(file: &File) -> u64 {
        let all = Resident::look(file, 0..(PAGES * PAGE) as u64).unwrap();
        let pages = cached_pages(file, 0, (PAGES * PAGE) as u64);
        let bits = all.count();
        if let Ok(pages) = pages {
            assert_eq!(pages, bits);
        }
        bits
    }

    fn both(test: impl Fn(Once)) {
        test(Once::default());
        test(Once(AtomicU8::new(BY_HAND)));
    }

    #[test]
    fn a_read_leaves_what_was_there_and_nothing_else() {
        both(|once| {
            let file = file();
            let mut warm = [0; PAGE];
            file.read_exact_at(&mut warm, 5 * PAGE as u64).unwrap();
            assert_eq!(cached(&file), 1);
            let mut buf = vec![0; 100 * PAGE];
            for start in [0, 100, 17, 500] {
                let read = once.pread(&file, &mut buf, (start * PAGE) as u64).unwrap();
                let want = (100 * PAGE).min(PAGES * PAGE - 100 - start * PAGE);
                assert_eq!(read, want);
                for (page, bytes) in buf[..read].chunks(PAGE).enumerate() {
                    assert!(bytes.iter().all(|byte| *byte == mark(start + page)));
                }
            }
            assert_eq!(cached(&file), 1);
        });
    }

    #[test]
    fn who_asks_for_what_is_in_memory_leaves_nothing_either() {
        both(|once| {
            let file = file();
            let mut buf = vec![0; 4 * PAGE];
            let cold = once.pread_nowait(&file, &mut buf, 8 * PAGE as u64);
            assert_eq!(cold.unwrap(), NowaitRead::WouldBlock);
            assert_eq!(
                once.pread(&file, &mut buf, 8 * PAGE as u64).unwrap(),
                4 * PAGE
            );
            assert_eq!(cached(&file), 0);
            file.read_exact_at(&mut buf, 8 * PAGE as u64).unwrap();
            let warm = once.pread_nowait(&file, &mut buf, 8 * PAGE as u64);
            assert_eq!(warm.unwrap(), NowaitRead::Read(4 * PAGE));
            assert_eq!(cached(&file), 4);
            let last = ((PAGES - 1) * PAGE) as u64;
            let cold = once.pread_nowait(&file, &mut buf, last);
            assert_eq!(cold.unwrap(), NowaitRead::WouldBlock);
            // The first look may have begun to bring it, to be dropped by whoever reads it next.
            let read = file.read_at(&mut buf, last).unwrap();
            assert_eq!(file.read_at(&mut buf, last).unwrap(), read);
            let warm = once.pread_nowait(&file, &mut buf, last);
            assert_eq!(warm.unwrap(), NowaitRead::Read(read));
        });
    }

    #[test]
    fn what_is_in_memory_only_is_read_as_it_is() {
        let mut file = tempfile::tempfile_in("/dev/shm").unwrap();
        file.write_all(&[7; 3 * PAGE]).unwrap();
        both(|once| {
            let mut buf = vec![0; 4 * PAGE];
            assert_eq!(once.pread(&file, &mut buf, 0).unwrap(), 3 * PAGE);
            assert_eq!(once.pread(&file, &mut buf, 0).unwrap(), 3 * PAGE);
            // Some kernels cannot say of such files whether a read would wait.
            let warm = once.pread_nowait(&file, &mut buf, 0).unwrap();
            assert_ne!(warm, NowaitRead::WouldBlock);
        });
    }
}
