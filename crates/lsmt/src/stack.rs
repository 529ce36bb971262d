//! Sealed layers over each other, which read as one device.

use std::ops::Range;
use std::sync::Arc;

use crate::budget::SegmentBudget;
use crate::commit::{BlobOptions, write_blob};
use crate::error::{Doing, Result, rule};
use crate::index::Index;
use crate::layer::{Layer, LayerInfo, Part};
use crate::num::{SECTOR, size, wide};
use crate::segment::{Content, Segment};
use crate::storage::{Expected, ReadAt, Storage, check_range};

/// What a range of a device is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ExtentKind {
    /// Data.
    Data,
    /// Zeros that a layer defines.
    Zeros,
    /// No layer has anything: zeros.
    Hole,
}

/// A range of a device that is made of one thing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Its bytes.
    pub range: Range<u64>,
    /// Their kind.
    pub kind: ExtentKind,
}

/// Sealed layers, merged into one index.
#[derive(Debug)]
pub struct Stack {
    /// The topmost first.
    layers: Vec<Arc<Layer>>,
    index: Index,
    /// The layer and the part of it that a tag of the index means.
    tags: Vec<(usize, usize)>,
    virtual_size: u64,
}

impl Stack {
    /// Stacks layers, given from the bottom to the top.
    ///
    /// # Errors
    ///
    /// Fails if there are more than 255, of which a turboOCI layer counts twice, or if they have more than
    /// [`IMAGE_SEGMENTS_MAX`](crate::IMAGE_SEGMENTS_MAX) segments together.
    pub fn new(layers: Vec<Layer>) -> Result<Self> {
        Self::of_shared(layers.into_iter().map(Arc::new).collect())
    }

    /// Stacks layers that other stacks may have, too.
    ///
    /// # Errors
    ///
    /// As [`Self::new`].
    pub fn of_shared(mut layers: Vec<Arc<Layer>>) -> Result<Self> {
        layers.reverse();
        let mut indexes = Vec::new();
        let mut tags = Vec::new();
        for (number, layer) in layers.iter().enumerate() {
            for (part, Part { index, .. }) in layer.parts().iter().enumerate() {
                indexes.push(index);
                tags.push((number, part));
            }
        }
        let budget = SegmentBudget::default();
        for index in &indexes {
            budget.take(wide(index.segments().len()))?;
        }
        let index = Index::merged(&indexes)?;
        let mut sizes = layers.iter().map(|layer| layer.info().virtual_size);
        let virtual_size = sizes.find(|&size| size > 0).unwrap_or(0);
        Ok(Self {
            layers,
            index,
            tags,
            virtual_size,
        })
    }

    /// Returns the size of the device: that of the topmost layer that has one.
    pub fn virtual_size(&self) -> u64 {
        self.virtual_size
    }

    /// Returns what the layers are called, from the bottom to the top.
    pub fn layers(&self) -> impl Iterator<Item = &LayerInfo> {
        self.layers.iter().rev().map(|layer| layer.info())
    }

    /// Writes what all layers together have to empty storage, as one sealed layer; returns the length of
    /// the blob, which is not synced. The tag of each segment is the number of its layer from the top, as
    /// `overlaybd-merge` has it.
    ///
    /// # Errors
    ///
    /// Fails as the storage does, and if there are too many segments.
    pub fn merge(&self, to: &dyn Storage, options: BlobOptions, info: &LayerInfo) -> Result<u64> {
        write_blob(
            to,
            options,
            info,
            self.index.segments(),
            &mut |segment, skip, buffer| self.read_segment(segment, skip, buffer),
        )
    }

    /// Reads a part of a segment of the merged index.
    fn read_segment(&self, segment: Segment, skip: u64, buffer: &mut [u8]) -> Result<()> {
        let Some(&(layer, part)) = self.tags.get(usize::from(segment.tag())) else {
            return rule("merged index", "a tag is of no layer");
        };
        let source = &self.layers[layer].parts()[part].source;
        source
            .read_at(buffer, segment.moffset() * SECTOR + skip)
            .doing("read a layer's data")
    }

    /// Returns the merged index; a tag is the number of a layer from the top, unless there are turboOCI
    /// layers, which use two.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// Returns the layer, from the bottom, of a segment of [`Self::index`], and the bytes of that
    /// layer's uncompressed blob: the place in a trace. Data of a turboOCI layer that is
    /// in a tar has none.
    pub fn place(&self, segment: Segment) -> Option<(usize, Range<u64>)> {
        let &(layer, part) = self.tags.get(usize::from(segment.tag()))?;
        if part > 0 || segment.content() == Content::Zeros {
            return None;
        }
        let from_bottom = self.layers.len() - 1 - layer;
        Some((
            from_bottom,
            segment.moffset() * SECTOR..segment.mend() * SECTOR,
        ))
    }

