//! Putting a file together: DATA as it comes, the other sections, the footer, and the header at
//! the very end.

use std::path::{Path, PathBuf};

use crate::data::FRAME_BLOCKS;
use crate::durable::{Steps, TempFile};
use crate::header::{Coding, Footer, Header, Section, SectionKind, Variant};
use crate::layout::{HASH, PAGE, PAGE_BYTES, hash, len_usize, len64};
use crate::{ImageId, WriteError, squeeze};

/// What is collected before it is written: large enough that a slow disk writes in one go.
const BUFFER: usize = 1 << 20;

/// A file that is being put together.
#[derive(Debug)]
pub(crate) struct Assembler<'a> {
    path: PathBuf,
    temp: TempFile<'a>,
    variant: Variant,
    buffer: Vec<u8>,
    at: u64,
    data_blocks: u64,
    data_hash: blake3::Hasher,
    /// Packed: the frame that is not full yet, and the lengths of those before it.
    frame: Vec<u8>,
    frames: Vec<u8>,
    sections: Vec<Section>,
    hashes: Vec<[u8; HASH]>,
}

impl<'a> Assembler<'a> {
    /// Starts a file that will be called `path`; `temp_dir` is where it lies until then, by
    /// default beside it.
    pub(crate) fn create(
        path: &Path,
        temp_dir: Option<&Path>,
        variant: Variant,
        steps: &'a Steps,
    ) -> Result<Self, WriteError> {
        let temp = TempFile::create(path, temp_dir, steps)
            .map_err(|error| WriteError::io(path, "creating a temporary file", error))?;
        Ok(Self {
            path: path.to_owned(),
            temp,
            variant,
            // The header is not known before the end.
            buffer: vec![0; PAGE],
            at: PAGE_BYTES,
            data_blocks: 0,
            data_hash: blake3::Hasher::new(),
            frame: Vec::new(),
            frames: Vec::new(),
            sections: Vec::new(),
            hashes: Vec::new(),
        })
    }

    /// Appends blocks to the data space.
    pub(crate) fn data(&mut self, blocks: &[u8]) -> Result<(), WriteError> {
        self.data_blocks += len64(blocks.len()) / PAGE_BYTES;
        match self.variant {
            Variant::Packed => self.data_packed(blocks),
            Variant::Mapped | Variant::Thin => self.data_bytes(blocks),
        }
    }

    /// Says that the data space is complete, and returns how many blocks it has.
    pub(crate) fn end_data(&mut self) -> Result<u64, WriteError> {
        if !self.frame.is_empty() {
            self.end_frame()?;
        }
        let len = self.at - PAGE_BYTES;
        if len > 0 {
            self.sections.push(Section {
                kind: SectionKind::Data,
                coding: Coding::Plain,
                offset: PAGE_BYTES,
                stored_len: len,
                decoded_len: len,
            });
            self.hashes.push(*self.data_hash.finalize().as_bytes());
        }
        if self.variant == Variant::Packed {
            let frames = std::mem::take(&mut self.frames);
            self.section(SectionKind::Frames, &frames)?;
        }
        Ok(self.data_blocks)
    }

    /// Says that the data space lies elsewhere.
    pub(crate) fn data_elsewhere(&mut self, data_blocks: u64) {
        self.data_blocks = data_blocks;
    }

    /// Adds a section as it is.
    pub(crate) fn section(&mut self, kind: SectionKind, bytes: &[u8]) -> Result<(), WriteError> {
        self.stored(kind, Coding::Plain, bytes, len64(bytes.len()))
    }

    /// Adds a section compressed.
    pub(crate) fn pack(&mut self, kind: SectionKind, bytes: Vec<u8>) -> Result<(), WriteError> {
        let decoded_len = len64(bytes.len());
        let (stored, coding) = squeeze::pack_section(bytes);
        self.stored(kind, coding, &stored, decoded_len)
    }

    /// Adds a section that is coded already.
    pub(crate) fn stored(
        &mut self,
        kind: SectionKind,
        coding: Coding,
        stored: &[u8],
        decoded_len: u64,
    ) -> Result<(), WriteError> {
        self.align(8)?;
        let section = Section {
            kind,
            coding,
            offset: self.at,
            stored_len: len64(stored.len()),
            decoded_len,
        };
        section.check()?;
        self.put(stored)?;
        self.sections.push(section);
        self.hashes.push(hash(stored));
        Ok(())
    }

    /// Writes footer and header, and makes the file durable under its name.
    pub(crate) fn finish(self, path: &Path) -> Result<ImageId, WriteError> {
        self.finish_as(|_| path.to_owned())
    }

    /// Does the same, under a name that depends on what was written.
    pub(crate) fn finish_as(
        mut self,
        path: impl FnOnce(&ImageId) -> PathBuf,
    ) -> Result<ImageId, WriteError> {
        self.align(PAGE_BYTES)?;
        let header = Header {
            variant: self.variant,
            compat: 0,
            file_len: self.at + PAGE_BYTES,
            data_blocks: self.data_blocks,
            sections: std::mem::take(&mut self.sections),
        };
        let footer = Footer {
            hashes: std::mem::take(&mut self.hashes),
        };
        let page = header.encode();
        // What cannot be read back must not be written.
        Header::parse(&page, header.file_len)?;
        self.put(&footer.encode(&page))?;
        self.flush()?;
        let id = ImageId::of(&header, &footer);
        let path = &path(&id);
        let failed = |doing| move |error| WriteError::io(path, doing, error);
        self.temp
            .write_at(&page, 0)
            .map_err(failed("writing the header"))?;
        self.temp.keep(path).map_err(failed("making it durable"))?;
        Ok(id)
    }

    fn data_packed(&mut self, blocks: &[u8]) -> Result<(), WriteError> {
        let full = len_usize(FRAME_BLOCKS) * PAGE;
        let mut rest = blocks;
        while !rest.is_empty() {
            let len = rest.len().min(full - self.frame.len());
            let (head, tail) = rest.split_at(len);
            self.frame.extend_from_slice(head);
            rest = tail;
            if self.frame.len() == full {
                self.end_frame()?;
            }
        }
        Ok(())
    }

    fn end_frame(&mut self) -> Result<(), WriteError> {
        let packed = squeeze::pack_frame(&self.frame)
            .map_err(|error| WriteError::io(&self.path, "compressing", error))?;
        let len = u32::try_from(packed.len()).unwrap_or(u32::MAX); // of 128 KiB
        self.frames.extend_from_slice(&len.to_le_bytes());
        self.frame.clear();
        self.data_bytes(&packed)
    }

    fn data_bytes(&mut self, bytes: &[u8]) -> Result<(), WriteError> {
        self.data_hash.update(bytes);
        self.put(bytes)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), WriteError> {
        self.buffer.extend_from_slice(bytes);
        self.at += len64(bytes.len());
        if self.buffer.len() >= BUFFER {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), WriteError> {
        self.temp
            .write(&self.buffer)
            .map_err(|error| WriteError::io(&self.path, "writing", error))?;
        self.buffer.clear();
        Ok(())
    }

    fn align(&mut self, to: u64) -> Result<(), WriteError> {
        let gap = self.at.next_multiple_of(to) - self.at;
        self.put(&[0; PAGE][..len_usize(gap)])
    }
}
