//! The two ways to compress a block.

use std::cell::RefCell;
use std::io;

use crate::error::{LsmtError, Result};

/// The level of overlaybd's Zstandard.
const ZSTD_LEVEL: i32 = 3;

/// How blocks are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Codec {
    /// LZ4, raw blocks: the faster one.
    #[default]
    Lz4,
    /// Zstandard, one frame for each block: the smaller one.
    Zstd,
}

impl Codec {
    pub(super) fn decode(byte: u8) -> Result<Self> {
        match byte {
            1 => Ok(Self::Lz4),
            2 => Ok(Self::Zstd),
            _ => Err(LsmtError::Unsupported {
                what: "this compression of a ZFile",
            }),
        }
    }

    pub(super) const fn encode(self) -> u8 {
        match self {
            Self::Lz4 => 1,
            Self::Zstd => 2,
        }
    }
}

/// Compresses blocks, with its state.
pub(super) enum Compressor {
    Lz4,
    Zstd(zstd::bulk::Compressor<'static>),
}

impl Compressor {
    pub(super) fn new(codec: Codec) -> io::Result<Self> {
        Ok(match codec {
            Codec::Lz4 => Self::Lz4,
            Codec::Zstd => Self::Zstd(zstd::bulk::Compressor::new(ZSTD_LEVEL)?),
        })
    }

    pub(super) fn compress(&mut self, block: &[u8]) -> io::Result<Vec<u8>> {
        match self {
            Self::Lz4 => lz4::block::compress(block, None, false),
            Self::Zstd(zstd) => zstd.compress(block),
        }
    }
}

thread_local! {
    /// Zstandard's memory of some 100 KiB, made once for each thread that decompresses: to make it takes longer than
    /// to decompress a block.
    static ZSTD: RefCell<Option<zstd::bulk::Decompressor<'static>>> = const { RefCell::new(None) };
}

fn decompress_zstd(block: &[u8], buffer: &mut [u8]) -> io::Result<usize> {
    ZSTD.with_borrow_mut(|kept| {
        let zstd = match kept {
            Some(zstd) => zstd,
            None => kept.insert(zstd::bulk::Decompressor::new()?),
        };
        zstd.decompress_to_buffer(block, buffer)
    })
}

/// Decompresses a block to exactly the buffer's length.
pub(super) fn decompress(codec: Codec, block: &[u8], buffer: &mut [u8]) -> io::Result<()> {
    let len = match codec {
        Codec::Lz4 => {
            let len = i32::try_from(buffer.len()).map_err(io::Error::other)?;
            lz4::block::decompress_to_buffer(block, Some(len), buffer)?
        }
        Codec::Zstd => decompress_zstd(block, buffer)?,
    };
    match len == buffer.len() {
        true => Ok(()),
        false => Err(io::ErrorKind::InvalidData.into()),
    }
}
