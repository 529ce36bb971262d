//! An index as it goes over a network: compressed.

use std::io::Read as _;

use blocks::Broken;

use super::{INDEX_MAX, IndexError};
use crate::Codec;

/// The ids of chunks do not compress, the names of files do; higher levels gain little.
const LEVEL: i32 = 3;

/// Returns the bytes of an index compressed, or as they are if that is no longer.
#[must_use]
pub fn pack(bytes: &[u8]) -> (Codec, Vec<u8>) {
    match zstd::bulk::compress(bytes, LEVEL) {
        Ok(packed) if packed.len() < bytes.len() => (Codec::Zstd, packed),
        _ => (Codec::Raw, bytes.to_vec()),
    }
}

/// Returns the `raw_len` bytes that were packed. Memory grows with the output, not with the claimed
/// length.
///
/// # Errors
/// If `raw_len` is beyond [`INDEX_MAX`], or differs from the length of the output.
pub fn unpack(codec: Codec, packed: &[u8], raw_len: u64) -> Result<Vec<u8>, IndexError> {
    if raw_len > INDEX_MAX {
        return Err(IndexError::TooLarge { bytes: raw_len });
    }
    let broken = |rule| Broken {
        what: "packed index",
        rule,
    };
    let mut out = Vec::new();
    match codec {
        Codec::Raw => out.extend_from_slice(packed),
        Codec::Zstd => {
            let decoder = zstd::stream::read::Decoder::with_buffer(packed);
            let read = decoder.and_then(|decoder| {
                // One byte more than expected shows that there is more than expected.
                decoder.take(raw_len + 1).read_to_end(&mut out)
            });
            read.map_err(|_| broken("it does not decompress"))?;
        }
    }
    if out.len() as u64 != raw_len {
        return Err(broken("it has another length than announced").into());
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_is_unpacked() {
        for bytes in [vec![7; 100_000], b"short".to_vec(), Vec::new()] {
            let (codec, packed) = pack(&bytes);
            assert_eq!(codec == Codec::Zstd, packed.len() < bytes.len());
            let len = bytes.len() as u64;
            assert_eq!(unpack(codec, &packed, len), Ok(bytes));
        }
        assert!(pack(&[7; 100_000]).1.len() < 1000);
    }

    #[test]
    fn what_is_cut_damaged_or_of_another_length_is_refused() {
        let (codec, packed) = pack(&[7; 100_000]);
        for len in [0, 99_999, 100_001] {
            assert!(unpack(codec, &packed, len).is_err(), "{len}");
        }
        for len in 0..packed.len() {
            assert!(unpack(codec, &packed[..len], 100_000).is_err(), "{len}");
        }
        assert!(unpack(Codec::Raw, b"abc", 4).is_err());
        assert!(unpack(Codec::Zstd, b"no zstd", 7).is_err());
        let large = unpack(codec, &packed, INDEX_MAX + 1);
        assert!(matches!(large, Err(IndexError::TooLarge { .. })));
    }
}
