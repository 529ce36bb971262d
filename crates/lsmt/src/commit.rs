//! Writes sealed layers: commits, merges.

use crate::error::{Doing, LsmtError, Result, at_most, rule};
use crate::header::{DATA_SECTOR, Flags, HEADER_BYTES, Header, SEALED_SEGMENTS_MAX};
use crate::layer::LayerInfo;
use crate::num::{SECTOR, size, wide};
use crate::segment::{Content, SEGMENT_BYTES, SEGMENT_SECTORS_MAX, Segment};
use crate::storage::Storage;
use crate::tar::{TAR_DATA_OFFSET, wrap_tar};
use crate::zfile::{ZFileOptions, ZFileWriter};

/// Sectors that are copied at once: overlaybd's 32 KiB, by which it cuts segments.
const COPY_SECTORS: u64 = 64;
/// Entries that an index is filled up to a multiple of: 4 096 bytes.
const INDEX_UNIT: usize = 256;
/// What segments are tagged with whose data is in a tar.
const TAR_TAG: u8 = 1;
/// Bytes that are written at once.
const BUFFER_BYTES: usize = 1 << 18;

/// Whether a blob is compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// A plain LSMT layer.
    #[default]
    None,
    /// In a [`ZFile`](crate::ZFile).
    ZFile(ZFileOptions),
}

/// Whether a tar is around a blob.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wrapper {
    /// Nothing.
    #[default]
    None,
    /// The tar that registries see.
    Tar,
}

/// How a blob is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlobOptions {
    /// Whether it is compressed.
    pub compression: Compression,
    /// Whether a tar is around it.
    pub wrapper: Wrapper,
}

/// Writes a sealed layer to empty storage: gets `segments` in the order of the device, and the data of
/// each by `read`. Returns the length of the blob, which is not synced.
pub(crate) fn write_blob(
    storage: &dyn Storage,
    options: BlobOptions,
    info: &LayerInfo,
    segments: &[Segment],
    read: ReadSegment<'_>,
) -> Result<u64> {
    write_layer(storage, options, info, |body| {
        let mut buffer = vec![0; size(COPY_SECTORS * SECTOR)];
        let mut rest = segments;
        while let [first, ..] = rest {
            // Segments are as they were written; runs are not, so that the same content makes the same blob.
            let joins = |pair: &&[Segment]| {
                (pair[1].content(), pair[1].tag()) == (first.content(), first.tag())
                    && pair[0].end() == pair[1].offset()
            };
            let (run, behind) = rest.split_at(1 + rest.windows(2).take_while(joins).count());
            rest = behind;
            body.copy(run, &mut buffer, read)?;
        }
        Ok(())
    })
}

/// Reads a part of a segment: receives the segment, how many bytes of it to skip, and the buffer to fill.
pub(crate) type ReadSegment<'a> = &'a mut dyn FnMut(Segment, u64, &mut [u8]) -> Result<()>;

/// Writes a sealed layer to empty storage, in one pass and with the data that `fill` appends. Returns the length
/// of the blob, which is not synced.
///
/// # Errors
///
/// Fails as `fill` and the storage do; if data overlaps other data, is past the end of the device, or has too
/// many segments.
pub fn write_layer<E: From<LsmtError>>(
    storage: &dyn Storage,
    options: BlobOptions,
    info: &LayerInfo,
    fill: impl FnOnce(&mut LayerBody<'_>) -> Result<(), E>,
) -> Result<u64, E> {
    let offset = match options.wrapper {
        Wrapper::None => 0,
        Wrapper::Tar => TAR_DATA_OFFSET,
    };
    let shifted = Shifted {
        storage,
        by: offset,
    };
    let sink = match options.compression {
        Compression::None => Sink::Plain(Plain {
            storage: &shifted,
            buffer: Vec::new(),
            at: 0,
        }),
        Compression::ZFile(options) => Sink::ZFile(Box::new(ZFileWriter::new(&shifted, options)?)),
    };
    let mut body = LayerBody::begin(sink, info)?;
    fill(&mut body)?;
    let len = body.finish()?;
    match options.wrapper {
        Wrapper::None => Ok(len),
        Wrapper::Tar => Ok(wrap_tar(storage, len)?),
    }
}

/// The data of a layer that is being written.
pub struct LayerBody<'a> {
    sink: Sink<'a>,
    entries: Entries,
    /// The sector of the blob where the next data goes.
    at: u64,
    header: Header,
    /// Whether some of its data is in a tar.
    refers: bool,
}

impl std::fmt::Debug for LayerBody<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LayerBody")
            .field("at", &self.at)
            .finish_non_exhaustive()
    }
}

enum Sink<'a> {
    Plain(Plain<'a>),
    ZFile(Box<ZFileWriter<'a>>),
}

impl Sink<'_> {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        match self {
            Self::Plain(plain) => plain.append(bytes),
            Self::ZFile(zfile) => zfile.append(bytes),
        }
    }
}

