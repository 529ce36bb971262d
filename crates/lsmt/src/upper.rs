//! The writable layer.
//!
//! Its pair of files is overlaybd's: data, and an index in the order of the writes. Between two
//! flushes the index is not written, and a flush makes the data durable first, so that the pair on the
//! disk is always the state of some flush, whatever was lost. So that a killed process loses no confirmed
//! write, each write is recorded in a third file of our own, the journal, with
//! a checksum of each sector; the journal is read when the layer is opened. See
//! `docs/block-image-format.md`.
//!
//! A sparse layer has its data at the place it has on the device. overlaybd stores no index of it, and
//! loses trims; ours is the second file.

mod journal;
mod limit;
mod map;
mod open;
mod write;

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

use parking_lot::{Mutex, RwLock};

pub(crate) use map::Map;

use crate::commit::{BlobOptions, seal, write_blob};
use crate::error::{Doing, LsmtError, Result};
use crate::header::{DATA_SECTOR, Flags, HEADER_BYTES, Header};
use crate::layer::LayerInfo;
use crate::num::SECTOR;
use crate::segment::{Content, SEGMENT_BYTES, Segment};
use crate::storage::Storage;
use crate::uuid::Uuid;
use journal::Journal;

/// What a flush does with entries.
const ENTRIES: &str = "write the index";

/// How a writable layer places data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UpperKind {
    /// Data is appended; replaced data is garbage.
    #[default]
    Append,
    /// Data is at the place it has on the device, in a file with holes.
    Sparse,
    /// Data is appended, or overwritten in place where this layer has data already.
    Hybrid,
}

/// The files of a writable layer.
#[derive(Clone)]
pub struct UpperFiles {
    /// Header and data: overlaybd's.
    pub data: Arc<dyn Storage>,
    /// The index: overlaybd's, except for a sparse layer, of which overlaybd stores none.
    pub index: Arc<dyn Storage>,
    /// The journal of writes that are not in the index yet, ours. Without one, a killed process loses
    /// unflushed writes.
    pub journal: Option<Arc<dyn Storage>>,
}

impl std::fmt::Debug for UpperFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UpperFiles").finish_non_exhaustive()
    }
}

/// What a new writable layer is to be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewUpper {
    /// How it places data.
    pub kind: UpperKind,
    /// Bytes of the device.
    pub virtual_size: u64,
    /// Its own identifier.
    pub uuid: Uuid,
    /// That of the layer below.
    pub parent: Uuid,
}

/// A writable layer.
pub struct Upper {
    files: UpperFiles,
    kind: UpperKind,
    uuid: Uuid,
    parent: Uuid,
    virtual_size: AtomicU64,
    /// The mutable state; the lock is held only to change it.
    state: RwLock<State>,
    /// Held shared by each write during its I/O: an exclusive holder knows that none is in progress.
    gate: RwLock<()>,
    /// Held by the flush under way; what waits for it is mostly flushed by it. It has what an earlier flush found no room
    /// for, which goes first: the journal has room for the notes of two.
    flushing: Mutex<Option<Batch>>,
    /// Whether the files may differ from the state in memory.
    poisoned: AtomicBool,
    /// Whether the data is being copied: then nothing may be overwritten in place.
    frozen: AtomicBool,
    /// Another layer has taken its place.
    retired: AtomicBool,
    /// Sectors of data that it may have.
    limit: AtomicU64,
}

struct State {
    map: Map,
    /// The sector behind the data, including writes in progress.
    data_end: u64,
    /// Data before this sector is in the index.
    flushed_end: u64,
    /// Entries of the index on the disk.
    index_entries: u64,
    /// Segments that are not in the index, in order.
    pending: Vec<Segment>,
    /// For a sparse layer, segments that are not in the index on the disk: pending ones, and those of the flush in
    /// progress.
    unflushed: [Map; 2],
    journal: Journal,
    /// Sectors of the data that nothing reads, and that are holes.
    given_back: u64,
    /// How many writes there were, and how many were flushed.
    writes: u64,
    flushed_writes: u64,
}

