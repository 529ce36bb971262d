//! The seam between the file system and everything that can hold data.

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;

use crate::{Attr, BlockRange, FileId, FileKey, SourceError};

/// A source of blocks that has every byte: the local disk, a tiered store, a remote store with a local
/// fallback. Authoritative: it never misses, it can only fail.
///
/// Calls are synchronous and positional, so that many threads share one source without a lock.
pub trait BlockSource: Send + Sync {
    /// Reads bytes of `file` from `offset` into `buf` and returns how many: all of `buf`, or up
    /// to the end of the file.
    ///
    /// # Errors
    /// [`Stale`](crate::SourceErrorKind::Stale) if the file is not in the version that the key
    /// names; nothing that is in `buf` then may be used.
    fn read_at(&self, file: &FileKey, offset: u64, buf: &mut [u8]) -> Result<usize, SourceError>;

    /// Reads like [`read_at`](Self::read_at), for a caller that keeps the bytes itself: bytes that the
    /// source did not have in memory before are not there afterwards.
    ///
    /// # Errors
    /// As there.
    fn read_once(&self, file: &FileKey, offset: u64, buf: &mut [u8]) -> Result<usize, SourceError> {
        self.read_at(file, offset, buf)
    }

    /// Says that `ranges` of `file` will be read soon. Never blocks, never fails.
    fn advise(&self, file: &FileKey, ranges: &[BlockRange]) {
        let _ = (file, ranges);
    }
}

/// The writing half of a source whose files keep their size: the file that a block device is shown as.
///
/// What a call changed is visible to each read that begins later, whoever serves it by then. It is durable when a
/// [`flush`](Self::flush) that began later has returned.
pub trait FileWriter: Send + Sync {
    /// Writes all of `data` from `offset` on.
    ///
    /// # Errors
    /// If it is not within the file, or the source fails or is full; any part of the range may be changed then.
    fn write_at(&self, file: FileId, offset: u64, data: &[u8]) -> Result<(), SourceError>;

    /// Makes all of a range read as zeros, and frees its space if that is possible.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    fn clear(&self, file: FileId, range: Range<u64>) -> Result<(), SourceError>;

    /// Makes earlier changes durable.
    ///
    /// # Errors
    /// If the source fails; changes since the last flush may be lost then.
    fn flush(&self, file: FileId) -> Result<(), SourceError>;
}

/// The result of a look-up in a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The first `blocks` blocks (at least one) are in the buffer, verified.
    Hit {
        /// How many, counted from the start of the range.
        blocks: u64,
    },
    /// The first `blocks` blocks (at least one) are not here; what follows may be.
    Miss {
        /// How many, counted from the start of the range.
        blocks: u64,
    },
    /// It may have them but is too busy to look.
    Throttled,
}

/// A cache of blocks: a boot image, the cache on the SmartNIC. It may miss or decline,
/// it never fails a read, and its loss costs only speed.
pub trait BlockCache: Send + Sync {
    /// Copies the blocks of `range` that it has into `out`, from the start of the range up to
    /// the first that it has not.
    ///
    /// `out` is `range.byte_len()` bytes long. A block that reaches past the end of the file is
    /// filled up with zeros. Only bytes that were verified are ever given out.
    fn get(&self, file: &FileKey, range: BlockRange, out: &mut [u8]) -> Lookup;

    /// Copies like [`get`](Self::get), for a caller that keeps the blocks itself: blocks that the cache
    /// did not have in memory before are not there afterwards.
    fn get_once(&self, file: &FileKey, range: BlockRange, out: &mut [u8]) -> Lookup {
        self.get(file, range, out)
    }

    /// Offers blocks just read from the source; the cache may decline, as it does by default.
    fn put(&self, file: &FileKey, range: BlockRange, data: &[u8]) {
        let _ = (file, range, data);
    }
}

