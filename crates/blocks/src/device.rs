//! The interface between block devices and their exports: a layered image, a file or memory on
//! one side; NBD, vhost-user and mounts on the other.

use std::fmt;
use std::io;
use std::ops::Range;

use serde::{Deserialize, Serialize};

/// A device that is read and written in blocks.
///
/// Calls are synchronous and positional, so that many threads share one device without a lock.
/// Ranges are in bytes; they must be within the device and aligned to its block size, or the call
/// fails (checked by [`DeviceInfo::check`]). Operations that the device does not support according to its
/// [`info`](Self::info) fail as [`Unsupported`](DeviceErrorKind::Unsupported) or
/// [`ReadOnly`](DeviceErrorKind::ReadOnly).
///
/// Calls that overlap in time may take effect in any order. The effect of a call that returned is visible
/// to each call that begins later. It is durable only when a [`flush`](Self::flush) that began later
/// returned, or when it was made with [`Durability::Durable`].
pub trait BlockDevice: Send + Sync {
    /// Returns what the device is and can do; always the same, but that it may [grow](Self::grow).
    fn info(&self) -> DeviceInfo;

    /// Reads bytes from `offset` on until `buf` is full.
    ///
    /// # Errors
    /// If the range is invalid or the device fails; nothing that is in `buf` then may be used.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError>;

    /// Writes all of `data` from `offset` on.
    ///
    /// # Errors
    /// If the range is invalid or the device fails or is full; any part of the range may then have
    /// the new content.
    fn write_at(&self, offset: u64, data: &[u8], durability: Durability)
    -> Result<(), DeviceError>;

    /// Makes earlier writes durable. On a read-only device there is nothing to do.
    ///
    /// # Errors
    /// If the device fails; writes since the last flush may then be lost.
    fn flush(&self) -> Result<(), DeviceError>;

    /// Discards the content of a range: parts of it, or all, read as zeros afterwards; the others
    /// keep their content. No read returns anything else, not even after a restart.
    ///
    /// # Errors
    /// If the range is invalid or the device fails.
    fn trim(&self, range: Range<u64>, durability: Durability) -> Result<(), DeviceError>;

    /// Makes all of a range read as zeros.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    fn write_zeroes(
        &self,
        range: Range<u64>,
        space: Space,
        durability: Durability,
    ) -> Result<(), DeviceError>;

    /// Makes the device larger, for good: what is added can be used when this returns. The same size again changes
    /// nothing.
    ///
    /// # Errors
    /// If it would become smaller, the size is no multiple of the block size, or the device has a fixed size or fails.
    fn grow(&self, size: u64) -> Result<(), DeviceError> {
        self.info().check_growth("growing a device", size)?;
        let fixed = DeviceErrorKind::Unsupported;
        Err(DeviceError::new(fixed, "growing a device of a fixed size"))
    }

    /// Returns what lies in a range: runs that follow each other from its start, at least one and at
    /// most `limit` (which is at least 1). They may end before the range does, never after it.
    ///
    /// A device that does not know says that all is [`Data`](Content::Data), as it does by default.
    ///
    /// # Errors
    /// If the range is invalid or empty, or the device fails.
    fn extents(&self, range: Range<u64>, limit: usize) -> Result<Vec<DeviceExtent>, DeviceError> {
        let _ = limit;
        let len = self.info().check_range("telling extents", &range)?;
        Ok(vec![DeviceExtent {
            len,
            content: Content::Data,
        }])
    }
}

/// What a device is and can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceInfo {
    /// Its size in bytes, a multiple of the block size.
    pub size: u64,
    /// The unit of all ranges in bytes, a power of two from 512 on.
    pub block_size: u32,
    /// Whether it can be written to.
    pub access: DeviceAccess,
    /// Whether [`trim`](BlockDevice::trim) is supported.
    pub trim: bool,
    /// Whether [`write_zeroes`](BlockDevice::write_zeroes) is supported.
    pub write_zeroes: bool,
    /// Whether a single call can be [`Durable`](Durability::Durable) at less cost than a flush. Where it
    /// is not, the device accepts such calls all the same, and flushes.
    pub fua: bool,
}

