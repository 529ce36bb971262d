//! The data space: the blocks of an image, independent of its variant.
//!
//! Nothing here is verified: callers that know the extents do that.

use std::io;

use parking_lot::Mutex;

use crate::FormatError;
use crate::backing::Backing;
use crate::header::{Header, SectionKind};
use crate::layout::{HASH, Input, PAGE, PAGE_BYTES, len_usize, len64};
use crate::squeeze;

/// Blocks in a frame of the packed variant: 128 KiB compress nearly as well as more, and are
/// the most that has to be unpacked for one block.
pub(crate) const FRAME_BLOCKS: u64 = 32;

/// A run of the data space in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// First block in the data space.
    pub(crate) place: u64,
    pub(crate) blocks: u64,
    /// Index in the image's list of segments.
    pub(crate) segment: usize,
    /// First block in the segment.
    pub(crate) at: u64,
}

/// The data space of an open image.
#[derive(Debug)]
pub(crate) enum DataSpace {
    Mapped {
        file: Backing,
    },
    Packed {
        file: Backing,
        /// Offset in the file of every frame, and of the end of the last.
        frames: Vec<u64>,
        blocks: u64,
        /// The frame that was unpacked last: neighbouring extents share frames.
        last: Mutex<(usize, Vec<u8>)>,
    },
    Thin {
        /// Segments and where their blocks begin.
        segments: Vec<Backing>,
        runs: Vec<Run>,
    },
}

/// A way of reading a file.
type ReadFile = fn(&Backing, u64, &mut [u8]) -> io::Result<()>;

impl DataSpace {
    /// Fills `out`, whole blocks, from block `place` on. All of it is in the data space.
    pub(crate) fn read(&self, place: u64, out: &mut [u8]) -> io::Result<()> {
        self.read_as(place, out, Backing::read)
    }

    /// Fills `out` like [`read`](Self::read), for a caller that stores the bytes elsewhere.
    pub(crate) fn read_once(&self, place: u64, out: &mut [u8]) -> io::Result<()> {
        self.read_as(place, out, Backing::read_once)
    }

    fn read_as(&self, place: u64, out: &mut [u8], read: ReadFile) -> io::Result<()> {
        match self {
            Self::Mapped { file } => read(file, PAGE_BYTES + place * PAGE_BYTES, out),
            Self::Packed { .. } => self.read_packed(place, out, read),
            Self::Thin { segments, runs } => read_thin(segments, runs, place, out, read),
        }
    }

    /// Returns the files that the blocks lie in.
    pub(crate) fn files(&self) -> &[Backing] {
        match self {
            Self::Mapped { file } | Self::Packed { file, .. } => std::slice::from_ref(file),
            Self::Thin { segments, .. } => segments,
        }
    }

    /// Advises the kernel that all of it will be read, in the order of places.
    pub(crate) fn advise_all(&self) {
        match self {
            Self::Mapped { file } | Self::Packed { file, .. } => file.advise_sequential(),
            Self::Thin { segments, runs } => advise_thin(segments, runs),
        }
    }

    fn read_packed(&self, place: u64, out: &mut [u8], read: ReadFile) -> io::Result<()> {
        let mut place = place;
        let mut out = out;
        while !out.is_empty() {
            let skip = len_usize(place % FRAME_BLOCKS) * PAGE;
            let len = out.len().min(len_usize(FRAME_BLOCKS) * PAGE - skip);
            let (head, rest) = out.split_at_mut(len);
            self.with_frame(len_usize(place / FRAME_BLOCKS), read, |frame| {
                let here = frame
                    .get(skip..skip + len)
                    .ok_or(io::ErrorKind::InvalidData)?;
                head.copy_from_slice(here);
                Ok(())
            })?;
            place += len64(len / PAGE);
            out = rest;
        }
        Ok(())
    }

