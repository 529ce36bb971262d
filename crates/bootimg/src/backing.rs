//! Where the bytes of an image lie: in a file, or in memory.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use rawio::once::Once;
use rawio::readahead::{FileReadahead, Readahead};
use rawio::resident::{Resident, is_only_copy};

use crate::layout::{len_usize, len64};

/// Bytes that can be read from any place.
#[derive(Clone, Debug)]
pub(crate) enum Backing {
    File(Arc<Stored>),
    Memory(Arc<[u8]>),
}

/// A file, and how it is read.
#[derive(Debug)]
pub(crate) struct Stored {
    file: File,
    once: Once,
    readahead: FileReadahead,
}

impl Stored {
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.readahead.set(&self.file, Readahead::Usual);
        self.file.read_exact_at(out, offset)
    }

    fn read_once(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        // A page is dropped with its folio, and one that was read ahead is larger than this read.
        self.readahead.set(&self.file, Readahead::Off);
        let mut done = 0;
        while done < out.len() {
            let at = offset + len64(done);
            match self.once.pread(&self.file, &mut out[done..], at)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => done += read,
            }
        }
        Ok(())
    }
}

impl Backing {
    pub(crate) fn file(file: File) -> Self {
        Self::File(Arc::new(Stored {
            file,
            once: Once::default(),
            readahead: FileReadahead::default(),
        }))
    }

    /// Returns which of its pages are in the page cache; `None` if none need dropping, ever, or that is
    /// unknown.
    pub(crate) fn resident(&self) -> Option<Resident> {
        let Self::File(stored) = self else {
            return None;
        };
        if is_only_copy(&stored.file).unwrap_or(true) {
            return None;
        }
        Resident::look(&stored.file, 0..self.len().ok()?).ok()
    }

    /// Makes the kernel drop the pages that were not there before.
    pub(crate) fn drop_since(&self, before: &Resident) {
        if let Self::File(stored) = self {
            // What cannot be dropped stays: only memory is lost.
            before
                .drop_others(&stored.file, 0..u64::MAX)
                .unwrap_or_default();
        }
    }

    pub(crate) fn len(&self) -> io::Result<u64> {
        match self {
            Self::File(stored) => Ok(stored.file.metadata()?.len()),
            Self::Memory(bytes) => Ok(len64(bytes.len())),
        }
    }

    /// Fills `out` from `offset`; fails if there are not enough bytes.
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        match self {
            Self::File(stored) => stored.read(offset, out),
            Self::Memory(bytes) => {
                let start = len_usize(offset);
                let end = start.saturating_add(out.len());
                let here = bytes.get(start..end).ok_or(io::ErrorKind::UnexpectedEof)?;
                out.copy_from_slice(here);
                Ok(())
            }
        }
    }

    /// Fills `out` like [`read`](Self::read), for a caller that stores the bytes elsewhere.
    pub(crate) fn read_once(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        match self {
            Self::File(stored) => stored.read_once(offset, out),
            Self::Memory(_) => self.read(offset, out),
        }
    }

    /// Fills `out` like [`read`](Self::read), and nothing beside it is brought into memory.
    pub(crate) fn read_only_this(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        match self {
            Self::File(stored) => {
                stored.readahead.set(&stored.file, Readahead::Off);
                stored.file.read_exact_at(out, offset)
            }
            Self::Memory(_) => self.read(offset, out),
        }
    }

    /// Reads `len` bytes, which the caller has bounded by the length of the file.
    pub(crate) fn read_vec(&self, offset: u64, len: u64) -> io::Result<Vec<u8>> {
        let mut out = vec![0; len_usize(len)];
        self.read(offset, &mut out)?;
        Ok(out)
    }

    /// Advises the kernel that all of it will be read from front to back.
    pub(crate) fn advise_sequential(&self) {
        self.advise(0, 0, PosixFadviseAdvice::POSIX_FADV_SEQUENTIAL);
    }

    /// Advises the kernel that these bytes will be read soon.
    pub(crate) fn advise_soon(&self, offset: u64, len: u64) {
        self.advise(offset, len, PosixFadviseAdvice::POSIX_FADV_WILLNEED);
    }

    fn advise(&self, offset: u64, len: u64, advice: PosixFadviseAdvice) {
        let (Self::File(file), Ok(offset), Ok(len)) =
            (self, i64::try_from(offset), i64::try_from(len))
        else {
            return;
        };
        if let Err(error) = posix_fadvise(&file.file, offset, len, advice) {
            // Only speed is lost.
            log::debug!("the kernel took no advice: {error}");
        }
    }
}
