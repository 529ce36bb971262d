//! Writes a `ZFile`, block after block.

use super::codec::Codec;
use super::header::{HEADER_BYTES, Header, flags};
use super::press::{BATCH_BYTES, Form, Press, Pressed};
use crate::crc;
use crate::error::{Doing, Result, rule};
use crate::num::{size, wide};
use crate::storage::Storage;

/// overlaybd cannot read a stored block, with its checksum, that is longer.
const STORED_BYTES_MAX: usize = 65_536;
/// Compressed bytes that are written at once.
const BUFFER_BYTES: usize = 1 << 18;

/// Where the index is found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ZFileStyle {
    /// In the header, which is written again at the end: what `overlaybd-commit -z` does.
    #[default]
    Header,
    /// In the trailer, so that the file is written in one pass: what `overlaybd-zfile` does.
    Trailer,
}

/// Whether there are checksums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verify {
    /// Of each block, of the index and of the header.
    #[default]
    All,
    /// None at all. Readers accept such files; write them for tests only.
    Nothing,
}

/// How a `ZFile` is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZFileOptions {
    /// How blocks are compressed.
    pub codec: Codec,
    /// Bytes of a block: 4, 8, 16, 32 or 64 KiB. With 64 KiB, data that cannot be compressed is
    /// refused, since overlaybd could not read it.
    pub block_size: u32,
    /// Where the index is found.
    pub style: ZFileStyle,
    /// Whether there are checksums.
    pub verify: Verify,
}

impl Default for ZFileOptions {
    fn default() -> Self {
        Self {
            codec: Codec::Lz4,
            block_size: 4096,
            style: ZFileStyle::Header,
            verify: Verify::All,
        }
    }
}

/// Compresses appended data.
pub struct ZFileWriter<'a> {
    storage: &'a dyn Storage,
    header: Header,
    style: ZFileStyle,
    press: Press,
    /// Bytes that are not compressed yet: blocks, and a part of the next one.
    batch: Vec<u8>,
    /// Compressed bytes that are not written yet, and where they belong.
    compressed: Vec<u8>,
    at: u64,
    index: Vec<u8>,
}

impl std::fmt::Debug for ZFileWriter<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ZFileWriter")
            .field("header", &self.header)
            .finish_non_exhaustive()
    }
}

impl<'a> ZFileWriter<'a> {
    /// Begins a file in empty storage.
    ///
    /// # Errors
    ///
    /// Fails if the size of blocks is not one of the format, and as the storage does.
    pub fn new(storage: &'a dyn Storage, options: ZFileOptions) -> Result<Self> {
        if !options.block_size.is_power_of_two() || !(4096..=65536).contains(&options.block_size) {
            return rule("size of blocks", "it is no power of two from 4 to 64 KiB");
        }
        let mut header = Header {
            flags: flags::HEADER | flags::DATA,
            index_offset: 0,
            index_size: 0,
            original_size: 0,
            index_crc: 0,
            block_size: options.block_size,
            codec: options.codec,
            dict_size: 0,
            verify: options.verify == Verify::All,
        };
        if header.verify {
            header.flags |= flags::DIGEST;
        }
        storage
            .write_at(&header.encode(), 0)
            .doing("write a ZFile's header")?;
        Ok(Self {
            storage,
            header,
            style: options.style,
            press: Press::new(Form {
                codec: options.codec,
                block_size: size(u64::from(options.block_size)),
                checksums: options.verify == Verify::All,
            })
            .doing("start Zstandard")?,
            batch: Vec::with_capacity(BATCH_BYTES),
            compressed: Vec::new(),
            at: HEADER_BYTES as u64,
            index: Vec::new(),
        })
    }

    /// Appends bytes.
    ///
    /// # Errors
    ///
    /// Fails as the storage does.
    pub fn append(&mut self, mut bytes: &[u8]) -> Result<()> {
        self.header.original_size += wide(bytes.len());
        // A batch is a multiple of every size of blocks.
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(BATCH_BYTES - self.batch.len()));
            self.batch.extend_from_slice(now);
            if self.batch.len() == BATCH_BYTES {
                self.press_batch()?;
            }
            bytes = later;
        }
        Ok(())
    }

    fn press_batch(&mut self) -> Result<()> {
        let next = Vec::with_capacity(BATCH_BYTES);
        let batch = std::mem::replace(&mut self.batch, next);
        let doing = "compress blocks";
        self.press.put(batch).doing(doing)?;
        while let Some(pressed) = self.press.take().doing(doing)? {
            self.store(pressed)?;
        }
        Ok(())
    }

    fn store(&mut self, pressed: Pressed) -> Result<()> {
        for len in pressed.lens {
            if len > STORED_BYTES_MAX {
                return rule(
                    "block",
                    "it cannot be compressed, and overlaybd could not read it: use blocks of 32 KiB or less",
                );
            }
            let len = u32::try_from(len).unwrap_or(u32::MAX);
            self.index.extend(len.to_le_bytes());
        }
        self.compressed.extend(pressed.bytes);
        match self.compressed.len() >= BUFFER_BYTES {
            true => self.write_out(),
            false => Ok(()),
        }
    }

    fn write_out(&mut self) -> Result<()> {
        self.storage
            .write_at(&self.compressed, self.at)
            .doing("write a ZFile")?;
        self.at += wide(self.compressed.len());
        self.compressed.clear();
        Ok(())
    }

    /// Writes the last block, index and trailer; returns the length of the file. It is not synced.
    ///
    /// # Errors
    ///
    /// Fails as the storage does.
    pub fn finish(mut self) -> Result<u64> {
        if !self.batch.is_empty() {
            self.press_batch()?;
        }
        while let Some(pressed) = self.press.wait().doing("compress blocks")? {
            self.store(pressed)?;
        }
        self.write_out()?;
        let mut trailer = self.header.clone();
        trailer.flags = trailer.flags & !flags::HEADER | flags::SEALED;
        trailer.index_offset = self.at;
        trailer.index_size = wide(self.index.len()) / 4;
        if trailer.verify {
            trailer.index_crc = crc::raw(0, &self.index);
        }
        self.compressed = std::mem::take(&mut self.index);
        self.compressed.extend(trailer.encode());
        self.write_out()?;
        if self.style == ZFileStyle::Header {
            let mut header = trailer;
            header.flags = self.header.flags | flags::OVERWRITTEN;
            self.storage
                .write_at(&header.encode(), 0)
                .doing("write a ZFile's header")?;
        }
        Ok(self.at)
    }
}