/// A source that knows which of its pages are in memory: the basis of
/// [`Warmth`](crate::Warmth).
pub trait Residency: Send + Sync {
    /// Returns whether all of `len` bytes from `offset` would be read without the disk, or
    /// `None` if that is unknown.
    fn is_resident(&self, file: &FileKey, offset: u64, len: u64) -> Option<bool>;
}

/// All attributes of a file at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllAttrs {
    /// Its attributes, with the version that all of this is of.
    pub attr: Attr,
    /// Names and values of its extended attributes, access list included, sorted by name.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// A source that can read the present attributes of its files: the basis of
/// serving a file that changed under a mount whose names and attributes are fixed.
pub trait AttrSource: Send + Sync {
    /// Returns all attributes of the file that is now at the path of a file, whatever its kind.
    ///
    /// # Errors
    /// If nothing is there, it keeps changing, or the source cannot be read.
    fn all_attrs(&self, file: FileId) -> Result<AllAttrs, SourceError>;

    /// Returns all attributes of what is now at `path`, which is one of the paths of `file`.
    ///
    /// # Errors
    /// As [`all_attrs`](Self::all_attrs).
    fn all_attrs_at(&self, file: FileId, path: &[u8]) -> Result<AllAttrs, SourceError> {
        let _ = path;
        self.all_attrs(file)
    }
}

/// A source whose files are files of this machine: the basis of FUSE passthrough.
pub trait BackingFile: Send + Sync {
    /// Opens the file for reading.
    ///
    /// # Errors
    /// If it cannot be opened, or is not in the version that the key names.
    fn open_backing(&self, file: &FileKey) -> io::Result<OwnedFd>;
}

/// Whole copies of a source's files on faster memory: the basis of passing a file through
/// to its copy there.
pub trait WholeCopies: Send + Sync {
    /// Opens the copy of a file for reading; `None` if there is none of the key's
    /// version.
    ///
    /// As long as the opened file is open, in the kernel too, the copy must not be removed.
    ///
    /// # Errors
    /// If there is one that cannot be used: it is lost, or damaged. The source still has the
    /// file.
    fn open_copy(&self, file: &FileKey) -> io::Result<Option<OwnedFd>>;
}

/// What a seek looks for in a sparse file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// The next byte that may be other than zero.
    Data,
    /// The next byte in a hole; the end of every file counts as one.
    Hole,
}

/// A source that knows the holes of its files: the basis of `lseek(2)` with
/// `SEEK_DATA` and `SEEK_HOLE`.
pub trait Sparse: Send + Sync {
    /// Returns the first offset from `offset` on that is `what`, or `None` if there is none
    /// before the end of the file.
    ///
    /// # Errors
    /// If the file cannot be read, or is not in the key's version.
    fn seek(&self, file: &FileKey, offset: u64, what: Seek) -> Result<Option<u64>, SourceError>;
}

impl<S: BlockSource + ?Sized> BlockSource for std::sync::Arc<S> {
    fn read_at(&self, file: &FileKey, offset: u64, buf: &mut [u8]) -> Result<usize, SourceError> {
        (**self).read_at(file, offset, buf)
    }

    fn read_once(&self, file: &FileKey, offset: u64, buf: &mut [u8]) -> Result<usize, SourceError> {
        (**self).read_once(file, offset, buf)
    }

    fn advise(&self, file: &FileKey, ranges: &[BlockRange]) {
        (**self).advise(file, ranges);
    }
}

impl<C: BlockCache + ?Sized> BlockCache for std::sync::Arc<C> {
    fn get(&self, file: &FileKey, range: BlockRange, out: &mut [u8]) -> Lookup {
        (**self).get(file, range, out)
    }

    fn get_once(&self, file: &FileKey, range: BlockRange, out: &mut [u8]) -> Lookup {
        (**self).get_once(file, range, out)
    }

    fn put(&self, file: &FileKey, range: BlockRange, data: &[u8]) {
        (**self).put(file, range, data);
    }
}
