//! A segment: an entry of an index, 16 bytes, in memory as on disk.

use std::fmt;

use crate::num::u64_at;

/// Bytes of a segment on disk.
pub(crate) const SEGMENT_BYTES: usize = 16;
/// Sectors of the longest segment: 8 MiB less one sector.
pub const SEGMENT_SECTORS_MAX: u64 = (1 << 14) - 1;
/// The first sector that no device has; as an offset it marks padding.
pub(crate) const OFFSET_END: u64 = (1 << 50) - 1;
const MOFFSET_MASK: u64 = (1 << 55) - 1;

/// A run of sectors of a device, and where a blob has them.
///
/// On disk, of the first eight bytes the lower 50 bits are the offset and the upper 14 the length; of
/// the second eight, 55 bits are the place in the blob, one means zeros without data, and
/// eight are a tag. All numbers are sectors.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Segment(u64, u64);

/// The content of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Data, at the segment's place in the blob.
    Data,
    /// Zeros.
    Zeros,
}

impl Segment {
    /// The entry that fills up an index.
    pub(crate) const PADDING: Self = Self(OFFSET_END, 0);

    /// Makes a segment; the length is limited to [`SEGMENT_SECTORS_MAX`], and others to their bits.
    pub const fn new(offset: u64, len: u64, moffset: u64, content: Content) -> Self {
        let zeros = match content {
            Content::Data => 0,
            Content::Zeros => 1 << 55,
        };
        let len = match len < SEGMENT_SECTORS_MAX {
            true => len,
            false => SEGMENT_SECTORS_MAX,
        };
        Self(
            (offset & OFFSET_END) | len << 50,
            (moffset & MOFFSET_MASK) | zeros,
        )
    }

    /// Returns the first sector of the device.
    #[inline]
    pub const fn offset(self) -> u64 {
        self.0 & OFFSET_END
    }

    /// Returns how many sectors it has.
    #[inline]
    pub const fn sectors(self) -> u64 {
        self.0 >> 50
    }

    /// Returns the sector of the device behind it.
    #[inline]
    pub const fn end(self) -> u64 {
        self.offset() + self.sectors()
    }

    /// Returns the first sector in the blob.
    #[inline]
    pub const fn moffset(self) -> u64 {
        self.1 & MOFFSET_MASK
    }

    /// Returns the sector of the blob behind it; zeros have none.
    #[inline]
    pub const fn mend(self) -> u64 {
        match self.content() {
            Content::Data => self.moffset() + self.sectors(),
            Content::Zeros => self.moffset(),
        }
    }

    /// Returns its content.
    #[inline]
    pub const fn content(self) -> Content {
        match self.1 >> 55 & 1 {
            0 => Content::Data,
            _ => Content::Zeros,
        }
    }

    /// Returns the tag: in a merged index, the number of the layer.
    #[inline]
    pub const fn tag(self) -> u8 {
        self.1.to_le_bytes()[7]
    }

    /// Returns the segment with another tag.
    #[inline]
    pub(crate) const fn tagged(self, tag: u8) -> Self {
        Self(self.0, self.1 & (u64::MAX >> 8) | (tag as u64) << 56)
    }

    /// Returns the part between two sectors of the device, of which it has at least one.
    pub(crate) const fn clipped(self, from: u64, to: u64) -> Self {
        let from = if from > self.offset() {
            from
        } else {
            self.offset()
        };
        let to = if to < self.end() { to } else { self.end() };
        let skipped = match self.content() {
            Content::Data => from - self.offset(),
            Content::Zeros => 0,
        };
        Self::new(from, to - from, self.moffset() + skipped, self.content()).tagged(self.tag())
    }

    /// Returns whether the other one continues this one, on the device and in the blob.
    pub(crate) fn continued_by(self, next: Self) -> bool {
        self.end() == next.offset()
            && self.mend() == next.moffset()
            && self.content() == next.content()
            && self.tag() == next.tag()
    }

    /// Returns whether it is an entry that fills up an index, or one that was never written.
    pub(crate) const fn is_padding(self) -> bool {
        self.offset() == OFFSET_END || self.sectors() == 0
    }

    /// Decodes an entry of 16 bytes.
    pub(crate) fn decode(bytes: &[u8]) -> Self {
        Self(u64_at(bytes, 0), u64_at(bytes, 8))
    }

    /// Encodes an entry.
    pub(crate) fn encode(self) -> [u8; SEGMENT_BYTES] {
        let mut bytes = [0; SEGMENT_BYTES];
        bytes[..8].copy_from_slice(&self.0.to_le_bytes());
        bytes[8..].copy_from_slice(&self.1.to_le_bytes());
        bytes
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (offset, end, tag) = (self.offset(), self.end(), self.tag());
        match self.content() {
            Content::Data => write!(f, "{offset}..{end} at {} of {tag}", self.moffset()),
            Content::Zeros => write!(f, "{offset}..{end} zeros of {tag}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn has_the_bits_of_the_format() {
        let bytes = Segment::new(0x80, 0x80, 0x88, Content::Data).encode();
        // The second entry of the vector A.index.
        assert_eq!(bytes[..8], [0x80, 0, 0, 0, 0, 0, 0, 0x02]);
        assert_eq!(bytes[8..], [0x88, 0, 0, 0, 0, 0, 0, 0]);
        let zeros = Segment::new(1, 2, 3, Content::Zeros).tagged(9);
        assert_eq!(Segment::decode(&zeros.encode()), zeros);
        assert_eq!(
            (zeros.content(), zeros.tag(), zeros.mend()),
            (Content::Zeros, 9, 3)
        );
        let padding = [
            0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        ];
        assert_eq!(Segment::PADDING.encode(), padding);
        assert!(Segment::decode(&padding).is_padding());
    }

    #[test]
    fn a_part_keeps_its_place_in_the_blob() {
        let part = Segment::new(10, 10, 100, Content::Data).clipped(12, 99);
        assert_eq!(
            (part.offset(), part.sectors(), part.moffset()),
            (12, 8, 102)
        );
    }
}
