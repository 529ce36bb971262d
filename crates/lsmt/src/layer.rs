//! A sealed layer: header, data, index, trailer.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use crate::budget::SegmentBudget;
use crate::error::{Doing, Result, at_most, rule};
use crate::header::{DATA_SECTOR, HEADER_BYTES, Header, SEALED_SEGMENTS_MAX};
use crate::index::Index;
use crate::num::{SECTOR, size, wide};
use crate::segment::{Content, SEGMENT_BYTES, Segment};
use crate::storage::{Expected, ReadAt, read_vec};
use crate::uuid::Uuid;

/// The identifiers of a layer and of its parent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayerInfo {
    /// Its own identifier.
    pub uuid: Uuid,
    /// That of the layer below it, as its writer knew it; nothing enforces it.
    pub parent: Uuid,
    /// Bytes of the device; zero if another layer defines it.
    pub virtual_size: u64,
    /// The message of its commit.
    pub message: Vec<u8>,
}

/// Segments whose data is in one place.
pub(crate) struct Part {
    pub(crate) index: Index,
    pub(crate) source: Arc<dyn ReadAt>,
}

/// A sealed layer, its index in memory.
///
/// Its data is in one place, or in two: most data of a turboOCI layer is in the layer of the container
/// image from which it was made.
pub struct Layer {
    info: LayerInfo,
    parts: Vec<Part>,
}

impl std::fmt::Debug for Layer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Layer")
            .field("info", &self.info)
            .field("segments", &self.segments().count())
            .finish_non_exhaustive()
    }
}

impl Layer {
    /// Opens an uncompressed layer; [`open_blob`](crate::open_blob) detects its wrapping.
    ///
    /// # Errors
    ///
    /// Fails if it cannot be read, or breaks a rule of the format.
    pub fn open(blob: Arc<dyn ReadAt>) -> Result<Self> {
        Self::open_within(blob, &SegmentBudget::default())
    }

    /// Opens an uncompressed layer of an image, all layers of which have one budget.
    ///
    /// # Errors
    ///
    /// As [`Self::open`], and if the budget does not suffice: before memory is taken for the index.
    pub fn open_within(blob: Arc<dyn ReadAt>, budget: &SegmentBudget) -> Result<Self> {
        let trailer = read_trailer(&*blob)?;
        paid(budget, trailer.index_size, || Self::opened(blob, trailer))
    }

    fn opened(blob: Arc<dyn ReadAt>, trailer: Header) -> Result<Self> {
        let mut segments = read_index(&*blob, &trailer)?;
        check_places(&segments, trailer.index_offset / SECTOR)?;
        for segment in &mut segments {
            *segment = segment.tagged(0);
        }
        let index = checked(&trailer, segments)?;
        let parts = vec![Part {
            index,
            source: blob,
        }];
        Ok(Self::of(trailer, parts))
    }

    /// Opens the metadata of a turboOCI layer, given the uncompressed tar that it is about. All layers of an image have one
    /// budget.
    ///
    /// # Errors
    ///
    /// As [`Self::open_within`].
    pub fn open_turbo_within(
        meta: Arc<dyn ReadAt>,
        tar: Arc<dyn ReadAt>,
        budget: &SegmentBudget,
    ) -> Result<Self> {
        let trailer = read_trailer(&*meta)?;
        let segments = trailer.index_size;
        paid(budget, segments, || Self::opened_turbo(meta, tar, trailer))
    }

    fn opened_turbo(meta: Arc<dyn ReadAt>, tar: Arc<dyn ReadAt>, trailer: Header) -> Result<Self> {
        let segments = read_index(&*meta, &trailer)?;
        let tar_bytes = tar.size().doing("get the size of the layer's tar")?;
        let tar = ZeroTail {
            inner: tar,
            bytes: tar_bytes,
        };
        if segments.iter().any(|segment| segment.tag() > 1) {
            return rule("turboOCI index", "a segment is of an unknown source");
        }
        // Together they have to be in order, too.
        checked(&trailer, segments.clone())?;
        let of = |tag: u8| segments.iter().filter(move |segment| segment.tag() == tag);
        let meta_segments: Vec<_> = of(0).copied().collect();
        let tar_segments: Vec<_> = of(1).map(|segment| segment.tagged(0)).collect();
        check_places(&meta_segments, trailer.index_offset / SECTOR)?;
        for segment in &tar_segments {
            at_most(
                "end of a file's data in the tar",
                segment.mend(),
                tar_bytes.div_ceil(SECTOR),
            )?;
        }
        let parts = vec![
            Part {
                index: Index::new(meta_segments)?,
                source: meta,
            },
            Part {
                index: Index::new(tar_segments)?,
                source: Arc::new(tar),
            },
        ];
        Ok(Self::of(trailer, parts))
    }

