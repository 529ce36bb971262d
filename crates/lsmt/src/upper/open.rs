//! Makes and opens writable layers.

use std::sync::atomic::{AtomicBool, AtomicU64};

use parking_lot::{Mutex, RwLock};

use super::journal::{self, Found, Journal};
use super::{Map, NewUpper, State, Upper, UpperFiles, UpperKind};
use crate::error::{Doing, Result, at_most, rule};
use crate::header::{
    DATA_SECTOR, DEVICE_BYTES_MAX, Flags, HEADER_BYTES, Header, OPEN_SEGMENTS_MAX,
};
use crate::num::{SECTOR, size, wide};
use crate::segment::{Content, SEGMENT_BYTES, SEGMENT_SECTORS_MAX, Segment};
use crate::storage::read_vec;
use crate::uuid::Uuid;

/// Entries of an index that are read at once.
const READ_ENTRIES: u64 = 1 << 16;

pub(super) fn data_flags(kind: UpperKind) -> Flags {
    match kind {
        UpperKind::Append => Flags::OPEN_DATA,
        UpperKind::Sparse => Flags::OPEN_DATA.sparse(),
        UpperKind::Hybrid => Flags::OPEN_DATA.hybrid(),
    }
}

pub(super) fn index_header(kind: UpperKind, size: u64, uuid: Uuid, parent: Uuid) -> Header {
    let flags = match kind {
        UpperKind::Hybrid => Flags::OPEN_INDEX.hybrid(),
        _ => Flags::OPEN_INDEX,
    };
    let mut header = Header::new(flags, size, uuid, parent);
    header.index_offset = HEADER_BYTES;
    header
}

pub(super) fn check_size(virtual_size: u64) -> Result<()> {
    at_most(
        "size of the device in bytes",
        virtual_size,
        DEVICE_BYTES_MAX,
    )?;
    match virtual_size.is_multiple_of(SECTOR) {
        true => Ok(()),
        false => rule("size of the device", "it is no multiple of 512"),
    }
}

impl Upper {
    /// Makes an empty layer in empty storage, and syncs it.
    ///
    /// # Errors
    ///
    /// Fails if the size of the device is invalid, and as the storage does.
    pub fn create(files: UpperFiles, new: &NewUpper) -> Result<Self> {
        check_size(new.virtual_size)?;
        let header = Header::new(data_flags(new.kind), new.virtual_size, new.uuid, new.parent);
        files
            .data
            .write_at(&header.encode(), 0)
            .doing("write a layer's header")?;
        if new.kind == UpperKind::Sparse {
            let end = HEADER_BYTES + new.virtual_size;
            files.data.set_size(end).doing("extend the data")?;
        }
        files.data.sync().doing("sync the data")?;
        let index = index_header(new.kind, new.virtual_size, new.uuid, new.parent);
        files
            .index
            .write_at(&index.encode(), 0)
            .doing("write a layer's header")?;
        files.index.sync().doing("sync the index")?;
        Self::open(files)
    }

    /// Opens a layer, of overlaybd or of ours, and replays its journal.
    ///
    /// A sparse layer of overlaybd comes with an empty file for the index, which is filled with the
    /// data ranges of the layer.
    ///
    /// # Errors
    ///
    /// Fails if the files cannot be read, or break a rule of the format.
    pub fn open(files: UpperFiles) -> Result<Self> {
        let header = read_vec(&*files.data, 0, HEADER_BYTES, "read a layer's header")?;
        let header = Header::decode(&header)?;
        let flags = header.flags;
        if !flags.is_header() || !flags.is_data() || flags.is_sealed() {
            return rule(
                "writable layer",
                "the flags of its header are not those of open data",
            );
        }
        let kind = match (flags.is_sparse(), flags.is_hybrid()) {
            (false, false) => UpperKind::Append,
            (true, false) => UpperKind::Sparse,
            (false, true) => UpperKind::Hybrid,
            (true, true) => return rule("writable layer", "it is both sparse and hybrid"),
        };
        let data_bytes = files.data.size().doing("get the size of the data")?;
        let data_end = match kind {
            // What lies behind the device is left from sealing it in place.
            UpperKind::Sparse => DATA_SECTOR + header.virtual_size.div_ceil(SECTOR),
            _ => data_bytes.div_ceil(SECTOR).max(DATA_SECTOR),
        };
        let index_bytes = files.index.size().doing("get the size of the index")?;
        let mut map = Map::default();
        let index_entries = match (kind, index_bytes) {
            (UpperKind::Sparse, 0) => found_by_holes(&files, &header, &mut map)?,
            _ => read_index(&files, &header, kind, index_bytes, data_end, &mut map)?,
        };
        let upper = Self {
            kind,
            uuid: header.uuid,
            parent: header.parent,
            virtual_size: AtomicU64::new(header.virtual_size),
            state: RwLock::new(State {
                map,
                data_end,
                flushed_end: data_end,
                index_entries,
                pending: Vec::new(),
                unflushed: Default::default(),
                journal: Journal::new(header.uuid, index_entries),
                given_back: 0,
                // What an earlier process wrote in place may not be durable yet: the first flush sees to it.
                writes: 1,
                flushed_writes: 0,
            }),
            files,
            gate: RwLock::default(),
            flushing: Mutex::default(),
            poisoned: AtomicBool::new(false),
            frozen: AtomicBool::new(false),
            retired: AtomicBool::new(false),
            limit: AtomicU64::new(u64::MAX),
        };
        upper.replay()?;
        Ok(upper)
    }

