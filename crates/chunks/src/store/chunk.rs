//! A chunk: its id, and its compressed form on the disk and on the wire.

use std::cell::RefCell;
use std::io;

use zstd::bulk::Decompressor;

use crate::PutError;

/// The name of a chunk: the BLAKE3 hash of its raw bytes.
pub use blocks::ContentId as ChunkId;

/// The most raw bytes of a chunk: at 128 KiB, BLAKE3 and zstd are at their best, and a request is
/// cheap beside its bytes.
pub const CHUNK_MAX: usize = 128 << 10;

/// The zstd level at rest: higher ones gain 6 % for six times the work.
const LEVEL: i32 = 3;

/// How the bytes of a chunk are stored, and sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Codec {
    /// Uncompressed.
    Raw = 0,
    /// One zstd frame.
    Zstd = 1,
}

impl Codec {
    /// Returns the codec of this number, as it is written in files and frames.
    #[must_use]
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Raw),
            1 => Some(Self::Zstd),
            _ => None,
        }
    }
}

/// A chunk as it is stored and sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The encoding of `bytes`.
    pub codec: Codec,
    /// The decompressed length: 1 to [`CHUNK_MAX`].
    pub raw_len: u32,
    /// The bytes, at most as many as `raw_len`.
    pub bytes: Vec<u8>,
}

/// Why a stored chunk is not the chunk it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChunkError {
    /// Its lengths cannot be those of a chunk.
    #[error("a length of a chunk is out of bounds")]
    Length,
    /// Its bytes cannot be decompressed to the given length.
    #[error("a chunk cannot be decompressed")]
    Codec,
    /// It is another chunk.
    #[error("the content of the chunk has the hash {found}")]
    WrongId {
        /// Its actual id.
        found: ChunkId,
    },
}

impl Stored {
    /// Returns the chunk of these bytes as it should be stored: compressed, unless that gains less
    /// than a tenth.
    ///
    /// # Errors
    /// If there are no bytes, or more than [`CHUNK_MAX`].
    pub fn pack(raw: &[u8]) -> Result<Self, PutError> {
        let length = PutError::Length { bytes: raw.len() };
        let raw_len = match u32::try_from(raw.len()) {
            Ok(len) if (1..=CHUNK_MAX).contains(&raw.len()) => len,
            _ => return Err(length),
        };
        let worth = raw.len() - raw.len().div_ceil(10);
        // Compressing cannot fail but for want of room, which then is more than it is worth.
        let mut bytes = vec![0; worth];
        if let Ok(len) = zstd::bulk::compress_to_buffer(raw, &mut bytes[..], LEVEL) {
            bytes.truncate(len);
            bytes.shrink_to_fit();
            return Ok(Self {
                codec: Codec::Zstd,
                raw_len,
                bytes,
            });
        }
        Ok(Self {
            codec: Codec::Raw,
            raw_len,
            bytes: raw.to_vec(),
        })
    }

    /// Returns the raw bytes, which match `id`. Never decompresses more than [`CHUNK_MAX`], whatever the
    /// data claims.
    ///
    /// # Errors
    /// If they do not match.
    pub fn open(self, id: &ChunkId) -> Result<Vec<u8>, ChunkError> {
        let raw = self.decode()?;
        let found = ChunkId::of(&raw);
        if found == *id {
            Ok(raw)
        } else {
            Err(ChunkError::WrongId { found })
        }
    }

