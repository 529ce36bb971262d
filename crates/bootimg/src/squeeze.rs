//! zstd with bounds: whole sections, and frames of data.

use std::io::{self, Read};

use crate::FormatError;
use crate::header::{Coding, RATIO_MAX, Section};
use crate::layout::{len_usize, len64};

/// For sections and frames: they are written once and read at every boot.
const LEVEL: i32 = 9;

/// Returns the bytes to store for a section, and how they are coded: compressed if that is
/// smaller and within what a reader accepts.
pub(crate) fn pack_section(bytes: Vec<u8>) -> (Vec<u8>, Coding) {
    match zstd::bulk::compress(&bytes, LEVEL) {
        Ok(packed)
            if packed.len() < bytes.len()
                && len64(bytes.len()) / RATIO_MAX <= len64(packed.len()) =>
        {
            (packed, Coding::Zstd)
        }
        _ => (bytes, Coding::Plain),
    }
}

/// Decodes a section from its stored bytes. Its lengths were checked before.
pub(crate) fn unpack_section(section: &Section, stored: Vec<u8>) -> Result<Vec<u8>, FormatError> {
    let what = section.kind.name();
    match section.coding {
        Coding::Plain => Ok(stored),
        Coding::Zstd => {
            unpack(&stored, len_usize(section.decoded_len)).map_err(|_| FormatError::Rule {
                what,
                rule: "it does not decompress to its length",
            })
        }
    }
}

/// Compresses a frame of data.
pub(crate) fn pack_frame(data: &[u8]) -> io::Result<Vec<u8>> {
    zstd::bulk::compress(data, LEVEL)
}

/// Decompresses to exactly `len` bytes. Memory grows with the output, not with the claimed
/// length.
pub(crate) fn unpack(packed: &[u8], len: usize) -> io::Result<Vec<u8>> {
    let mut out = Vec::new();
    let mut decoder = zstd::stream::read::Decoder::with_buffer(packed)?;
    // One byte more than expected shows that there is more than expected.
    decoder
        .by_ref()
        .take(len64(len).saturating_add(1))
        .read_to_end(&mut out)?;
    if out.len() == len {
        Ok(out)
    } else {
        Err(io::ErrorKind::InvalidData.into())
    }
}