impl std::fmt::Debug for Upper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Upper")
            .field("kind", &self.kind)
            .field("uuid", &self.uuid)
            .finish_non_exhaustive()
    }
}

/// The disk usage of a writable layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UpperUsage {
    /// Bytes of the data file behind its header.
    pub data_bytes: u64,
    /// Bytes of it that are read by something.
    pub live_bytes: u64,
    /// Entries of the index, on the disk and waiting.
    pub index_entries: u64,
}

impl Upper {
    /// Returns how it places data.
    pub fn kind(&self) -> UpperKind {
        self.kind
    }

    /// Returns how it is called.
    pub fn info(&self) -> LayerInfo {
        LayerInfo {
            uuid: self.uuid,
            parent: self.parent,
            virtual_size: self.virtual_size(),
            message: Vec::new(),
        }
    }

    /// Returns the size of the device.
    pub fn virtual_size(&self) -> u64 {
        self.virtual_size.load(Relaxed)
    }

    /// Returns its disk usage.
    pub fn usage(&self) -> UpperUsage {
        let state = self.state.read();
        UpperUsage {
            data_bytes: (state.data_end - DATA_SECTOR) * SECTOR,
            live_bytes: state.map.live_sectors() * SECTOR,
            index_entries: state.index_entries + state.pending.len() as u64,
        }
    }

    /// Returns the segments within sectors of the device.
    pub(crate) fn within(&self, sectors: std::ops::Range<u64>) -> Vec<Segment> {
        self.state.read().map.within(sectors)
    }

    /// Reads a part of a segment.
    pub(crate) fn read_segment(
        &self,
        segment: Segment,
        skip: u64,
        buffer: &mut [u8],
    ) -> Result<()> {
        let at = segment.moffset() * SECTOR + skip;
        self.files
            .data
            .read_at(buffer, at)
            .doing("read the writable layer")
    }

    fn check(&self) -> Result<()> {
        match self.poisoned.load(Relaxed) {
            true => Err(LsmtError::Poisoned),
            false if self.retired.load(Relaxed) => Err(LsmtError::Retired),
            false => Ok(()),
        }
    }

    /// Checks as [`Self::check`] does; but what replaced a layer has all of it, durable.
    fn check_durable(&self) -> Result<()> {
        match self.check() {
            Err(LsmtError::Retired) => Ok(()),
            checked => checked,
        }
    }

    /// Makes all completed writes durable, together with concurrent flushes.
    ///
    /// # Errors
    ///
    /// Fails as the storage does; then it cannot be written until the layer is opened again. If only room was missing, it
    /// can be tried again.
    pub fn flush(&self) -> Result<()> {
        if self.retired.load(Relaxed) {
            return self.check_durable();
        }
        self.check_durable()?;
        let wanted = self.state.read().writes;
        let mut left = self.flushing.lock();
        self.flush_left(&mut left)?;
        if self.state.read().flushed_writes >= wanted {
            return self.check_durable();
        }
        let batch = {
            // No write is between its note in the journal and its entry.
            let _alone = self.gate.write();
            self.batch()
        };
        self.flush_batch(batch, &mut left)
    }

    /// Flushes what an earlier flush found no room for.
    fn flush_left(&self, left: &mut Option<Batch>) -> Result<()> {
        match left.take() {
            Some(batch) => self.flush_batch(batch, left),
            None => Ok(()),
        }
    }

    /// Takes what a flush is to make durable. No write may be under way.
    fn batch(&self) -> Batch {
        let mut state = self.state.write();
        let pending = std::mem::take(&mut state.pending);
        let at = state.index_entries;
        if !pending.is_empty() {
            state.index_entries += pending.len() as u64;
            let base = state.index_entries;
            state.journal.switch(base);
            state.unflushed[1] = std::mem::take(&mut state.unflushed[0]);
        }
        Batch {
            pending,
            at,
            data_end: state.data_end,
            writes: state.writes,
        }
    }

