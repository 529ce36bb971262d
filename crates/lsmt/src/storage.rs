//! The seam to what keeps the bytes: files, memory, a cache of a registry's blobs.
//!
//! Readers need [`ReadAt`] only; what writes needs [`Storage`]. Both are used with `&self` by many
//! threads at once.

#[cfg(feature = "testing")]
pub mod crash;
mod file;
mod folder;
mod memory;
mod window;

use std::io;
use std::ops::Range;
use std::sync::Arc;

pub use file::FileStorage;
pub use folder::{DirFolder, Folder, MemoryFolder};
pub use memory::MemoryStorage;
pub use window::Window;

use crate::error::{Doing, LsmtError, Result};
use crate::num::{size, wide};

/// Something of a fixed length that can be read at any place.
pub trait ReadAt: Send + Sync {
    /// Returns how many bytes there are.
    ///
    /// # Errors
    ///
    /// Fails as the medium does.
    fn size(&self) -> io::Result<u64>;

    /// Reads exactly the buffer's length, from a byte on.
    ///
    /// # Errors
    ///
    /// Fails as the medium does, and where there are not so many bytes.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;

    /// Is told which ranges, in ascending order, one caller is about to read: what is far away is requested together
    /// then, and not one range after the other. It goes on until what is returned is dropped.
    fn expect(&self, _ranges: &[Range<u64>]) -> Option<Expected> {
        None
    }
}

/// Keeps what was requested ahead of its reads under way.
pub type Expected = Box<dyn Send>;

/// Something that can be written, too: a file, as far as LSMT needs one.
pub trait Storage: ReadAt {
    /// Writes all bytes, from an offset on; a gap behind the old end reads as zeros.
    ///
    /// # Errors
    ///
    /// Fails as the medium does; then some bytes may be written.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Makes all writes durable.
    ///
    /// # Errors
    ///
    /// Fails as the medium does; then it is unknown what is durable.
    fn sync(&self) -> io::Result<()>;

    /// Sets the length; new bytes are zeros.
    ///
    /// # Errors
    ///
    /// Fails as the medium does.
    fn set_size(&self, size: u64) -> io::Result<()>;

    /// Makes bytes zero, and gives their room back where it can.
    ///
    /// # Errors
    ///
    /// Fails as the medium does.
    fn punch(&self, range: Range<u64>) -> io::Result<()>;

    /// Returns where there may be something else than holes, in order.
    ///
    /// # Errors
    ///
    /// Fails as the medium does.
    fn data_ranges(&self) -> io::Result<Vec<Range<u64>>>;
}

impl<T: ReadAt + ?Sized> ReadAt for &T {
    fn size(&self) -> io::Result<u64> {
        (**self).size()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        (**self).read_at(buffer, offset)
    }

    fn expect(&self, ranges: &[Range<u64>]) -> Option<Expected> {
        (**self).expect(ranges)
    }
}

impl<T: ReadAt + ?Sized> ReadAt for Box<T> {
    fn size(&self) -> io::Result<u64> {
        (**self).size()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        (**self).read_at(buffer, offset)
    }

    fn expect(&self, ranges: &[Range<u64>]) -> Option<Expected> {
        (**self).expect(ranges)
    }
}

impl<T: ReadAt + ?Sized> ReadAt for Arc<T> {
    fn size(&self) -> io::Result<u64> {
        (**self).size()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        (**self).read_at(buffer, offset)
    }

    fn expect(&self, ranges: &[Range<u64>]) -> Option<Expected> {
        (**self).expect(ranges)
    }
}

/// Reads `len` bytes; the caller has checked the limit.
pub(crate) fn read_vec(
    from: &(impl ReadAt + ?Sized),
    offset: u64,
    len: u64,
    doing: &'static str,
) -> Result<Vec<u8>> {
    let mut bytes = vec![0; size(len)];
    from.read_at(&mut bytes, offset).doing(doing)?;
    Ok(bytes)
}

/// Fails unless the bytes are within a size.
pub(crate) fn check_range(offset: u64, len: usize, size: u64) -> Result<()> {
    match offset.checked_add(wide(len)) {
        Some(end) if end <= size => Ok(()),
        _ => Err(LsmtError::Range {
            offset,
            len: wide(len),
            size,
        }),
    }
}