impl<'a> LayerBody<'a> {
    fn begin(mut sink: Sink<'a>, info: &LayerInfo) -> Result<Self> {
        let mut header = Header::new(Flags::COMMITTED, info.virtual_size, info.uuid, info.parent);
        header.message.clone_from(&info.message);
        sink.append(&header.encode())?;
        Ok(Self {
            sink,
            entries: Entries::default(),
            at: DATA_SECTOR,
            header,
            refers: false,
        })
    }

    /// Appends neighbours of one content.
    fn copy(&mut self, run: &[Segment], buffer: &mut [u8], read: ReadSegment<'_>) -> Result<()> {
        let ([first, ..], [.., last]) = (run, run) else {
            return Ok(());
        };
        let mut at = first.offset();
        if first.content() == Content::Zeros {
            while at < last.end() {
                let len = (last.end() - at).min(SEGMENT_SECTORS_MAX);
                self.push_zeros(at, len, first.tag());
                at += len;
            }
            return Ok(());
        }
        let mut filled = 0;
        for &segment in run {
            let mut done = 0;
            while done < segment.sectors() {
                let len = (segment.sectors() - done).min(COPY_SECTORS - filled);
                let piece = &mut buffer[size(filled * SECTOR)..size((filled + len) * SECTOR)];
                read(segment, done * SECTOR, piece)?;
                (done, filled) = (done + len, filled + len);
                if filled == COPY_SECTORS {
                    self.push(at, buffer, first.tag())?;
                    (at, filled) = (at + filled, 0);
                }
            }
        }
        match filled {
            0 => Ok(()),
            _ => self.push(at, &buffer[..size(filled * SECTOR)], first.tag()),
        }
    }

    /// Appends what the device has from a byte on: whole sectors. They may come in any order, but each
    /// once.
    ///
    /// # Errors
    ///
    /// Fails if they are no whole sectors, and as the storage does.
    pub fn append(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.check(offset, wide(bytes.len()))?;
        for (number, piece) in (0..).zip(bytes.chunks(size(COPY_SECTORS * SECTOR))) {
            self.push(offset / SECTOR + number * COPY_SECTORS, piece, 0)?;
        }
        Ok(())
    }

    /// Says that bytes of the device, whole sectors, are those of the tar from `tar_offset` on, which is a
    /// sector's first byte: the layer is turboOCI metadata, as [`open_turbo_blob`](crate::open_turbo_blob) reads it.
    ///
    /// # Errors
    ///
    /// Fails if they are not whole sectors.
    pub fn refer(&mut self, offset: u64, len: u64, tar_offset: u64) -> Result<()> {
        self.check(offset, len)?;
        self.check(tar_offset, 0)?;
        self.refers = true;
        let mut done = 0;
        while done < len / SECTOR {
            let sectors = (len / SECTOR - done).min(SEGMENT_SECTORS_MAX);
            let (at, from) = (offset / SECTOR + done, tar_offset / SECTOR + done);
            let entry = Segment::new(at, sectors, from, Content::Data);
            self.entries.push(entry.tagged(TAR_TAG));
            done += sectors;
        }
        Ok(())
    }

    /// Marks bytes of the device, whole sectors, as zeros.
    ///
    /// # Errors
    ///
    /// Fails if they are not whole sectors.
    pub fn zeros(&mut self, offset: u64, len: u64) -> Result<()> {
        self.check(offset, len)?;
        let (start, end) = (offset / SECTOR, (offset + len) / SECTOR);
        let mut at = start;
        while at < end {
            let sectors = (end - at).min(SEGMENT_SECTORS_MAX);
            self.push_zeros(at, sectors, 0);
            at += sectors;
        }
        Ok(())
    }

    fn check(&self, offset: u64, len: u64) -> Result<()> {
        let device = match self.header.virtual_size {
            0 => u64::MAX,
            bytes => bytes,
        };
        match offset.checked_add(len) {
            _ if !offset.is_multiple_of(SECTOR) || !len.is_multiple_of(SECTOR) => {
                rule("data of a layer", "it is not made of whole sectors")
            }
            Some(end) if end <= device => Ok(()),
            _ => rule("data of a layer", "it goes past the end of the device"),
        }
    }

    /// Appends at most as many sectors as are copied at once.
    fn push(&mut self, sector: u64, bytes: &[u8], tag: u8) -> Result<()> {
        self.sink.append(bytes)?;
        let len = wide(bytes.len()) / SECTOR;
        let entry = Segment::new(sector, len, self.at, Content::Data);
        self.entries.push(entry.tagged(tag));
        self.at += len;
        Ok(())
    }

    fn push_zeros(&mut self, sector: u64, len: u64, tag: u8) {
        let zeros = Segment::new(sector, len, self.at, Content::Zeros);
        self.entries.push(zeros.tagged(tag));
    }

