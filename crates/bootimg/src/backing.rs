//! Where the bytes of an image lie: in a file, or in memory.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

use crate::layout::{len_usize, len64};

/// Bytes that can be read from any place.
#[derive(Clone, Debug)]
pub(crate) enum Backing {
    File(Arc<File>),
    Memory(Arc<[u8]>),
}

impl Backing {
    pub(crate) fn len(&self) -> io::Result<u64> {
        match self {
            Self::File(file) => Ok(file.metadata()?.len()),
            Self::Memory(bytes) => Ok(len64(bytes.len())),
        }
    }

    /// Fills `out` from `offset`; fails if there are not enough bytes.
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        match self {
            Self::File(file) => file.read_exact_at(out, offset),
            Self::Memory(bytes) => {
                let start = len_usize(offset);
                let end = start.saturating_add(out.len());
                let here = bytes.get(start..end).ok_or(io::ErrorKind::UnexpectedEof)?;
                out.copy_from_slice(here);
                Ok(())
            }
        }
    }

    /// Reads `len` bytes, which the caller has bounded by the length of the file.
    pub(crate) fn read_vec(&self, offset: u64, len: u64) -> io::Result<Vec<u8>> {
        let mut out = vec![0; len_usize(len)];
        self.read(offset, &mut out)?;
        Ok(out)
    }

    /// Says that all of it will be read from front to back.
    pub(crate) fn advise_sequential(&self) {
        self.advise(0, 0, PosixFadviseAdvice::POSIX_FADV_SEQUENTIAL);
    }

    /// Says that these bytes will be read soon.
    pub(crate) fn advise_soon(&self, offset: u64, len: u64) {
        self.advise(offset, len, PosixFadviseAdvice::POSIX_FADV_WILLNEED);
    }

    fn advise(&self, offset: u64, len: u64, advice: PosixFadviseAdvice) {
        let (Self::File(file), Ok(offset), Ok(len)) =
            (self, i64::try_from(offset), i64::try_from(len))
        else {
            return;
        };
        if let Err(error) = posix_fadvise(file.as_ref(), offset, len, advice) {
            // Only speed is lost.
            log::debug!("the kernel took no advice: {error}");
        }
    }
}
