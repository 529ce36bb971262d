//! Sealed layers as one device that can only be read.

use std::ops::Range;

use blocks::{
    BlockDevice, Content, DeviceError, DeviceErrorKind, DeviceExtent, DeviceInfo, Durability, Space,
};
use lsmt::{ExtentKind, LsmtError, Stack};

/// What extents are looked for in at a time: a merged index may have millions in a device.
const EXTENTS_WINDOW_BYTES: u64 = 1 << 30;

/// A stack of layers as a device.
#[derive(Debug)]
pub struct LayeredDevice {
    stack: Stack,
    info: DeviceInfo,
}

impl LayeredDevice {
    /// Returns the device that these layers make.
    #[must_use]
    pub fn new(stack: Stack) -> Self {
        let block = 512;
        let size = stack.virtual_size() / block * block;
        Self {
            stack,
            info: DeviceInfo::read_only(size, 512),
        }
    }

    /// Returns the layers.
    #[must_use]
    pub const fn stack(&self) -> &Stack {
        &self.stack
    }
}

/// Returns what a device says of an error of its layers.
fn device_error(doing: &'static str, error: LsmtError) -> DeviceError {
    let kind = match error_kind(&error) {
        std::io::ErrorKind::TimedOut => DeviceErrorKind::TimedOut,
        std::io::ErrorKind::InvalidData => DeviceErrorKind::Damaged,
        std::io::ErrorKind::InvalidInput => DeviceErrorKind::OutOfBounds,
        std::io::ErrorKind::StorageFull => DeviceErrorKind::NoSpace,
        _ => DeviceErrorKind::Io,
    };
    DeviceError::new(kind, doing).because(error)
}

fn error_kind(error: &LsmtError) -> std::io::ErrorKind {
    match error {
        LsmtError::Storage { source, .. } => source.kind(),
        LsmtError::Range { .. } | LsmtError::Unaligned { .. } => std::io::ErrorKind::InvalidInput,
        LsmtError::Checksum { .. } | LsmtError::Compression { .. } | LsmtError::Rule { .. } => {
            std::io::ErrorKind::InvalidData
        }
        _ => std::io::ErrorKind::Other,
    }
}

impl BlockDevice for LayeredDevice {
    fn info(&self) -> DeviceInfo {
        self.info
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        let doing = "reading an image";
        self.info.check(doing, offset, buf.len() as u64)?;
        let read = self.stack.read_at(buf, offset);
        read.map_err(|error| device_error(doing, error).at(offset))
    }

    fn write_at(&self, _: u64, _: &[u8], _: Durability) -> Result<(), DeviceError> {
        self.info.check_writable("writing to an image")
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn trim(&self, _: Range<u64>, _: Durability) -> Result<(), DeviceError> {
        self.info.check_writable("trimming an image")
    }

    fn write_zeroes(&self, _: Range<u64>, _: Space, _: Durability) -> Result<(), DeviceError> {
        self.info.check_writable("zeroing an image")
    }

    fn extents(&self, range: Range<u64>, limit: usize) -> Result<Vec<DeviceExtent>, DeviceError> {
        self.info
            .check_range("telling extents of an image", &range)?;
        let end = range
            .end
            .min(range.start.saturating_add(EXTENTS_WINDOW_BYTES));
        let extents = self.stack.extents(range.start..end).into_iter();
        let extents = extents.take(limit.max(1)).map(|extent| DeviceExtent {
            len: extent.range.end - extent.range.start,
            content: match extent.kind {
                ExtentKind::Data => Content::Data,
                ExtentKind::Zeros => Content::Zero,
                ExtentKind::Hole => Content::Hole,
            },
        });
        Ok(extents.collect())
    }
}
