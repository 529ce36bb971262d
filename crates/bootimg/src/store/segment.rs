//! Segments: blocks that images share, with a table of their hashes.

use std::io;
use std::path::Path;

use blocks::ContentId;

use crate::backing::Backing;
use crate::data::segment_offset;
use crate::durable::{Steps, TempFile};
use crate::header::{sealed_page, unsealed};
use crate::layout::{HASH, Input, PAGE, PAGE_BYTES, hash, len64};
use crate::reader::{ReadError, open_regular};
use crate::store::places::Places;
use crate::{FormatError, WriteError};

const MAGIC: [u8; 8] = *b"\x89YOLOSG\n";
const VERSION: u32 = 1;
/// More than an image's data space can have is no segment.
const BLOCKS_MAX: u64 = 1 << 32;
/// What is collected before it is written.
const BUFFER: usize = 1 << 20;

/// An open segment.
#[derive(Debug)]
pub(super) struct Segment {
    file: Backing,
    blocks: u64,
    table_hash: [u8; HASH],
}

impl Segment {
    pub(super) fn open(path: &Path) -> Result<Self, ReadError> {
        let file = Backing::file(open_regular(path)?);
        let len = file.len()?;
        if len < PAGE_BYTES {
            return Err(FormatError::TooShort { len }.into());
        }
        let mut page = [0; PAGE];
        file.read(0, &mut page)?;
        let mut input = Input::new("segment", &page);
        if input.array()? != MAGIC {
            return Err(FormatError::Magic.into());
        }
        let mut input = Input::new("segment", &unsealed(&page, "segment")?[8..]);
        let found = input.u32()?;
        if found != VERSION {
            return Err(FormatError::Version { found }.into());
        }
        if input.u32()? != 0 {
            return Err(input.broken("a reserved field is in use").into());
        }
        let blocks = input.u64()?;
        let table_hash = input.array()?;
        input.zeros()?;
        if blocks_of_file(len) != Some(blocks) {
            return Err(input.broken("its length is wrong").into());
        }
        Ok(Self {
            file,
            blocks,
            table_hash,
        })
    }

    /// Returns the number of blocks.
    pub(super) const fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Returns the file, for callers that verify blocks themselves.
    pub(super) fn into_backing(self) -> Backing {
        self.file
    }

    /// Returns the hashes of the blocks.
    pub(super) fn table(&self) -> Result<Vec<[u8; HASH]>, ReadError> {
        let bytes = self
            .file
            .read_vec(segment_offset(self.blocks), self.blocks * len64(HASH))?;
        if hash(&bytes) != self.table_hash {
            return Err(FormatError::Hash { what: "segment" }.into());
        }
        let (table, _) = bytes.as_chunks::<HASH>();
        Ok(table.to_vec())
    }

    /// Reads a block, and returns whether it is the one that has this hash.
    pub(super) fn read(
        &self,
        block: u64,
        want: &[u8; HASH],
        out: &mut [u8; PAGE],
    ) -> io::Result<bool> {
        self.file.read(segment_offset(block), out)?;
        Ok(hash(out) == *want)
    }
}

/// Returns how many blocks a segment has whose file has this length; `None` if none has.
pub(super) fn blocks_of_file(len: u64) -> Option<u64> {
    let each = PAGE_BYTES + len64(HASH);
    let rest = len.checked_sub(PAGE_BYTES)?;
    let blocks = rest / each;
    (rest % each == 0 && blocks <= BLOCKS_MAX).then_some(blocks)
}

/// Returns the id of the segment that has blocks with these hashes.
pub(super) fn id(hashes: &[[u8; HASH]]) -> ContentId {
    ContentId::of(hashes.as_flattened())
}

/// A segment that is being written: its blocks have to come in the order of the hashes.
#[derive(Debug)]
pub(super) struct SegmentWriter<'a> {
    places: &'a Places,
    hashes: Vec<[u8; HASH]>,
    temp: TempFile<'a>,
    buffer: Vec<u8>,
}

impl<'a> SegmentWriter<'a> {
    pub(super) fn create(
        places: &'a Places,
        hashes: Vec<[u8; HASH]>,
        steps: &'a Steps,
    ) -> Result<Self, WriteError> {
        let path = places.segment(&id(&hashes));
        let temp = TempFile::create(&path, Some(&places.tmp()), steps)
            .map_err(|error| WriteError::io(path, "creating a temporary file", error))?;
        let mut header = Vec::with_capacity(56);
        header.extend_from_slice(&MAGIC);
        header.extend_from_slice(&VERSION.to_le_bytes());
        header.extend_from_slice(&0u32.to_le_bytes());
        header.extend_from_slice(&len64(hashes.len()).to_le_bytes());
        header.extend_from_slice(&id(&hashes).0);
        Ok(Self {
            places,
            hashes,
            temp,
            buffer: sealed_page(&header).to_vec(),
        })
    }

    /// Appends blocks.
    pub(super) fn put(&mut self, blocks: &[u8]) -> Result<(), WriteError> {
        self.buffer.extend_from_slice(blocks);
        if self.buffer.len() >= BUFFER {
            self.flush().map_err(self.failed("writing"))?;
        }
        Ok(())
    }

    /// Makes the segment durable.
    pub(super) fn finish(mut self) -> Result<ContentId, WriteError> {
        let id = id(&self.hashes);
        let path = self.places.segment(&id);
        self.buffer.extend_from_slice(self.hashes.as_flattened());
        self.flush().map_err(self.failed("writing"))?;
        self.temp
            .keep(&path)
            .map_err(|error| WriteError::io(path, "making it durable", error))?;
        Ok(id)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.temp.write(&self.buffer)?;
        self.buffer.clear();
        Ok(())
    }

    fn failed(&self, doing: &'static str) -> impl FnOnce(io::Error) -> WriteError + use<> {
        let path = self.places.segment(&id(&self.hashes));
        move |error| WriteError::io(path, doing, error)
    }
}