    /// Reads bytes of the device; where no layer has anything, they are zeros.
    ///
    /// # Errors
    ///
    /// Fails if they are not within the device, and as the layers' storage does.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        check_range(offset, buffer.len(), self.virtual_size)?;
        let _expected = self.expect(std::iter::once(offset..offset + wide(buffer.len())));
        self.read_below(buffer, offset)
    }

    /// Tells each layer which of its bytes a read of these ranges will take, if it takes more than one part.
    pub(crate) fn expect(&self, ranges: impl IntoIterator<Item = Range<u64>>) -> Vec<Expected> {
        let mut parts = ranges.into_iter().flat_map(|range| self.parts_of(range));
        // Most reads take one, and nothing is allocated for them.
        let (Some(first), Some(second)) = (parts.next(), parts.next()) else {
            return Vec::new();
        };
        let mut parts: Vec<_> = [first, second].into_iter().chain(parts).collect();
        parts.sort_unstable_by_key(|(tag, range)| (*tag, range.start));
        let of_layers = parts.chunk_by(|(one, _), (other, _)| one == other);
        let expected = of_layers.filter_map(|parts| {
            let &(layer, part) = self.tags.get(usize::from(parts.first()?.0))?;
            let ranges: Vec<_> = parts.iter().map(|(_, range)| range.clone()).collect();
            self.layers[layer].parts()[part].source.expect(&ranges)
        });
        expected.collect()
    }

    /// Returns the bytes of layers that a range of the device is made of, each with its layer's tag.
    fn parts_of(&self, range: Range<u64>) -> impl Iterator<Item = (u8, Range<u64>)> + '_ {
        let len = size(range.end.saturating_sub(range.start));
        let segments = self.index.within(sectors(range.start, len));
        segments.filter_map(move |segment| {
            let start = range.start.max(segment.offset() * SECTOR);
            let end = range.end.min(segment.end() * SECTOR);
            let is_part = segment.content() == Content::Data && start < end;
            is_part.then(|| {
                let at = segment.moffset() * SECTOR + start - segment.offset() * SECTOR;
                (segment.tag(), at..at + end - start)
            })
        })
    }

    /// Reads bytes for a layer above, whose device may be larger.
    pub(crate) fn read_below(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let pieces = self.index.within(sectors(offset, buffer.len()));
        fill(
            buffer,
            offset,
            pieces,
            |segment, skip, buffer| self.read_segment(segment, skip, buffer),
            |_, buffer| {
                buffer.fill(0);
                Ok(())
            },
        )
    }

    /// Returns the first byte, at or after this one, that a layer has.
    pub fn next_defined(&self, offset: u64) -> Option<u64> {
        let next = self.index.within(offset / SECTOR..u64::MAX).next()?;
        Some((next.offset() * SECTOR).max(offset))
    }

    /// Returns what the bytes of a range are, in order and without gaps.
    pub fn extents(&self, range: Range<u64>) -> Vec<Extent> {
        let mut extents = Extents::new(range.start);
        let len = size(range.end.saturating_sub(range.start));
        for segment in self.index.within(sectors(range.start, len)) {
            extents.push_segment(segment, &range);
        }
        extents.push(range.end, ExtentKind::Hole);
        extents.done
    }
}

impl ReadAt for Stack {
    fn size(&self) -> std::io::Result<u64> {
        Ok(self.virtual_size)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<()> {
        Ok(Self::read_at(self, buffer, offset)?)
    }
}

/// Returns the sectors that have a range of bytes.
pub(crate) fn sectors(offset: u64, len: usize) -> Range<u64> {
    let end = offset.saturating_add(wide(len));
    offset / SECTOR..end.div_ceil(SECTOR)
}

/// Fills a buffer that begins at a byte of the device: parts of segments by `data`, which receives how
/// many bytes to skip, and gaps between them by `gap`, which receives the offset.
pub(crate) fn fill(
    buffer: &mut [u8],
    offset: u64,
    segments: impl Iterator<Item = Segment>,
    mut data: impl FnMut(Segment, u64, &mut [u8]) -> Result<()>,
    mut gap: impl FnMut(u64, &mut [u8]) -> Result<()>,
) -> Result<()> {
    let mut at = offset;
    let mut rest = buffer;
    for segment in segments {
        let start = (segment.offset() * SECTOR).max(at);
        let (now, later) = rest.split_at_mut(size(start - at).min(rest.len()));
        if !now.is_empty() {
            gap(at, now)?;
        }
        let len = size(segment.end() * SECTOR - start).min(later.len());
        let (now, later) = later.split_at_mut(len);
        match segment.content() {
            Content::Zeros => now.fill(0),
            Content::Data => data(segment, start - segment.offset() * SECTOR, now)?,
        }
        at = start + wide(len);
        rest = later;
    }
    match rest.is_empty() {
        true => Ok(()),
        false => gap(at, rest),
    }
}

/// Extents in order, equal neighbors joined.
pub(crate) struct Extents {
    pub(crate) done: Vec<Extent>,
    at: u64,
}

impl Extents {
    pub(crate) fn new(start: u64) -> Self {
        Self {
            done: Vec::new(),
            at: start,
        }
    }

    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    /// Appends what goes to `end`, if anything does.
    pub(crate) fn push(&mut self, end: u64, kind: ExtentKind) {
        if end <= self.at {
            return;
        }
        match self.done.last_mut() {
            Some(last) if last.kind == kind => last.range.end = end,
            _ => self.done.push(Extent {
                range: self.at..end,
                kind,
            }),
        }
        self.at = end;
    }

    /// Appends a hole up to the segment, and the segment, as far as both are within the range.
    pub(crate) fn push_segment(&mut self, segment: Segment, range: &Range<u64>) {
        self.push((segment.offset() * SECTOR).min(range.end), ExtentKind::Hole);
        let kind = match segment.content() {
            Content::Data => ExtentKind::Data,
            Content::Zeros => ExtentKind::Zeros,
        };
        self.push((segment.end() * SECTOR).min(range.end), kind);
    }
}