    fn flush_batch(&self, batch: Batch, left: &mut Option<Batch>) -> Result<()> {
        if let Err(error) = self.write_out(&batch) {
            match error {
                // A part of the entries may be there: all are written again, in the same place.
                LsmtError::Storage { doing, ref source }
                    if doing == ENTRIES && source.kind() == ErrorKind::StorageFull =>
                {
                    *left = Some(batch);
                }
                // Who failed to sync may have lost what it was to sync.
                _ => self.poison(),
            }
            return Err(error);
        }
        let mut state = self.state.write();
        state.unflushed[1] = Map::default();
        state.flushed_end = batch.data_end;
        state.flushed_writes = batch.writes;
        Ok(())
    }

    /// Makes the data durable, and then the entries that refer to it.
    fn write_out(
        &self,
        Batch {
            pending,
            at,
            data_end,
            ..
        }: &Batch,
    ) -> Result<()> {
        let data = &self.files.data;
        if !pending.is_empty() && data.size().doing("get the size of the data")? < data_end * SECTOR
        {
            data.set_size(data_end * SECTOR).doing("extend the data")?;
        }
        data.sync().doing("sync the data")?;
        if !pending.is_empty() {
            let offset = HEADER_BYTES + at * SEGMENT_BYTES as u64;
            let index = &self.files.index;
            index
                .write_at(&crate::commit::encode(pending), offset)
                .doing(ENTRIES)?;
            index.sync().doing("sync the index")?;
        }
        Ok(())
    }

    /// Makes the device larger.
    ///
    /// # Errors
    ///
    /// Fails if it would become smaller or too large, and as the storage does.
    pub fn grow(&self, virtual_size: u64) -> Result<()> {
        self.check()?;
        if virtual_size < self.virtual_size() {
            let what = "making a device smaller";
            return Err(LsmtError::Unsupported { what });
        }
        open::check_size(virtual_size)?;
        let _turn = self.flushing.lock();
        let _alone = self.gate.write();
        if self.kind == UpperKind::Sparse {
            let end = HEADER_BYTES + virtual_size.next_multiple_of(SECTOR);
            self.files.data.set_size(end).doing("extend the data")?;
            self.state.write().data_end = end / SECTOR;
        }
        let header = self.header(virtual_size);
        self.files
            .data
            .write_at(&header.encode(), 0)
            .doing("write a layer's header")?;
        self.files.data.sync().doing("sync the data")?;
        self.virtual_size.store(virtual_size, Relaxed);
        // Readers go by the header of the data; this one follows it when the layer is opened.
        let index = self.index_header(virtual_size);
        self.files
            .index
            .write_at(&index.encode(), 0)
            .doing("write a layer's header")?;
        self.files.index.sync().doing("sync the index")
    }

    /// Returns the headers of both files.
    pub(crate) fn headers(&self) -> (Vec<u8>, Vec<u8>) {
        let size = self.virtual_size();
        (self.header(size).encode(), self.index_header(size).encode())
    }

    fn header(&self, virtual_size: u64) -> Header {
        let flags = open::data_flags(self.kind);
        Header::new(flags, virtual_size, self.uuid, self.parent)
    }

    fn index_header(&self, virtual_size: u64) -> Header {
        open::index_header(self.kind, virtual_size, self.uuid, self.parent)
    }

    /// Writes all of this layer to empty storage, as a sealed layer; returns the length of the blob, which
    /// is not synced. Writes continue meanwhile, but for a sparse layer, where they wait.
    ///
    /// # Errors
    ///
    /// Fails as the storage does, and if the layer has too many segments.
    pub fn commit(&self, to: &dyn Storage, options: BlobOptions, info: &LayerInfo) -> Result<u64> {
        let _frozen = self.freeze()?;
        let waiting = (self.kind == UpperKind::Sparse).then(|| self.gate.write());
        let segments = self.state.read().map.segments();
        let committed = write_blob(
            to,
            options,
            info,
            &segments,
            &mut |segment, skip, buffer| self.read_segment(segment, skip, buffer),
        );
        drop(waiting);
        committed
    }

