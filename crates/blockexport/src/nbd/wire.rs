//! The messages of NBD as bytes (the protocol's document calls this the fixed newstyle).

#![expect(
    clippy::big_endian_bytes,
    reason = "all numbers of NBD are big-endian; they occur in this file only"
)]

use blocks::{Content, DeviceErrorKind, DeviceExtent};

/// `NBDMAGIC`, then `IHAVEOPT`, then what the server can.
pub(super) const GREETING: [u8; 18] = *b"NBDMAGICIHAVEOPT\0\x03";
const OPTION_MAGIC: [u8; 8] = *b"IHAVEOPT";
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// The flags of a client: fixed newstyle, and no zeros after an export's data.
pub(super) const CLIENT_FIXED: u32 = 1;
pub(super) const CLIENT_NO_ZEROES: u32 = 2;

pub(super) const OPT_EXPORT_NAME: u32 = 1;
pub(super) const OPT_ABORT: u32 = 2;
pub(super) const OPT_LIST: u32 = 3;
pub(super) const OPT_INFO: u32 = 6;
pub(super) const OPT_GO: u32 = 7;
pub(super) const OPT_STRUCTURED_REPLY: u32 = 8;
pub(super) const OPT_LIST_META: u32 = 9;
pub(super) const OPT_SET_META: u32 = 10;

pub(super) const REP_ACK: u32 = 1;
pub(super) const REP_SERVER: u32 = 2;
pub(super) const REP_INFO: u32 = 3;
pub(super) const REP_META: u32 = 4;
pub(super) const REP_ERR_UNSUP: u32 = 0x8000_0001;
pub(super) const REP_ERR_INVALID: u32 = 0x8000_0003;
pub(super) const REP_ERR_UNKNOWN: u32 = 0x8000_0006;
pub(super) const REP_ERR_TOO_BIG: u32 = 0x8000_0009;

pub(super) const INFO_EXPORT: u16 = 0;
pub(super) const INFO_NAME: u16 = 1;
pub(super) const INFO_BLOCK_SIZE: u16 = 3;

/// The flags of an export, for clients.
pub(super) const FLAG_HAS_FLAGS: u16 = 1;
pub(super) const FLAG_READ_ONLY: u16 = 1 << 1;
pub(super) const FLAG_FLUSH: u16 = 1 << 2;
pub(super) const FLAG_FUA: u16 = 1 << 3;
pub(super) const FLAG_TRIM: u16 = 1 << 5;
pub(super) const FLAG_WRITE_ZEROES: u16 = 1 << 6;
pub(super) const FLAG_DF: u16 = 1 << 7;
pub(super) const FLAG_MULTI_CONN: u16 = 1 << 8;

pub(super) const CMD_READ: u16 = 0;
pub(super) const CMD_WRITE: u16 = 1;
pub(super) const CMD_DISC: u16 = 2;
pub(super) const CMD_FLUSH: u16 = 3;
pub(super) const CMD_TRIM: u16 = 4;
pub(super) const CMD_WRITE_ZEROES: u16 = 6;
pub(super) const CMD_BLOCK_STATUS: u16 = 7;

pub(super) const CMD_FLAG_FUA: u16 = 1;
pub(super) const CMD_FLAG_NO_HOLE: u16 = 2;
pub(super) const CMD_FLAG_DF: u16 = 4;
pub(super) const CMD_FLAG_REQ_ONE: u16 = 8;

const CHUNK_OFFSET_DATA: u16 = 1;
const CHUNK_BLOCK_STATUS: u16 = 5;
const CHUNK_ERROR: u16 = 32_769;
const CHUNK_DONE: u16 = 1;

/// The only metadata context: which parts are holes, and which are zeros.
pub(super) const ALLOCATION: &str = "base:allocation";
/// Its number, which is the server's to choose.
pub(super) const ALLOCATION_ID: u32 = 1;

/// The errors that NBD has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Errno {
    NotPermitted = 1,
    Io = 5,
    Invalid = 22,
    NoSpace = 28,
    NotSupported = 95,
}

impl From<DeviceErrorKind> for Errno {
    fn from(kind: DeviceErrorKind) -> Self {
        match kind {
            DeviceErrorKind::OutOfBounds | DeviceErrorKind::Misaligned => Self::Invalid,
            DeviceErrorKind::ReadOnly => Self::NotPermitted,
            DeviceErrorKind::Unsupported => Self::NotSupported,
            DeviceErrorKind::NoSpace => Self::NoSpace,
            // NBD has no word for damage or lateness.
            _ => Self::Io,
        }
    }
}

/// One request, without the payload of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) flags: u16,
    pub(super) command: u16,
    /// Chosen by the client; its reply has the same.
    pub(super) cookie: [u8; 8],
    pub(super) offset: u64,
    pub(super) len: u32,
}

pub(super) const REQUEST_BYTES: usize = 28;

