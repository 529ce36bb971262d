//! Reads from memory only.

#![expect(
    unsafe_code,
    reason = "preadv2 with flags is in no safe wrapper that we depend on"
)]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// What a read that may not wait came back with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NowaitRead {
    /// So many bytes were in memory and are in the buffer now: fewer than requested at the end of
    /// the file, or where the next page is not in memory. 0 is the end of the file.
    Read(usize),
    /// Not even the first byte is in memory.
    WouldBlock,
    /// This file system, or this kernel, does not support it.
    Unsupported,
}

/// Reads from `offset` into `buf` what the page cache holds, without waiting for a disk.
///
/// The kernel may take the request as a hint and start to read missing pages ahead.
///
/// # Errors
/// Whatever else `preadv2(2)` gives; never `EINTR`.
pub fn pread_nowait(fd: impl AsFd, buf: &mut [u8], offset: u64) -> io::Result<NowaitRead> {
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
        let read = unsafe {
            libc::preadv2(
                fd.as_fd().as_raw_fd(),
                &raw const part,
                1,
                offset,
                libc::RWF_NOWAIT,
            )
        };
        if let Ok(read) = usize::try_from(read) {
            return Ok(NowaitRead::Read(read));
        }
        let error = io::Error::last_os_error();
        return match error.raw_os_error() {
            Some(libc::EINTR) => continue,
            Some(libc::EAGAIN) => Ok(NowaitRead::WouldBlock),
            Some(libc::EOPNOTSUPP | libc::ENOSYS) => Ok(NowaitRead::Unsupported),
            _ => Err(error),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
    use std::fs::File;
    use std::io::Write;

    const PAGES: usize = 64;
    const PAGE: usize = 4096;

    /// On the disk that the sources lie on: a temporary directory may be a tmpfs, which never
    /// drops a page and on older kernels cannot say. What disks have (ext4, xfs, btrfs) can.
    fn file() -> File {
        let mut file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let bytes: Vec<u8> = (0..64u8).flat_map(|page| [page ^ 0x5A; PAGE]).collect();
        file.write_all(&bytes).unwrap();
        file.sync_all().unwrap();
        file
    }

    #[test]
    fn what_was_just_written_is_in_memory() {
        let file = file();
        let mut buf = vec![0; 2 * PAGE];
        let read = pread_nowait(&file, &mut buf, PAGE as u64).unwrap();
        assert_eq!(read, NowaitRead::Read(2 * PAGE));
        assert!(buf[..PAGE].iter().all(|b| *b == 1 ^ 0x5A));
        assert!(buf[PAGE..].iter().all(|b| *b == 2 ^ 0x5A));
    }

    #[test]
    fn the_end_of_the_file_is_short() {
        let file = file();
        let mut buf = vec![0; 2 * PAGE];
        let end = (PAGES * PAGE) as u64;
        let tail = pread_nowait(&file, &mut buf, end - 10).unwrap();
        assert_eq!(tail, NowaitRead::Read(10));
        let past = pread_nowait(&file, &mut buf, end + 10).unwrap();
        assert_eq!(past, NowaitRead::Read(0));
    }

    #[test]
    fn what_was_dropped_from_memory_would_block() {
        let file = file();
        posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
        let mut buf = vec![0; PAGE];
        let cold = pread_nowait(&file, &mut buf, 8 * PAGE as u64).unwrap();
        assert_eq!(cold, NowaitRead::WouldBlock);
    }

    #[test]
    fn an_offset_past_all_files_is_an_error() {
        let file = file();
        assert!(pread_nowait(&file, &mut [0; 8], u64::MAX).is_err());
    }

    #[test]
    fn a_pipe_is_an_error_and_not_a_hang() {
        let (reader, _writer) = std::io::pipe().unwrap();
        assert!(pread_nowait(&reader, &mut [0; 8], 0).is_err());
    }
}