impl DeviceInfo {
    /// Returns what a read-only device of `size` bytes is.
    #[must_use]
    pub const fn read_only(size: u64, block_size: u32) -> Self {
        Self {
            size,
            block_size,
            access: DeviceAccess::ReadOnly,
            trim: false,
            write_zeroes: false,
            fua: false,
        }
    }

    /// Checks that `len` bytes from `offset` on lie within the device and are aligned, and returns
    /// them as a range.
    ///
    /// # Errors
    /// [`OutOfBounds`](DeviceErrorKind::OutOfBounds) or [`Misaligned`](DeviceErrorKind::Misaligned).
    pub fn check(
        &self,
        doing: &'static str,
        offset: u64,
        len: u64,
    ) -> Result<Range<u64>, DeviceError> {
        let end = offset.checked_add(len).filter(|end| *end <= self.size);
        let Some(end) = end else {
            return Err(DeviceError::new(DeviceErrorKind::OutOfBounds, doing).at(offset));
        };
        let block = u64::from(self.block_size);
        if !offset.is_multiple_of(block) || !len.is_multiple_of(block) {
            return Err(DeviceError::new(DeviceErrorKind::Misaligned, doing).at(offset));
        }
        Ok(offset..end)
    }

    /// Checks a range as [`check`](Self::check) does, also that it is not empty, and returns its length.
    ///
    /// # Errors
    /// As there; an empty or reversed range is out of bounds.
    pub fn check_range(&self, doing: &'static str, range: &Range<u64>) -> Result<u64, DeviceError> {
        match range.end.checked_sub(range.start) {
            None | Some(0) => {
                Err(DeviceError::new(DeviceErrorKind::OutOfBounds, doing).at(range.start))
            }
            Some(len) => self.check(doing, range.start, len).map(|_| len),
        }
    }

    /// Checks that the device can be written to, and can have this size, which is not smaller.
    ///
    /// # Errors
    /// [`ReadOnly`](DeviceErrorKind::ReadOnly), [`OutOfBounds`](DeviceErrorKind::OutOfBounds) or
    /// [`Misaligned`](DeviceErrorKind::Misaligned).
    pub fn check_growth(&self, doing: &'static str, size: u64) -> Result<(), DeviceError> {
        self.check_writable(doing)?;
        let kind = if size < self.size || i64::try_from(size).is_err() {
            DeviceErrorKind::OutOfBounds
        } else if !size.is_multiple_of(u64::from(self.block_size)) {
            DeviceErrorKind::Misaligned
        } else {
            return Ok(());
        };
        Err(DeviceError::new(kind, doing).at(size))
    }

    /// Checks that the device can be written to.
    ///
    /// # Errors
    /// [`ReadOnly`](DeviceErrorKind::ReadOnly).
    pub fn check_writable(&self, doing: &'static str) -> Result<(), DeviceError> {
        match self.access {
            DeviceAccess::ReadWrite => Ok(()),
            DeviceAccess::ReadOnly => Err(DeviceError::new(DeviceErrorKind::ReadOnly, doing)),
        }
    }
}

/// Whether a device can be written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceAccess {
    /// It can only be read.
    ReadOnly,
    /// It can be read and written.
    ReadWrite,
}

/// When a change has to survive a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// After the next flush.
    Flushed,
    /// As soon as the call returns ("forced unit access").
    Durable,
}

/// What happens to the space of a range that is zeroed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// It may be given back.
    Release,
    /// It is kept, so that a later write to the range cannot run out of space.
    Keep,
}

/// What a run of a device has in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Bytes that may be anything.
    Data,
    /// Zeros that are stored, or that hide the data of a layer below.
    Zero,
    /// Nothing was ever stored; reads as zeros.
    Hole,
}

/// A run of a device with one kind of content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceExtent {
    /// Its length in bytes, a multiple of the block size, not 0.
    pub len: u64,
    /// Its content.
    pub content: Content,
}

