//! Reads a `ZFile` at any place.

use std::io;

use super::codec::{Codec, decompress};
use super::header::{HEADER_BYTES, Header, flags};
use super::recent::Recent;
use super::scratch::with_scratch;
use crate::crc;
use crate::error::{Doing, LsmtError, Result, rule};
use crate::num::{size, u32_at, wide};
use crate::storage::{ReadAt, check_range, read_vec};

/// Entries of the index that share a base in memory: their blocks' lengths add up to less than 2^32.
const GROUP: usize = 64;
/// Compressed bytes that one request reads at most, and at least one block.
const REQUEST_BYTES: u64 = 1 << 18;
/// Bytes of the index that are read at once.
const INDEX_PIECE_BYTES: u64 = 1 << 20;
/// Bytes of the checksum behind a block.
const CRC_BYTES: u64 = 4;

/// An open `ZFile`: reads the uncompressed content. A block's checksum is verified whenever the block is decompressed: at
/// every read, but for parts of the last blocks of which only a part was read.
#[derive(Debug)]
pub struct ZFile<R> {
    inner: R,
    header: Header,
    blocks: Blocks,
    recent: Recent,
}

/// Where compressed blocks begin: 4 bytes and a bit for each.
#[derive(Debug)]
struct Blocks {
    bases: Vec<u64>,
    /// From the base of its group to the end of the block.
    ends: Vec<u32>,
}

impl Blocks {
    fn range(&self, block: usize) -> std::ops::Range<u64> {
        let base = self.bases[block / GROUP];
        let start = match block % GROUP {
            0 => 0,
            _ => u64::from(self.ends[block - 1]),
        };
        base + start..base + u64::from(self.ends[block])
    }
}

impl<R: ReadAt> ZFile<R> {
    /// Opens one.
    ///
    /// # Errors
    ///
    /// Fails if it cannot be read, is damaged, or breaks a rule of the format.
    pub fn open(inner: R) -> Result<Self> {
        let bytes = inner.size().doing("get the size of a ZFile")?;
        let least = 2 * HEADER_BYTES as u64;
        if bytes < least {
            return rule("ZFile", "it is shorter than header and trailer");
        }
        let mut header = read_header(&inner, 0)?;
        if header.flags & flags::HEADER == 0 {
            return rule("ZFile header", "its flags do not say that it is one");
        }
        let end = bytes - HEADER_BYTES as u64;
        if header.flags & flags::OVERWRITTEN == 0 {
            header = read_header(&inner, end)?;
            if header.flags & flags::HEADER != 0 || header.flags & flags::SEALED == 0 {
                return rule(
                    "ZFile trailer",
                    "its flags are not those of a complete file",
                );
            }
        }
        header.check_index(end)?;
        let blocks = read_blocks(&inner, &header)?;
        Ok(Self {
            inner,
            header,
            blocks,
            recent: Recent::default(),
        })
    }

    /// Returns how its blocks are compressed.
    pub fn codec(&self) -> Codec {
        self.header.codec
    }

    /// Returns how many bytes a block has, uncompressed.
    pub fn block_size(&self) -> u32 {
        self.header.block_size
    }

    /// Returns the compressed bytes of a range of the uncompressed ones, for fetching on
    /// demand.
    ///
    /// # Errors
    ///
    /// Fails if the range is not within the file.
    pub fn compressed(&self, offset: u64, len: u64) -> Result<std::ops::Range<u64>> {
        check_range(offset, size(len), self.header.original_size)?;
        if len == 0 {
            return Ok(0..0);
        }
        let block = u64::from(self.header.block_size);
        let first = self.blocks.range(size(offset / block));
        let last = self.blocks.range(size((offset + len - 1) / block));
        Ok(first.start..last.end)
    }

    /// Reads uncompressed bytes.
    ///
    /// # Errors
    ///
    /// Fails if they are not within the file, cannot be read, or are damaged.
    pub fn read(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        check_range(offset, buffer.len(), self.header.original_size)?;
        let mut at = offset;
        let mut rest = buffer;
        while !rest.is_empty() {
            let done = match self.read_recent(rest, at) {
                0 => self.read_stored(rest, at)?,
                done => done,
            };
            at += wide(done);
            rest = rest.split_at_mut(done).1;
        }
        Ok(())
    }

    /// Reads a part of a block that was decompressed for another part of it; returns how many bytes.
    fn read_recent(&self, buffer: &mut [u8], at: u64) -> usize {
        let piece = self.piece(at, buffer.len());
        let now = &mut buffer[..piece.len];
        match piece.is_whole() || !self.recent.read(piece.block, piece.skip, now) {
            true => 0,
            false => piece.len,
        }
    }