impl Request {
    /// Decodes a request; `None` if the bytes are invalid.
    pub(super) fn decode(bytes: &[u8; REQUEST_BYTES]) -> Option<Self> {
        let mut fields = Fields(bytes);
        if fields.u32()? != REQUEST_MAGIC {
            return None;
        }
        Some(Self {
            flags: fields.u16()?,
            command: fields.u16()?,
            cookie: fields.array()?,
            offset: fields.u64()?,
            len: fields.u32()?,
        })
    }
}

/// The head of an option: which, and how many bytes follow.
pub(super) const OPTION_BYTES: usize = 16;

/// Decodes the head of an option; `None` if the bytes are invalid.
pub(super) fn option(bytes: &[u8; OPTION_BYTES]) -> Option<(u32, u32)> {
    let mut fields = Fields(bytes);
    let magic: [u8; 8] = fields.array()?;
    (magic == OPTION_MAGIC).then_some((fields.u32()?, fields.u32()?))
}

/// Decodes the flags of a client.
pub(super) const fn client_flags(bytes: [u8; 4]) -> u32 {
    u32::from_be_bytes(bytes)
}

/// Bytes of a message that are read from front to back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*head)
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// Takes a text that follows its length of 4 bytes.
    pub(super) fn text(&mut self) -> Option<&'a [u8]> {
        let len = usize::try_from(self.u32()?).ok()?;
        let (text, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(text)
    }
}

/// Encodes a reply to an option.
pub(super) fn option_reply(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let len = u32::try_from(data.len()).unwrap_or(u32::MAX);
    let head = [option, kind, len].map(u32::to_be_bytes);
    [&OPTION_REPLY_MAGIC.to_be_bytes(), head.as_flattened(), data].concat()
}

/// Encodes the description of one export for `OPT_LIST`.
pub(super) fn listed(name: &str) -> Vec<u8> {
    let len = u32::try_from(name.len()).unwrap_or(u32::MAX);
    [&len.to_be_bytes(), name.as_bytes()].concat()
}

/// Encodes size and flags of an export, as every client gets them.
pub(super) fn export(size: u64, flags: u16) -> Vec<u8> {
    [&size.to_be_bytes()[..], &flags.to_be_bytes()].concat()
}

/// Encodes one piece of information about an export.
pub(super) fn info(kind: u16, data: &[u8]) -> Vec<u8> {
    [&kind.to_be_bytes(), data].concat()
}

/// Encodes the sizes that requests may have: least, preferred, most.
pub(super) fn block_sizes(sizes: [u32; 3]) -> Vec<u8> {
    sizes.map(u32::to_be_bytes).concat()
}

/// Encodes a metadata context.
pub(super) fn context() -> Vec<u8> {
    [&ALLOCATION_ID.to_be_bytes(), ALLOCATION.as_bytes()].concat()
}

/// Encodes a simple reply: an error number or 0.
pub(super) fn simple_reply(cookie: [u8; 8], result: Result<(), Errno>) -> Vec<u8> {
    let error = result.map_or_else(|errno| errno as u32, |()| 0);
    let numbers = [SIMPLE_REPLY_MAGIC, error].map(u32::to_be_bytes);
    [numbers.as_flattened(), &cookie].concat()
}

fn chunk(cookie: [u8; 8], kind: u16, len: u32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(64);
    bytes.extend(CHUNK_MAGIC.to_be_bytes());
    bytes.extend([CHUNK_DONE, kind].map(u16::to_be_bytes).as_flattened());
    bytes.extend(cookie);
    bytes.extend(len.to_be_bytes());
    bytes
}

/// Encodes the head of a structured reply with `len` bytes of data from `offset`, which follow it.
pub(super) fn data_chunk(cookie: [u8; 8], offset: u64, len: u32) -> Vec<u8> {
    let mut bytes = chunk(cookie, CHUNK_OFFSET_DATA, len.saturating_add(8));
    bytes.extend(offset.to_be_bytes());
    bytes
}

/// Encodes a structured reply with an error.
pub(super) fn error_chunk(cookie: [u8; 8], errno: Errno) -> Vec<u8> {
    let mut bytes = chunk(cookie, CHUNK_ERROR, 6);
    bytes.extend((errno as u32).to_be_bytes());
    bytes.extend(0_u16.to_be_bytes());
    bytes
}

/// Encodes a structured reply with the allocation status.
pub(super) fn status_chunk(cookie: [u8; 8], extents: &[DeviceExtent]) -> Vec<u8> {
    const HOLE: u32 = 1;
    const ZERO: u32 = 2;
    let len = u32::try_from(4 + 8 * extents.len()).unwrap_or(u32::MAX);
    let mut bytes = chunk(cookie, CHUNK_BLOCK_STATUS, len);
    bytes.extend(ALLOCATION_ID.to_be_bytes());
    for extent in extents {
        let flags = match extent.content {
            Content::Data => 0,
            Content::Zero => ZERO,
            Content::Hole => HOLE | ZERO,
        };
        let len = u32::try_from(extent.len).unwrap_or(u32::MAX);
        bytes.extend([len, flags].map(u32::to_be_bytes).as_flattened());
    }
    bytes
}