    /// As [`open`](Self::open), without consuming it.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn read(&self, id: &ChunkId) -> Result<Vec<u8>, ChunkError> {
        match self.codec {
            Codec::Raw => self.clone().open(id),
            Codec::Zstd => {
                let raw_len = self.raw_len as usize;
                self.check_lengths()?;
                let raw = decompress(&self.bytes, raw_len).map_err(|_| ChunkError::Codec)?;
                let found = ChunkId::of(&raw);
                if raw.len() != raw_len {
                    Err(ChunkError::Codec)
                } else if found == *id {
                    Ok(raw)
                } else {
                    Err(ChunkError::WrongId { found })
                }
            }
        }
    }

    const fn check_lengths(&self) -> Result<(), ChunkError> {
        let raw_len = self.raw_len as usize;
        if raw_len == 0 || raw_len > CHUNK_MAX || self.bytes.len() > raw_len {
            return Err(ChunkError::Length);
        }
        Ok(())
    }

    fn decode(self) -> Result<Vec<u8>, ChunkError> {
        let raw_len = self.raw_len as usize;
        self.check_lengths()?;
        let raw = match self.codec {
            Codec::Raw => self.bytes,
            Codec::Zstd => decompress(&self.bytes, raw_len).map_err(|_| ChunkError::Codec)?,
        };
        match (self.codec, raw.len() == raw_len) {
            (_, true) => Ok(raw),
            (Codec::Raw, false) => Err(ChunkError::Length),
            (Codec::Zstd, false) => Err(ChunkError::Codec),
        }
    }
}

thread_local! {
    /// One for each thread: making one for each chunk costs a tenth of the work.
    static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

/// Decompresses at most so many bytes.
fn decompress(bytes: &[u8], most: usize) -> io::Result<Vec<u8>> {
    DECOMPRESSOR.with_borrow_mut(|kept| {
        let decompressor = match kept.take() {
            Some(decompressor) => decompressor,
            None => Decompressor::new()?,
        };
        kept.insert(decompressor).decompress(bytes, most)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_compresses_is_compressed_and_comes_back() {
        let raw = b"all work and no play. ".repeat(3000);
        let stored = Stored::pack(&raw).unwrap();
        assert_eq!(stored.codec, Codec::Zstd);
        assert!(stored.bytes.len() < raw.len() / 10);
        assert_eq!(stored.open(&ChunkId::of(&raw)), Ok(raw));
    }

    #[test]
    fn what_gains_less_than_a_tenth_stays_raw() {
        // 32 bytes of every hash are noise: nothing to gain.
        let noise: Vec<u8> = (0..128u8).flat_map(|n| ChunkId::of(&[n]).0).collect();
        let stored = Stored::pack(&noise).unwrap();
        assert_eq!(
            (stored.codec, stored.bytes.len()),
            (Codec::Raw, noise.len())
        );
        assert_eq!(stored.open(&ChunkId::of(&noise)), Ok(noise));
    }

    #[test]
    fn a_chunk_has_bounds() {
        for bytes in [0, CHUNK_MAX + 1] {
            let packed = Stored::pack(&vec![0; bytes]);
            assert!(matches!(packed, Err(PutError::Length { bytes: b }) if b == bytes));
        }
        for bytes in [1, CHUNK_MAX] {
            let raw = vec![7; bytes];
            let stored = Stored::pack(&raw).unwrap();
            assert_eq!(stored.open(&ChunkId::of(&raw)), Ok(raw));
        }
    }

    #[test]
    fn a_bomb_does_not_go_off() {
        let bytes = zstd::bulk::compress(&vec![0; 64 << 20], 3).unwrap();
        let bomb = Stored {
            codec: Codec::Zstd,
            raw_len: 128 << 10,
            bytes,
        };
        let long = Stored {
            raw_len: u32::MAX,
            ..bomb.clone()
        };
        assert_eq!(bomb.open(&ChunkId::default()), Err(ChunkError::Codec));
        assert_eq!(long.open(&ChunkId::default()), Err(ChunkError::Length));
    }

    #[test]
    fn another_chunk_is_told() {
        let stored = Stored::pack(b"one").unwrap();
        let found = ChunkId::of(b"one");
        let opened = stored.clone().open(&ChunkId::of(b"two"));
        assert_eq!(opened, Err(ChunkError::WrongId { found }));
        let cut = Stored {
            bytes: b"on".to_vec(),
            ..stored
        };
        assert_eq!(cut.open(&found), Err(ChunkError::Length));
    }
}