    fn of(trailer: Header, parts: Vec<Part>) -> Self {
        Self {
            info: LayerInfo {
                uuid: trailer.uuid,
                parent: trailer.parent,
                virtual_size: trailer.virtual_size,
                message: trailer.message,
            },
            parts,
        }
    }

    /// Returns how it is called.
    pub fn info(&self) -> &LayerInfo {
        &self.info
    }

    /// Returns its segments: all of those with data in one place, then those in the other.
    pub fn segments(&self) -> impl Iterator<Item = Segment> + '_ {
        self.parts
            .iter()
            .flat_map(|part| part.index.segments().iter().copied())
    }

    /// Returns how many segments it has.
    pub(crate) fn segment_count(&self) -> u64 {
        let parts = self.parts.iter();
        parts.map(|part| wide(part.index.segments().len())).sum()
    }

    /// Reads a part of a segment of a layer whose data is in one place.
    pub(crate) fn read_segment(
        &self,
        segment: Segment,
        skip: u64,
        buffer: &mut [u8],
    ) -> Result<()> {
        let at = segment.moffset() * SECTOR + skip;
        self.parts[0]
            .source
            .read_at(buffer, at)
            .doing("read a layer's data")
    }

    /// Returns its parts, which do not overlap.
    pub(crate) fn parts(&self) -> &[Part] {
        &self.parts
    }
}

/// A tar whose last sector is filled up with zeros.
struct ZeroTail {
    inner: Arc<dyn ReadAt>,
    bytes: u64,
}

impl ReadAt for ZeroTail {
    fn size(&self) -> io::Result<u64> {
        Ok(self.bytes.next_multiple_of(SECTOR))
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let there = size(self.bytes.saturating_sub(offset)).min(buffer.len());
        let (data, rest) = buffer.split_at_mut(there);
        rest.fill(0);
        self.inner.read_at(data, offset)
    }

    fn expect(&self, ranges: &[Range<u64>]) -> Option<Expected> {
        let there = ranges
            .iter()
            .map(|range| range.start..range.end.min(self.bytes));
        self.inner.expect(&there.collect::<Vec<_>>())
    }
}

/// Makes an index of what a trailer describes.
fn checked(trailer: &Header, segments: Vec<Segment>) -> Result<Index> {
    let index = Index::new(segments)?;
    let end = index.segments().last().map_or(0, |last| last.end());
    match trailer.virtual_size > 0 && end > trailer.virtual_size.div_ceil(SECTOR) {
        true => rule("index", "a segment is past the end of the device"),
        false => Ok(index),
    }
}

/// Opens a layer of so many segments, for which it takes a budget first; that is given back if the layer cannot be opened.
fn paid(
    budget: &SegmentBudget,
    segments: u64,
    open: impl FnOnce() -> Result<Layer>,
) -> Result<Layer> {
    budget.take(segments)?;
    open().inspect_err(|_| budget.give_back(segments))
}

/// Reads and checks header and trailer; returns the trailer, which is in charge.
fn read_trailer(blob: &dyn ReadAt) -> Result<Header> {
    let blob_bytes = blob.size().doing("get the size of a layer")?;
    if blob_bytes < 2 * HEADER_BYTES {
        return rule("LSMT layer", "it is shorter than header and trailer");
    }
    let header = Header::decode(&read_vec(blob, 0, HEADER_BYTES, "read a layer's header")?)?;
    if !header.flags.is_header() {
        return rule("LSMT header", "its flags do not say that it is one");
    }
    let end = blob_bytes - HEADER_BYTES;
    let trailer = read_vec(blob, end, HEADER_BYTES, "read a layer's trailer")?;
    let trailer = Header::decode(&trailer)?;
    if trailer.flags.is_header() || !trailer.flags.is_data() || !trailer.flags.is_sealed() {
        return rule("LSMT trailer", "its flags are not those of a sealed layer");
    }
    trailer.check_index(end, SEALED_SEGMENTS_MAX)?;
    Ok(trailer)
}

fn read_index(blob: &dyn ReadAt, trailer: &Header) -> Result<Vec<Segment>> {
    let bytes = trailer.index_size * SEGMENT_BYTES as u64;
    let bytes = read_vec(blob, trailer.index_offset, bytes, "read a layer's index")?;
    let entries = bytes.chunks_exact(SEGMENT_BYTES).map(Segment::decode);
    Ok(entries.filter(|entry| !entry.is_padding()).collect())
}

/// Checks that data lies in the data area. Where zeros claim to be does not matter: AgentENV gives
/// them no place, overlaybd the end of the data.
fn check_places(segments: &[Segment], end: u64) -> Result<()> {
    for segment in segments {
        if segment.content() == Content::Data {
            if segment.moffset() < DATA_SECTOR {
                return rule("index", "a segment lies in the header");
            }
            at_most("end of a segment's data in sectors", segment.mend(), end)?;
        }
    }
    Ok(())
}