    /// Reads and decompresses blocks that one request may ask for; returns how many bytes of the buffer are filled.
    fn read_stored(&self, buffer: &mut [u8], at: u64) -> Result<usize> {
        let block_size = u64::from(self.header.block_size);
        let first = size(at / block_size);
        let last = size((at + wide(buffer.len()) - 1) / block_size);
        let start = self.blocks.range(first).start;
        let fits = |block: &usize| self.blocks.range(*block).end - start <= REQUEST_BYTES;
        let last = (first + 1..=last).take_while(fits).last().unwrap_or(first);
        let compressed = size(self.blocks.range(last).end - start);
        with_scratch(compressed, |scratch| {
            self.inner.read_at(scratch, start).doing("read a ZFile")?;
            let mut done = 0;
            for block in first..=last {
                let range = self.blocks.range(block);
                let stored = &scratch[size(range.start - start)..size(range.end - start)];
                let piece = self.piece(at + wide(done), buffer.len() - done);
                let now = &mut buffer[done..done + piece.len];
                self.decompress(stored, range.start, &piece, now)?;
                done += piece.len;
            }
            Ok(done)
        })
    }

    /// Returns what a read of so many bytes has of the first block in it.
    fn piece(&self, at: u64, len: usize) -> Piece {
        let block_size = u64::from(self.header.block_size);
        let block = at / block_size;
        let skip = size(at % block_size);
        let whole = size((self.header.original_size - block * block_size).min(block_size));
        Piece {
            block: size(block),
            skip,
            len: len.min(whole - skip),
            whole,
        }
    }

    /// Verifies and decompresses a piece of one block.
    fn decompress(&self, stored: &[u8], at: u64, piece: &Piece, buffer: &mut [u8]) -> Result<()> {
        let part = "compressed block";
        let mut compressed = stored;
        if self.header.verify {
            let (data, sum) = stored.split_at(stored.len() - size(CRC_BYTES));
            if crc::raw(crc::BLOCK_SEED, data) != u32_at(sum, 0) {
                return Err(LsmtError::Checksum { part, at });
            }
            compressed = data;
        }
        let codec = self.header.codec;
        let damaged = |_| LsmtError::Compression { part, at };
        if piece.is_whole() {
            return decompress(codec, compressed, buffer).map_err(damaged);
        }
        let mut block = vec![0; piece.whole];
        decompress(codec, compressed, &mut block).map_err(damaged)?;
        buffer.copy_from_slice(&block[piece.skip..piece.skip + piece.len]);
        self.recent.keep(piece.block, block);
        Ok(())
    }
}

/// What a read has of one block.
struct Piece {
    block: usize,
    /// Bytes of the block before it.
    skip: usize,
    len: usize,
    /// Bytes of the block.
    whole: usize,
}

impl Piece {
    fn is_whole(&self) -> bool {
        self.len == self.whole
    }
}

impl<R: ReadAt> ReadAt for ZFile<R> {
    fn size(&self) -> io::Result<u64> {
        Ok(self.header.original_size)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        Ok(self.read(buffer, offset)?)
    }
}

fn read_header(inner: &impl ReadAt, at: u64) -> Result<Header> {
    let mut bytes = [0; HEADER_BYTES];
    inner
        .read_at(&mut bytes, at)
        .doing("read a ZFile's header")?;
    Header::decode(&bytes, at)
}

/// Reads the index piece by piece, adds the lengths of blocks up, and checks that they end where the index begins, at
/// most. Memory is taken for lengths that are possible: a file may claim to have a billion blocks, and be a hole.
fn read_blocks(inner: &impl ReadAt, header: &Header) -> Result<Blocks> {
    let least = match header.verify {
        true => CRC_BYTES + 1,
        false => 1,
    };
    // What LZ4 and Zstandard make of data that cannot be compressed, with room to spare.
    let most = u64::from(header.block_size) * 2;
    let mut blocks = Blocks {
        bases: Vec::new(),
        ends: Vec::new(),
    };
    let (mut at, mut base, mut sum) = (HEADER_BYTES as u64, 0, 0);
    let (mut place, end) = (
        header.index_offset,
        header.index_offset + header.index_size * 4,
    );
    while place < end {
        let len = (end - place).min(INDEX_PIECE_BYTES);
        let piece = read_vec(inner, place, len, "read a ZFile's index")?;
        sum = crc::raw(sum, &piece);
        for entry in piece.chunks_exact(4) {
            if blocks.ends.len().is_multiple_of(GROUP) {
                base = at;
                blocks.bases.push(base);
            }
            let len = u64::from(u32_at(entry, 0));
            if !(least..=most).contains(&len) {
                return rule("ZFile index", "the length of a block is impossible");
            }
            at += len;
            let end = u32::try_from(at - base).unwrap_or(u32::MAX);
            blocks.ends.push(end);
        }
        place += len;
    }
    if header.flags & flags::DIGEST != 0 && sum != header.index_crc {
        let (part, at) = ("ZFile index", header.index_offset);
        return Err(LsmtError::Checksum { part, at });
    }
    match at <= header.index_offset {
        true => Ok(blocks),
        false => rule("ZFile index", "the blocks go past their end"),
    }
}