    fn with_frame(
        &self,
        frame: usize,
        read: ReadFile,
        take: impl FnOnce(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let Self::Packed {
            file,
            frames,
            blocks,
            last,
        } = self
        else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        {
            let last = last.lock();
            if last.0 == frame && !last.1.is_empty() {
                return take(&last.1);
            }
        }
        let (Some(start), Some(end)) = (frames.get(frame), frames.get(frame + 1)) else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        let first = len64(frame) * FRAME_BLOCKS;
        let blocks = (blocks - first.min(*blocks)).min(FRAME_BLOCKS);
        let mut packed = vec![0; len_usize(end - start)];
        read(file, *start, &mut packed)?;
        let data = squeeze::unpack(&packed, len_usize(blocks) * PAGE)?;
        take(&data)?;
        *last.lock() = (frame, data);
        Ok(())
    }
}

fn read_thin(
    segments: &[Backing],
    runs: &[Run],
    place: u64,
    out: &mut [u8],
    read: ReadFile,
) -> io::Result<()> {
    let mut place = place;
    let mut out = out;
    let mut index = runs.partition_point(|run| run.place + run.blocks <= place);
    while !out.is_empty() {
        let run = runs.get(index).ok_or(io::ErrorKind::UnexpectedEof)?;
        let segment = segments
            .get(run.segment)
            .ok_or(io::ErrorKind::InvalidData)?;
        let skip = place - run.place;
        let len = out.len().min(len_usize(run.blocks - skip) * PAGE);
        let (head, rest) = out.split_at_mut(len);
        read(segment, segment_offset(run.at + skip), head)?;
        place += len64(len / PAGE);
        out = rest;
        index += 1;
    }
    Ok(())
}

/// Returns the offset of a block of a segment in its file: behind the header.
pub(crate) const fn segment_offset(block: u64) -> u64 {
    PAGE_BYTES + block * PAGE_BYTES
}

/// Runs are told to the kernel in the order in which they lie on the disk, with what lies
/// between near ones: on a slow disk a seek costs more than 512 KiB of reading (facts/boot.md).
fn advise_thin(segments: &[Backing], runs: &[Run]) {
    const GAP_BLOCKS: u64 = 128;
    let mut by_disk: Vec<_> = runs
        .iter()
        .map(|r| (r.segment, r.at, r.at + r.blocks))
        .collect();
    by_disk.sort_unstable();
    let mut joined: Vec<(usize, u64, u64)> = Vec::new();
    for (segment, start, end) in by_disk {
        match joined.last_mut() {
            Some(last) if last.0 == segment && start <= last.2 + GAP_BLOCKS => {
                last.2 = last.2.max(end);
            }
            _ => joined.push((segment, start, end)),
        }
    }
    for (segment, start, end) in joined {
        if let Some(file) = segments.get(segment) {
            file.advise_soon(segment_offset(start), (end - start) * PAGE_BYTES);
        }
    }
}

/// FRAMES: returns where each frame starts, and where the last ends.
pub(crate) fn parse_frames(bytes: &[u8], header: &Header) -> Result<Vec<u64>, FormatError> {
    let mut input = Input::new("table of frames", bytes);
    let records = input.records::<4>(bytes.len() / 4)?;
    input.end()?;
    if len64(records.len()) != header.data_blocks.div_ceil(FRAME_BLOCKS) {
        return Err(input.broken("the number of frames is wrong").into());
    }
    let data = header.section(SectionKind::Data);
    let (offset, len) = data.map_or((PAGE_BYTES, 0), |data| (data.offset, data.stored_len));
    let mut frames = Vec::with_capacity(records.len() + 1);
    let mut at = offset;
    frames.push(at);
    for record in records {
        let len = u64::from(u32::from_le_bytes(*record));
        // Twice a frame is more than zstd ever makes of one.
        if len > 2 * FRAME_BLOCKS * PAGE_BYTES {
            return Err(input.broken("a frame is too long").into());
        }
        at += len; // at most 2^26 records of 2^18 bytes
        frames.push(at);
    }
    if at != offset + len {
        return Err(input.broken("the frames are not all of the data").into());
    }
    Ok(frames)
}

/// SEGMENTS: returns the ids of the segments.
pub(crate) fn parse_segments(bytes: &[u8]) -> Result<Vec<[u8; HASH]>, FormatError> {
    let mut input = Input::new("table of segments", bytes);
    let records = input.records::<HASH>(bytes.len() / HASH)?;
    input.end()?;
    Ok(records.to_vec())
}

/// RUNS: returns the runs that make up a data space of `data_blocks`.
pub(crate) fn parse_runs(
    bytes: &[u8],
    segments: usize,
    data_blocks: u64,
) -> Result<Vec<Run>, FormatError> {
    let mut input = Input::new("table of runs", bytes);
    let records = input.records::<16>(bytes.len() / 16)?;
    input.end()?;
    let mut runs = Vec::with_capacity(records.len());
    let mut place = 0u64;
    for record in records {
        let mut row = Input::new("table of runs", record);
        let segment = row.count()?;
        let blocks = u64::from(row.u32()?);
        let at = row.u64()?;
        if segment >= segments || blocks == 0 || at >= 1 << 36 {
            return Err(input.broken("a run has a number out of its range").into());
        }
        runs.push(Run {
            place,
            blocks,
            segment,
            at,
        });
        place += blocks; // at most 2^24 records of 2^32 blocks
    }
    if place != data_blocks {
        return Err(input.broken("the runs are not all of the data").into());
    }
    Ok(runs)
}

pub(crate) fn encode_runs(runs: &[Run]) -> Vec<u8> {
    let mut out = Vec::with_capacity(runs.len() * 16);
    for run in runs {
        let segment = crate::header::count32(run.segment);
        let blocks = u32::try_from(run.blocks).unwrap_or(u32::MAX); // a segment has fewer
        out.extend_from_slice(&segment.to_le_bytes());
        out.extend_from_slice(&blocks.to_le_bytes());
        out.extend_from_slice(&run.at.to_le_bytes());
    }
    out
}
