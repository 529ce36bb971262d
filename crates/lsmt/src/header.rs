//! Header and trailer of an LSMT file: 4 096 bytes of the same layout.

use crate::error::{LsmtError, Result, at_most, rule};
use crate::num::{put, size, u16_at, u32_at, u64_at};
use crate::segment::SEGMENT_BYTES;
use crate::uuid::{UUID_BYTES, Uuid};

/// Bytes of a header or trailer.
pub(crate) const HEADER_BYTES: u64 = 4096;
/// The sector at which data begins.
pub(crate) const DATA_SECTOR: u64 = HEADER_BYTES / 512;
/// Bytes of the message of a commit.
pub const MESSAGE_BYTES: usize = 256;
/// Entries of an index of a sealed layer, as overlaybd since 2026-08.
pub const SEALED_SEGMENTS_MAX: u64 = 1_000_000;
/// Entries of an index of an open layer and of a merged index, as overlaybd.
pub const OPEN_SEGMENTS_MAX: u64 = 128_000_000;
/// Bytes of the largest device: the range of a segment's offset.
pub const DEVICE_BYTES_MAX: u64 = ((1 << 50) - 1) * 512;

const MAGIC: [u8; 24] = [
    0x4c, 0x53, 0x4d, 0x54, 0, 1, 2, 0, 0x65, 0x7e, 0x63, 0xd2, 0x94, 0x44, 0x08, 0x4c, 0xa2, 0xd2,
    0xc8, 0xec, 0x4f, 0xcf, 0xae, 0x8a,
];
const STRUCT_BYTES: u32 = 390;

/// The flags of a header; other bits are ignored on reading and never written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flags(u32);

impl Flags {
    const HEADER: u32 = 1;
    const DATA: u32 = 1 << 1;
    const SEALED: u32 = 1 << 2;
    const SPARSE: u32 = 1 << 4;
    const HYBRID: u32 = 1 << 5;
    const KNOWN: u32 = 0b11_0111;

    /// The header of a committed layer.
    pub(crate) const COMMITTED: Self = Self(Self::HEADER | Self::DATA | Self::SEALED);
    /// The trailer of a sealed layer.
    pub(crate) const TRAILER: Self = Self(Self::DATA | Self::SEALED);
    /// The header of the data of an open layer.
    pub(crate) const OPEN_DATA: Self = Self(Self::HEADER | Self::DATA);
    /// The header of the index of an open layer.
    pub(crate) const OPEN_INDEX: Self = Self(Self::HEADER);

    pub(crate) const fn hybrid(self) -> Self {
        Self(self.0 | Self::HYBRID)
    }

    pub(crate) const fn sparse(self) -> Self {
        Self(self.0 | Self::SPARSE)
    }

    const fn has(self, bit: u32) -> bool {
        self.0 & bit != 0
    }

    pub(crate) const fn is_header(self) -> bool {
        self.has(Self::HEADER)
    }

    pub(crate) const fn is_data(self) -> bool {
        self.has(Self::DATA)
    }

    pub(crate) const fn is_sealed(self) -> bool {
        self.has(Self::SEALED)
    }

    pub(crate) const fn is_sparse(self) -> bool {
        self.has(Self::SPARSE)
    }

    pub(crate) const fn is_hybrid(self) -> bool {
        self.has(Self::HYBRID)
    }
}

/// The fields of a header or trailer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) flags: Flags,
    /// Where the index begins, in bytes.
    pub(crate) index_offset: u64,
    /// Entries of the index, with those that fill it up.
    pub(crate) index_size: u64,
    /// Bytes of the device.
    pub(crate) virtual_size: u64,
    pub(crate) uuid: Uuid,
    pub(crate) parent: Uuid,
    /// The commit's message, up to its first zero.
    pub(crate) message: Vec<u8>,
}

impl Header {
    /// Returns a header with no index.
    pub(crate) fn new(flags: Flags, virtual_size: u64, uuid: Uuid, parent: Uuid) -> Self {
        Self {
            flags,
            index_offset: 0,
            index_size: 0,
            virtual_size,
            uuid,
            parent,
            message: Vec::new(),
        }
    }

    /// Decodes 4 096 bytes; nothing but the struct at their beginning counts.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        if bytes.get(..24) != Some(&MAGIC) {
            return Err(LsmtError::Magic { kind: "LSMT layer" });
        }
        if u32_at(bytes, 24) != STRUCT_BYTES || bytes.len() < size(HEADER_BYTES) {
            return rule("LSMT header", "its size is not 390");
        }
        if bytes[132] != 1 {
            return rule("LSMT header", "its version is not 1");
        }
        let virtual_size = u64_at(bytes, 48);
        at_most(
            "size of the device in bytes",
            virtual_size,
            DEVICE_BYTES_MAX,
        )?;
        let message = &bytes[134..134 + MESSAGE_BYTES];
        let end = message.iter().position(|&byte| byte == 0);
        Ok(Self {
            flags: Flags(u32_at(bytes, 28) & Flags::KNOWN),
            index_offset: u64_at(bytes, 32),
            index_size: u64_at(bytes, 40),
            virtual_size,
            uuid: Uuid::decode(&bytes[56..56 + UUID_BYTES])?,
            parent: Uuid::decode(&bytes[93..93 + UUID_BYTES])?,
            message: message[..end.unwrap_or(MESSAGE_BYTES)].to_vec(),
        })
    }

    /// Encodes it; a message that is too long is cut.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; size(HEADER_BYTES)];
        put(&mut bytes, 0, &MAGIC);
        put(&mut bytes, 24, &STRUCT_BYTES.to_le_bytes());
        put(&mut bytes, 28, &self.flags.0.to_le_bytes());
        put(&mut bytes, 32, &self.index_offset.to_le_bytes());
        put(&mut bytes, 40, &self.index_size.to_le_bytes());
        put(&mut bytes, 48, &self.virtual_size.to_le_bytes());
        put(&mut bytes, 56, &self.uuid.encode());
        put(&mut bytes, 93, &self.parent.encode());
        debug_assert_eq!(u16_at(&bytes, 130), 0);
        put(&mut bytes, 132, &[1, 1]);
        let message = &self.message[..self.message.len().min(MESSAGE_BYTES)];
        put(&mut bytes, 134, message);
        bytes
    }

    /// Checks that the index is between the data and `end`, and is not too long.
    pub(crate) fn check_index(&self, end: u64, limit: u64) -> Result<()> {
        at_most("number of segments", self.index_size, limit)?;
        if self.index_offset < HEADER_BYTES {
            return rule("LSMT trailer", "the index lies in the header");
        }
        let bytes = self.index_size * SEGMENT_BYTES as u64;
        match self.index_offset.checked_add(bytes) {
            Some(after) if after <= end => Ok(()),
            _ => rule("LSMT trailer", "the index goes past the end of the blob"),
        }
    }
}