    /// Forbids overwriting in place, until the returned value is dropped.
    pub(crate) fn freeze(&self) -> Result<Frozen<'_>> {
        self.check()?;
        if self.frozen.swap(true, Relaxed) {
            let what = "commit or garbage collection";
            return Err(LsmtError::Busy { what });
        }
        // Those that did not see it yet are done with their writing after this.
        drop(self.gate.write());
        Ok(Frozen(self))
    }

    /// Stops all writes and flushes, until the returned value is dropped, and flushes once more.
    pub(crate) fn stop(&self) -> Result<Stopped<'_>> {
        let mut left = self.flushing.lock();
        let gate = self.gate.write();
        self.check()?;
        self.flush_left(&mut left)?;
        self.flush_batch(self.batch(), &mut left)?;
        Ok(Stopped {
            _flushing: left,
            _gate: gate,
        })
    }

    /// Marks that the files may differ from the state in memory.
    pub(crate) fn poison(&self) {
        self.poisoned.store(true, Relaxed);
    }

    /// Returns what [`Self::snapshot`] does, between writes: one that is under way has its place in the data, but is
    /// not mapped yet.
    pub(crate) fn settled(&self) -> (Vec<Segment>, u64) {
        let _alone = self.gate.write();
        self.snapshot()
    }

    /// Returns the mapped segments, and the sector behind all data.
    pub(crate) fn snapshot(&self) -> (Vec<Segment>, u64) {
        let state = self.state.read();
        (state.map.segments(), state.data_end)
    }

    /// Appends index and trailer to the data, synced. The caller has stopped writes and flushed; if
    /// the sealed layer is not used after all, the layer still opens and stays writable.
    pub(crate) fn seal_in_place(&self) -> Result<()> {
        let mut state = self.state.write();
        let flags = match self.kind {
            UpperKind::Append => Flags::TRAILER,
            UpperKind::Sparse => Flags::TRAILER.sparse(),
            UpperKind::Hybrid => Flags::TRAILER.hybrid(),
        };
        let segments = state.map.segments();
        let end = state.data_end * SECTOR;
        let header = self.header(self.virtual_size());
        if self.kind == UpperKind::Sparse {
            // An earlier seal that was not used may have left a longer one.
            self.files.data.set_size(end).doing("seal a layer")?;
        }
        let sealed = seal(&*self.files.data, &header, flags, &segments, end);
        if self.kind != UpperKind::Sparse {
            let size = self.files.data.size().doing("get the size of the data")?;
            state.data_end = state.data_end.max(size.div_ceil(SECTOR));
        }
        drop(state);
        sealed?;
        self.files.data.sync().doing("sync the data")
    }

    /// Marks that another layer has replaced it. The caller has stopped writes.
    pub(crate) fn retire(&self) {
        self.retired.store(true, Relaxed);
    }

    pub(crate) fn data(&self) -> Arc<dyn Storage> {
        self.files.data.clone()
    }
}

/// What a flush makes durable.
struct Batch {
    pending: Vec<Segment>,
    /// Which entry of the index the first one becomes.
    at: u64,
    data_end: u64,
    writes: u64,
}

/// While it exists, nothing is written.
pub(crate) struct Stopped<'a> {
    _flushing: parking_lot::MutexGuard<'a, Option<Batch>>,
    _gate: parking_lot::RwLockWriteGuard<'a, ()>,
}

/// While it exists, nothing is overwritten in place.
pub(crate) struct Frozen<'a>(&'a Upper);

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        self.0.frozen.store(false, Relaxed);
    }
}

/// Returns whether a segment is data.
fn is_data(segment: &Segment) -> bool {
    segment.content() == Content::Data
}