    /// Does what the journal says, and flushes it.
    fn replay(&self) -> Result<()> {
        let Some(journal) = &self.files.journal else {
            return Ok(());
        };
        let entries = self.state.read().index_entries;
        let (notes, next) = journal::replay(&**journal, self.uuid, entries)?;
        if notes.is_empty() {
            return Ok(());
        }
        let valid = self.valid(&notes);
        let mut state = self.state.write();
        for segment in valid {
            state.map.insert(segment);
            state.pending.push(segment);
        }
        while state.index_entries + wide(state.pending.len()) < next {
            state.pending.push(Segment::PADDING);
        }
        state.writes += 1;
        drop(state);
        self.flush()
    }

    /// Returns the parts of notes that are to be done: of each sector the latest one that is zeros, or
    /// whose data is there.
    fn valid(&self, notes: &[Found]) -> Vec<Segment> {
        let mut map = Map::default();
        let end = self.virtual_size() / SECTOR;
        let data_end = self.state.read().data_end;
        for note in notes {
            let segment = note.segment;
            if segment.end() > end || segment.mend() > data_end {
                continue;
            }
            if segment.content() == Content::Zeros {
                map.insert(segment);
                continue;
            }
            let mut sector = vec![0; size(SECTOR)];
            for (number, &sum) in (0..).zip(&note.sums) {
                let at = (segment.moffset() + number) * SECTOR;
                let there = self.files.data.read_at(&mut sector, at).is_ok();
                if there && journal::sum(&sector) == sum {
                    let one = segment.offset() + number;
                    map.insert(segment.clipped(one, one + 1));
                }
            }
        }
        map.segments()
    }
}

/// Reads the index, in the order in which it was written.
fn read_index(
    files: &UpperFiles,
    data: &Header,
    kind: UpperKind,
    index_bytes: u64,
    data_end: u64,
    map: &mut Map,
) -> Result<u64> {
    let header = read_vec(&*files.index, 0, HEADER_BYTES, "read a layer's index")?;
    let header = Header::decode(&header)?;
    if !header.flags.is_header() || header.flags.is_data() || header.index_offset != HEADER_BYTES {
        return rule("index of a writable layer", "its header is not that of one");
    }
    if header.uuid != data.uuid {
        return rule("index of a writable layer", "it is that of another layer");
    }
    if header.virtual_size != data.virtual_size {
        // A resize came as far as the other file.
        let header = index_header(kind, data.virtual_size, data.uuid, data.parent);
        files
            .index
            .write_at(&header.encode(), 0)
            .doing("write a layer's header")?;
    }
    let entries = (index_bytes - HEADER_BYTES) / SEGMENT_BYTES as u64;
    at_most("number of segments", entries, OPEN_SEGMENTS_MAX)?;
    let device_end = data.virtual_size.div_ceil(SECTOR);
    let mut done = 0;
    while done < entries {
        let count = (entries - done).min(READ_ENTRIES);
        let at = HEADER_BYTES + done * SEGMENT_BYTES as u64;
        let bytes = read_vec(
            &*files.index,
            at,
            count * SEGMENT_BYTES as u64,
            "read a layer's index",
        )?;
        for entry in bytes.chunks_exact(SEGMENT_BYTES).map(Segment::decode) {
            if entry.is_padding() {
                continue;
            }
            if entry.end() > device_end {
                return rule("index of a writable layer", "a segment is past the device");
            }
            let is_data = entry.content() == Content::Data;
            if is_data && (entry.moffset() < DATA_SECTOR || entry.mend() > data_end) {
                return rule(
                    "index of a writable layer",
                    "a segment is not within the data",
                );
            }
            map.insert(entry.tagged(0));
        }
        done += count;
    }
    Ok(entries)
}

/// Makes the index of a sparse layer that has none: what is no hole is data.
fn found_by_holes(files: &UpperFiles, data: &Header, map: &mut Map) -> Result<u64> {
    let end = HEADER_BYTES + data.virtual_size;
    for range in files.data.data_ranges().doing("look for holes")? {
        let (start, end) = (range.start.max(HEADER_BYTES), range.end.min(end));
        let mut at = start / SECTOR;
        while at < end.div_ceil(SECTOR) {
            let len = (end.div_ceil(SECTOR) - at).min(SEGMENT_SECTORS_MAX);
            map.insert(Segment::new(at - DATA_SECTOR, len, at, Content::Data));
            at += len;
        }
    }
    let mut bytes =
        index_header(UpperKind::Sparse, data.virtual_size, data.uuid, data.parent).encode();
    let segments = map.segments();
    bytes.extend(crate::commit::encode(&segments));
    files.index.write_at(&bytes, 0).doing("write the index")?;
    files.index.sync().doing("sync the index")?;
    Ok(wide(segments.len()))
}