    fn finish(mut self) -> Result<u64> {
        let mut entries = self.entries.0;
        entries.sort_by_key(|entry| entry.offset());
        if entries
            .iter()
            .zip(entries.iter().skip(1))
            .any(|(one, next)| one.end() > next.offset())
        {
            return rule("data of a layer", "some of it lies over other data");
        }
        let count = match self.refers {
            // As overlaybd writes turboOCI metadata.
            true => entries.len(),
            false => entries.len().next_multiple_of(INDEX_UNIT),
        };
        at_most("number of segments", wide(count), SEALED_SEGMENTS_MAX)?;
        entries.resize(count, Segment::PADDING);
        self.sink.append(&encode(&entries))?;
        let mut trailer = self.header;
        trailer.flags = Flags::TRAILER;
        trailer.index_offset = self.at * SECTOR;
        trailer.index_size = wide(count);
        self.sink.append(&trailer.encode())?;
        match self.sink {
            Sink::Plain(plain) => plain.finish(),
            Sink::ZFile(zfile) => zfile.finish(),
        }
    }
}

/// Encodes entries of an index.
pub(crate) fn encode(entries: &[Segment]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(entries.len() * SEGMENT_BYTES);
    for entry in entries {
        bytes.extend(entry.encode());
    }
    bytes
}

/// Entries of an index, neighbors of which are joined as overlaybd does.
#[derive(Default)]
pub(crate) struct Entries(pub(crate) Vec<Segment>);

impl Entries {
    pub(crate) fn push(&mut self, segment: Segment) {
        match self.0.last_mut() {
            Some(last)
                if last.continued_by(segment)
                    && last.sectors() + segment.sectors() < SEGMENT_SECTORS_MAX =>
            {
                let len = last.sectors() + segment.sectors();
                *last = Segment::new(last.offset(), len, last.moffset(), last.content())
                    .tagged(last.tag());
            }
            _ => self.0.push(segment),
        }
    }
}

/// Seals an open layer in place: appends its index and a trailer to its data, which ends at byte `end`.
/// Returns the length of the file, which is not synced.
pub(crate) fn seal(
    storage: &dyn Storage,
    header: &Header,
    flags: Flags,
    segments: &[Segment],
    end: u64,
) -> Result<u64> {
    at_most(
        "number of segments",
        wide(segments.len()),
        SEALED_SEGMENTS_MAX,
    )?;
    let mut bytes = encode(segments);
    // The trailer begins at a multiple of 4 096 bytes, as AgentENV's, and what lies between is 0xff.
    let trailer = (end + wide(bytes.len())).next_multiple_of(HEADER_BYTES);
    bytes.resize(size(trailer - end), 0xff);
    let mut sealed = header.clone();
    sealed.flags = flags;
    sealed.index_offset = end;
    sealed.index_size = wide(segments.len());
    bytes.extend(sealed.encode());
    storage.write_at(&bytes, end).doing("seal a layer")?;
    Ok(end + wide(bytes.len()))
}

/// Storage behind what is in front of it.
struct Shifted<'a> {
    storage: &'a dyn Storage,
    by: u64,
}

impl crate::storage::ReadAt for Shifted<'_> {
    fn size(&self) -> std::io::Result<u64> {
        Ok(self.storage.size()?.saturating_sub(self.by))
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<()> {
        self.storage.read_at(buffer, offset + self.by)
    }
}

impl Storage for Shifted<'_> {
    fn write_at(&self, bytes: &[u8], offset: u64) -> std::io::Result<()> {
        self.storage.write_at(bytes, offset + self.by)
    }

    fn sync(&self) -> std::io::Result<()> {
        self.storage.sync()
    }

    fn set_size(&self, size: u64) -> std::io::Result<()> {
        self.storage.set_size(size + self.by)
    }

    fn punch(&self, range: std::ops::Range<u64>) -> std::io::Result<()> {
        self.storage
            .punch(range.start + self.by..range.end + self.by)
    }

    fn data_ranges(&self) -> std::io::Result<Vec<std::ops::Range<u64>>> {
        let ranges = self.storage.data_ranges()?;
        let back = |byte: u64| byte.saturating_sub(self.by);
        Ok(ranges
            .into_iter()
            .map(|range| back(range.start)..back(range.end))
            .collect())
    }
}

/// Appends to storage with a buffer.
struct Plain<'a> {
    storage: &'a dyn Storage,
    buffer: Vec<u8>,
    at: u64,
}

impl Plain<'_> {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.buffer.extend_from_slice(bytes);
        match self.buffer.len() >= BUFFER_BYTES {
            true => self.write_out(),
            false => Ok(()),
        }
    }

    fn write_out(&mut self) -> Result<()> {
        self.storage
            .write_at(&self.buffer, self.at)
            .doing("write a layer")?;
        self.at += wide(self.buffer.len());
        self.buffer.clear();
        Ok(())
    }

    fn finish(mut self) -> Result<u64> {
        self.write_out()?;
        Ok(self.at)
    }
}