/// The kind of a device error, for conversion into the errors of a protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeviceErrorKind {
    /// The range does not lie within the device.
    OutOfBounds,
    /// The range is not aligned to the block size.
    Misaligned,
    /// The device can only be read.
    ReadOnly,
    /// The device cannot do that.
    Unsupported,
    /// There is no space left, or a quota is used up.
    NoSpace,
    /// The stored data is not what was written: a checksum or digest differs.
    Damaged,
    /// There was no response in time.
    TimedOut,
    /// The device failed.
    Io,
}

/// A failure of a device: what kind, doing what, where, and the cause underneath.
#[derive(Debug)]
pub struct DeviceError {
    kind: DeviceErrorKind,
    doing: &'static str,
    offset: Option<u64>,
    cause: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl DeviceError {
    /// Returns the error of `kind` that came up while `doing` (a verb in its -ing form and its
    /// object, as in "reading a layer").
    #[must_use]
    pub const fn new(kind: DeviceErrorKind, doing: &'static str) -> Self {
        Self {
            kind,
            doing,
            offset: None,
            cause: None,
        }
    }

    /// Returns the error for `cause`, which came up while `doing`.
    #[must_use]
    pub fn from_io(doing: &'static str, cause: io::Error) -> Self {
        let kind = match cause.kind() {
            io::ErrorKind::TimedOut => DeviceErrorKind::TimedOut,
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => DeviceErrorKind::NoSpace,
            io::ErrorKind::ReadOnlyFilesystem => DeviceErrorKind::ReadOnly,
            io::ErrorKind::Unsupported => DeviceErrorKind::Unsupported,
            _ => DeviceErrorKind::Io,
        };
        Self::new(kind, doing).because(cause)
    }

    /// Adds the offset on the device that it was about.
    #[must_use]
    pub const fn at(mut self, offset: u64) -> Self {
        self.offset = Some(offset);
        self
    }

    /// Adds the cause.
    #[must_use]
    pub fn because(mut self, cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.cause = Some(cause.into());
        self
    }

    /// Returns the kind of error.
    #[must_use]
    pub const fn kind(&self) -> DeviceErrorKind {
        self.kind
    }
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.doing)?;
        if let Some(offset) = self.offset {
            write!(f, " at byte {offset}")?;
        }
        f.write_str(match self.kind {
            DeviceErrorKind::OutOfBounds => ": the range is outside of the device",
            DeviceErrorKind::Misaligned => ": the range is not aligned to the block size",
            DeviceErrorKind::ReadOnly => ": the device is read-only",
            DeviceErrorKind::Unsupported => ": the device does not support it",
            DeviceErrorKind::NoSpace => ": no space is left",
            DeviceErrorKind::Damaged => ": the stored data is damaged",
            DeviceErrorKind::TimedOut => ": no answer in time",
            DeviceErrorKind::Io => ": the device failed",
        })
    }
}

impl std::error::Error for DeviceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.cause.as_deref().map(|cause| cause as _)
    }
}

impl<D: BlockDevice + ?Sized> BlockDevice for std::sync::Arc<D> {
    fn info(&self) -> DeviceInfo {
        (**self).info()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        (**self).read_at(offset, buf)
    }

    fn write_at(
        &self,
        offset: u64,
        data: &[u8],
        durability: Durability,
    ) -> Result<(), DeviceError> {
        (**self).write_at(offset, data, durability)
    }

    fn grow(&self, size: u64) -> Result<(), DeviceError> {
        (**self).grow(size)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        (**self).flush()
    }

    fn trim(&self, range: Range<u64>, durability: Durability) -> Result<(), DeviceError> {
        (**self).trim(range, durability)
    }

    fn write_zeroes(
        &self,
        range: Range<u64>,
        space: Space,
        durability: Durability,
    ) -> Result<(), DeviceError> {
        (**self).write_zeroes(range, space, durability)
    }

    fn extents(&self, range: Range<u64>, limit: usize) -> Result<Vec<DeviceExtent>, DeviceError> {
        (**self).extents(range, limit)
    }
}
