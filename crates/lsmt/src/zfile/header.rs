//! Header and trailer of a `ZFile`: 512 bytes of the same layout.

use super::Codec;
use crate::crc;
use crate::error::{LsmtError, Result, at_most, rule};
use crate::num::{put, u32_at, u64_at};

pub(super) const HEADER_BYTES: usize = 512;
const STRUCT_BYTES: u32 = 96;
const MAGIC: &[u8; 24] = b"ZFile\0\x01\0tuji.yyf@Alibaba";
/// Entries of an index, as overlaybd.
const BLOCKS_MAX: u64 = 1_000_000_000;
/// Bytes of a block: overlaybd's tools have these powers of two.
const BLOCK_BYTES: std::ops::RangeInclusive<u32> = 4096..=65536;

/// Bits of the flags; above them, old blobs have garbage.
pub(super) mod flags {
    pub(crate) const HEADER: u64 = 1;
    pub(crate) const DATA: u64 = 1 << 1;
    pub(crate) const SEALED: u64 = 1 << 2;
    /// The header was written again at the end, and the trailer is not needed.
    pub(crate) const OVERWRITTEN: u64 = 1 << 3;
    /// Digest and checksum of the index are there.
    pub(crate) const DIGEST: u64 = 1 << 4;
    pub(crate) const INDEX_COMPRESSED: u64 = 1 << 5;
    pub(crate) const KNOWN: u64 = (1 << 6) - 1;
}

/// The fields of a header or trailer.
#[derive(Clone, Debug)]
pub(super) struct Header {
    pub(super) flags: u64,
    pub(super) index_offset: u64,
    pub(super) index_size: u64,
    pub(super) original_size: u64,
    pub(super) index_crc: u32,
    pub(super) block_size: u32,
    pub(super) codec: Codec,
    pub(super) dict_size: u32,
    /// Whether each block has a checksum behind it.
    pub(super) verify: bool,
}

impl Header {
    pub(super) fn decode(bytes: &[u8; HEADER_BYTES], at: u64) -> Result<Self> {
        if !bytes.starts_with(MAGIC) {
            return Err(LsmtError::Magic { kind: "ZFile" });
        }
        if u32_at(bytes, 24) != STRUCT_BYTES {
            return rule("ZFile header", "its size is not 96");
        }
        let flags = u64_at(bytes, 32) & flags::KNOWN;
        if flags & flags::DIGEST != 0 && digest(bytes) != u32_at(bytes, 28) {
            let part = "ZFile header";
            return Err(LsmtError::Checksum { part, at });
        }
        if flags & flags::INDEX_COMPRESSED != 0 {
            let what = "a ZFile with a compressed index";
            return Err(LsmtError::Unsupported { what });
        }
        let header = Self {
            flags,
            index_offset: u64_at(bytes, 40),
            index_size: u64_at(bytes, 48),
            original_size: u64_at(bytes, 56),
            index_crc: u32_at(bytes, 64),
            block_size: u32_at(bytes, 72),
            codec: Codec::decode(bytes[76])?,
            dict_size: match bytes[78] {
                0 => 0,
                _ => u32_at(bytes, 84),
            },
            verify: bytes[88] != 0,
        };
        if !header.block_size.is_power_of_two() || !BLOCK_BYTES.contains(&header.block_size) {
            return rule(
                "ZFile header",
                "the size of blocks is no power of two from 4 to 64 KiB",
            );
        }
        if header.dict_size > 0 {
            let what = "a ZFile with a dictionary";
            return Err(LsmtError::Unsupported { what });
        }
        Ok(header)
    }

    /// Checks the index against the size of the file and the number of blocks.
    pub(super) fn check_index(&self, end: u64) -> Result<()> {
        at_most("number of blocks", self.index_size, BLOCKS_MAX)?;
        if self.index_size != self.original_size.div_ceil(u64::from(self.block_size)) {
            return rule("ZFile header", "the index has not one entry for each block");
        }
        let fits = self.index_offset.checked_add(self.index_size * 4);
        if self.index_offset < HEADER_BYTES as u64 || fits.is_none_or(|after| after > end) {
            return rule("ZFile header", "the index is not within the file");
        }
        Ok(())
    }

    pub(super) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        put(&mut bytes, 0, MAGIC);
        put(&mut bytes, 24, &STRUCT_BYTES.to_le_bytes());
        put(&mut bytes, 32, &self.flags.to_le_bytes());
        put(&mut bytes, 40, &self.index_offset.to_le_bytes());
        put(&mut bytes, 48, &self.index_size.to_le_bytes());
        put(&mut bytes, 56, &self.original_size.to_le_bytes());
        put(&mut bytes, 64, &self.index_crc.to_le_bytes());
        put(&mut bytes, 72, &self.block_size.to_le_bytes());
        bytes[76] = self.codec.encode();
        bytes[88] = u8::from(self.verify);
        if self.flags & flags::DIGEST != 0 {
            let sum = digest(&bytes);
            put(&mut bytes, 28, &sum.to_le_bytes());
        }
        bytes
    }
}

/// Returns the checksum of a header, its own field zero.
fn digest(bytes: &[u8; HEADER_BYTES]) -> u32 {
    let mut zeroed = *bytes;
    zeroed[28..32].fill(0);
    crc::raw(0, &zeroed)
}
