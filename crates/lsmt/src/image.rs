//! A device: sealed layers, and perhaps a writable one on top.

use std::ops::Range;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::error::{LsmtError, Result};
use crate::num::{SECTOR, size, wide};
use crate::segment::Content;
use crate::stack::{Extent, ExtentKind, Extents, Stack, fill, sectors};
use crate::storage::check_range;
use crate::upper::Upper;

/// A block device of layers. It is used by many threads at once.
pub struct Image {
    /// The layers, which may be exchanged while the device is in use; the lock is held only to copy them.
    layers: RwLock<Layers>,
}

/// What the device consists of at a moment.
#[derive(Clone, Debug)]
pub(crate) struct Layers {
    pub(crate) stack: Arc<Stack>,
    pub(crate) upper: Option<Arc<Upper>>,
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Image")
            .field("size", &self.virtual_size())
            .finish_non_exhaustive()
    }
}

/// Whether a write is durable when it returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// After the next flush.
    #[default]
    Flushed,
    /// At once: "forced unit access".
    Now,
}

impl Image {
    /// Makes a device of sealed layers, and a writable one.
    ///
    /// # Errors
    ///
    /// Fails if no layer has the size of the device.
    pub fn open(stack: Stack, upper: Option<Upper>) -> Result<Self> {
        let layers = Layers {
            stack: Arc::new(stack),
            upper: upper.map(Arc::new),
        };
        Ok(Self {
            layers: RwLock::new(layers),
        })
    }

    pub(crate) fn layers(&self) -> Layers {
        self.layers.read().clone()
    }

    pub(crate) fn replace(&self, layers: Layers) {
        *self.layers.write() = layers;
    }

    /// Returns the size of the device: that of the writable layer, unless it has none.
    pub fn virtual_size(&self) -> u64 {
        self.layers().virtual_size()
    }

    /// Returns whether there is a writable layer.
    pub fn is_writable(&self) -> bool {
        self.layers.read().upper.is_some()
    }

    /// Returns the writable layer.
    ///
    /// # Errors
    ///
    /// Fails if there is none.
    pub fn upper(&self) -> Result<Arc<Upper>> {
        self.layers.read().upper.clone().ok_or(LsmtError::ReadOnly)
    }

    /// Returns the sealed layers.
    pub fn stack(&self) -> Arc<Stack> {
        self.layers.read().stack.clone()
    }

    /// Reads bytes, at any place and of any length.
    ///
    /// # Errors
    ///
    /// Fails if they are not within the device, are damaged, and as the storage does.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let layers = self.layers();
        check_range(offset, buffer.len(), layers.virtual_size())?;
        let Some(upper) = &layers.upper else {
            return layers.stack.read_at(buffer, offset);
        };
        let segments = upper.within(sectors(offset, buffer.len()));
        let end = offset + wide(buffer.len());
        let starts = segments.iter().map(|segment| segment.offset() * SECTOR);
        let ends = segments.iter().map(|segment| segment.end() * SECTOR);
        let gaps = std::iter::once(offset).chain(ends).zip(starts.chain([end]));
        let _expected = layers.stack.expect(gaps.map(|(start, end)| start..end));
        fill(
            buffer,
            offset,
            segments.into_iter(),
            |segment, skip, buffer| upper.read_segment(segment, skip, buffer),
            |offset, buffer| layers.stack.read_below(buffer, offset),
        )
    }

    /// Writes whole sectors.
    ///
    /// # Errors
    ///
    /// Fails if the image is read-only, if the bytes are not whole sectors within the device, and as the
    /// storage does.
    pub fn write_at(&self, data: &[u8], offset: u64, durability: Durability) -> Result<()> {
        self.with_upper(|_, upper| upper.write_at(data, offset))?;
        match durability {
            Durability::Flushed => Ok(()),
            Durability::Now => self.flush(),
        }
    }

    /// Zeroes whole sectors permanently: also when the image is opened again, and in commits. Their former
    /// space is garbage.
    ///
    /// # Errors
    ///
    /// As [`Self::write_at`].
    pub fn trim(&self, range: Range<u64>) -> Result<()> {
        self.with_upper(|layers, upper| {
            let len = range.end.saturating_sub(range.start);
            check_range(range.start, size(len), layers.virtual_size())?;
            // Where nothing is, there is nothing to be hidden.
            for extent in layers.extents(range.clone()) {
                if extent.kind != ExtentKind::Hole {
                    upper.trim(extent.range)?;
                }
            }
            Ok(())
        })
    }

    /// Writes zeros, without taking room for them.
    ///
    /// # Errors
    ///
    /// As [`Self::write_at`].
    pub fn write_zeroes(&self, range: Range<u64>, durability: Durability) -> Result<()> {
        self.trim(range)?;
        match durability {
            Durability::Flushed => Ok(()),
            Durability::Now => self.flush(),
        }
    }

    /// Makes all completed writes durable.
    ///
    /// # Errors
    ///
    /// Fails as the storage does; then nothing more can be written until the image is opened again.
    pub fn flush(&self) -> Result<()> {
        self.layers().upper.map_or(Ok(()), |upper| upper.flush())
    }

    /// Returns what the bytes of a range are, in order and without gaps.
    pub fn extents(&self, range: Range<u64>) -> Vec<Extent> {
        self.layers().extents(range)
    }

    /// Does something to the writable layer; again, if that was exchanged meanwhile.
    fn with_upper(&self, mut act: impl FnMut(&Layers, &Upper) -> Result<()>) -> Result<()> {
        loop {
            let layers = self.layers();
            let upper = layers.upper.as_ref().ok_or(LsmtError::ReadOnly)?;
            match act(&layers, upper) {
                Err(LsmtError::Retired) => {}
                done => return done,
            }
        }
    }
}

impl Layers {
    fn virtual_size(&self) -> u64 {
        let own = self.upper.as_ref().map_or(0, |upper| upper.virtual_size());
        match own {
            0 => self.stack.virtual_size(),
            own => own,
        }
    }

    fn extents(&self, range: Range<u64>) -> Vec<Extent> {
        let Some(upper) = &self.upper else {
            return self.stack.extents(range);
        };
        let mut extents = Extents::new(range.start);
        let below = |extents: &mut Extents, end: u64| {
            for extent in self.stack.extents(extents.at()..end) {
                extents.push(extent.range.end, extent.kind);
            }
        };
        let len = size(range.end.saturating_sub(range.start));
        for segment in upper.within(sectors(range.start, len)) {
            let start = (segment.offset() * SECTOR).min(range.end);
            if extents.at() < start {
                below(&mut extents, start);
            }
            let kind = match segment.content() {
                Content::Data => ExtentKind::Data,
                Content::Zeros => ExtentKind::Zeros,
            };
            extents.push((segment.end() * SECTOR).min(range.end), kind);
        }
        if extents.at() < range.end {
            below(&mut extents, range.end);
        }
        extents.done
    }
}
