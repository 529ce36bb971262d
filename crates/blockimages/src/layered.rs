//! A stack of layers as a device.

use std::ops::Range;
use std::sync::Arc;

use blocks::{
    BlockDevice, Content, DeviceAccess, DeviceError, DeviceErrorKind, DeviceExtent, DeviceInfo,
    Durability, Space,
};
use lsmt::{ExtentKind, Image, LsmtError, Stack};

use ranges::Ending;

use crate::ImageError;
use crate::failed_reads::FailedReads;
use crate::reads::{self, Reading};
use crate::upper::OwnedUpper;

/// What extents are looked for in at a time: a merged index may have millions in a device.
const EXTENTS_WINDOW_BYTES: u64 = 1 << 30;

/// The bytes of a block: LSMT's sector.
const BLOCK_BYTES: u32 = 512;

/// A stack of layers as a device; it can be written if it has a writable layer.
#[derive(Debug)]
pub struct LayeredDevice {
    layers: Layers,
    /// As it was opened: one that can be written to may have grown.
    opened: DeviceInfo,
    ending: Arc<Ending>,
    failed: FailedReads,
}

#[derive(Debug)]
enum Layers {
    Sealed(Stack),
    Writable(OwnedUpper),
}

impl LayeredDevice {
    /// Returns the device that these layers make.
    #[must_use]
    pub fn new(stack: Stack) -> Self {
        Self {
            opened: DeviceInfo::read_only(whole_blocks(stack.virtual_size()), BLOCK_BYTES),
            layers: Layers::Sealed(stack),
            ending: Arc::default(),
            failed: FailedReads::default(),
        }
    }

    /// Returns the device of a writable layer, whose garbage is collected from now on if that is supported.
    pub(crate) fn writable(mut upper: OwnedUpper) -> Result<Self, ImageError> {
        upper.collect_in_background()?;
        let size = whole_blocks(upper.image().virtual_size());
        Ok(Self {
            layers: Layers::Writable(upper),
            opened: DeviceInfo {
                access: DeviceAccess::ReadWrite,
                trim: true,
                write_zeroes: true,
                ..DeviceInfo::read_only(size, BLOCK_BYTES)
            },
            ending: Arc::default(),
            failed: FailedReads::default(),
        })
    }

    /// Has its reads wait for nobody any more when this ends.
    pub(crate) fn ended_by(self, ending: Arc<Ending>) -> Self {
        Self { ending, ..self }
    }

    /// Does what changes the device, and makes it durable if it has to be.
    fn change(
        &self,
        doing: &'static str,
        at: u64,
        durability: Durability,
        act: impl FnOnce(&Image, lsmt::Durability) -> lsmt::Result<()>,
    ) -> Result<(), DeviceError> {
        let Layers::Writable(upper) = &self.layers else {
            return self.info().check_writable(doing);
        };
        let durability = match durability {
            Durability::Flushed => lsmt::Durability::Flushed,
            Durability::Durable => lsmt::Durability::Now,
        };
        let done = act(upper.image(), durability);
        done.map_err(|error| device_error(doing, error).at(at))
    }
}

const fn whole_blocks(size: u64) -> u64 {
    let block = BLOCK_BYTES as u64;
    size / block * block
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
        match &self.layers {
            Layers::Sealed(_) => self.opened,
            Layers::Writable(upper) => DeviceInfo {
                size: whole_blocks(upper.image().virtual_size()),
                ..self.opened
            },
        }
    }

    fn grow(&self, size: u64) -> Result<(), DeviceError> {
        let doing = "making an image larger";
        self.info().check_growth(doing, size)?;
        match &self.layers {
            Layers::Sealed(_) => Ok(()),
            Layers::Writable(upper) => {
                let grown = upper.grow(size);
                grown.map_err(|error| device_error(doing, error).at(size))
            }
        }
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        let doing = "reading an image";
        self.info().check(doing, offset, buf.len() as u64)?;
        let range = offset..offset + buf.len() as u64;
        let began = self.failed.began(&range);
        let reading = Reading::begun(began, Some(Arc::clone(&self.ending)));
        let (read, would_wait) = reads::would_wait(|| match &self.layers {
            Layers::Sealed(stack) => stack.read_at(buf, offset),
            Layers::Writable(upper) => upper.image().read_at(buf, offset),
        });
        drop(reading);
        if read.is_err() && !would_wait {
            self.failed.note(range, began);
        }
        read.map_err(|error| device_error(doing, error).at(offset))
    }

    fn write_at(
        &self,
        offset: u64,
        data: &[u8],
        durability: Durability,
    ) -> Result<(), DeviceError> {
        let doing = "writing to an image";
        self.info().check_writable(doing)?;
        self.info().check(doing, offset, data.len() as u64)?;
        self.change(doing, offset, durability, |image, durability| {
            image.write_at(data, offset, durability)
        })
    }

    fn flush(&self) -> Result<(), DeviceError> {
        match &self.layers {
            Layers::Sealed(_) => Ok(()),
            Layers::Writable(upper) => {
                let flushed = upper.image().flush();
                flushed.map_err(|error| device_error("flushing an image", error))
            }
        }
    }

    fn trim(&self, range: Range<u64>, durability: Durability) -> Result<(), DeviceError> {
        let doing = "trimming an image";
        self.info().check_writable(doing)?;
        self.info().check_range(doing, &range)?;
        self.change(doing, range.start, durability, |image, durability| {
            image.write_zeroes(range, durability)
        })
    }

    /// As [`Self::trim`]: a layer has no space that it could keep for a range.
    fn write_zeroes(
        &self,
        range: Range<u64>,
        _: Space,
        durability: Durability,
    ) -> Result<(), DeviceError> {
        let doing = "zeroing an image";
        self.info().check_writable(doing)?;
        self.info().check_range(doing, &range)?;
        self.change(doing, range.start, durability, |image, durability| {
            image.write_zeroes(range, durability)
        })
    }

    fn extents(&self, range: Range<u64>, limit: usize) -> Result<Vec<DeviceExtent>, DeviceError> {
        self.info()
            .check_range("telling extents of an image", &range)?;
        let window = range.start.saturating_add(EXTENTS_WINDOW_BYTES);
        // A device may claim to have half an exabyte, and be a hole.
        let hole = match &self.layers {
            Layers::Sealed(stack) => stack.next_defined(range.start).unwrap_or(range.end),
            Layers::Writable(_) => range.start,
        };
        let end = range.end.min(window.max(hole));
        let extents = match &self.layers {
            Layers::Sealed(stack) => stack.extents(range.start..end),
            Layers::Writable(upper) => upper.image().extents(range.start..end),
        };
        let extents = extents.into_iter().take(limit.max(1));
        let extents = extents.map(|extent| DeviceExtent {
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
