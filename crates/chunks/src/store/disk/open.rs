//! Opening a store: rebuilds the index from the tables of the segments.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::Mutex;
use rawio::regular::{self, Links};

use super::write::{Active, Writer};
use super::{
    ChunkId, ChunkStore as _, Class, Counts, DiskStore, Held, RecordLocation, Residents,
    SPARE_SEGMENTS, Steps, StoreConfig, StoreState,
};
use crate::store::format::SegmentError;
use crate::store::segment::{OpenSegmentError, Segment, number_of, path_of};

/// The smallest segments: the largest record must fit.
const SEGMENT_MIN: u32 = 256 << 10;

/// Why a store could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenStoreError {
    /// Another process has it open.
    #[error("another process uses the store {dir}; stop it, or use the command that asks it")]
    Locked {
        /// The store.
        dir: PathBuf,
    },
    /// A later nicfetch wrote a segment.
    #[error("{path} cannot be used; nothing was changed")]
    Segment {
        /// The segment.
        path: PathBuf,
        /// The error in it.
        source: SegmentError,
    },
    /// The configuration is invalid.
    #[error("a store needs segments of {SEGMENT_MIN} bytes or more, and room for 4 of them")]
    Config,
    /// A file or directory could not be used.
    #[error("the store cannot be used: {doing} {path} failed")]
    Io {
        /// The path.
        path: PathBuf,
        /// The operation, a verb in its -ing form.
        doing: &'static str,
        /// The cause.
        source: io::Error,
    },
}

impl OpenStoreError {
    fn io(path: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io {
            path,
            doing,
            source,
        }
    }
}

impl DiskStore {
    /// Opens the store in `dir`, which is created if missing. Chunks beyond the budget are evicted, the
    /// oldest first.
    ///
    /// # Errors
    /// If another process has it open, a later version wrote it, or the disk fails. Damaged chunks are
    /// no error: they are counted, and dropped.
    pub fn open(dir: &Path, config: StoreConfig) -> Result<Self, OpenStoreError> {
        Self::open_pinning(dir, config, &[])
    }

    /// As [`open`](Self::open), with chunks that are pinned once, before anything is evicted.
    ///
    /// # Errors
    /// As of [`open`](Self::open).
    pub fn open_pinning(
        dir: &Path,
        config: StoreConfig,
        pins: &[ChunkId],
    ) -> Result<Self, OpenStoreError> {
        let store = Self::empty(dir, config, Steps::default())?;
        store.pin(pins);
        store.read_segments()?;
        Ok(store)
    }

    #[cfg(test)]
    pub(super) fn open_with(
        dir: &Path,
        config: StoreConfig,
        steps: Steps,
    ) -> Result<Self, OpenStoreError> {
        let store = Self::empty(dir, config, steps)?;
        store.read_segments()?;
        Ok(store)
    }

    /// Returns a store that has not read its segments yet.
    fn empty(dir: &Path, config: StoreConfig, steps: Steps) -> Result<Self, OpenStoreError> {
        let least = (SPARE_SEGMENTS + 1) * u64::from(config.segment_bytes);
        if config.segment_bytes < SEGMENT_MIN || config.budget_bytes < least {
            return Err(OpenStoreError::Config);
        }
        let segments = dir.join("segments");
        fs::create_dir_all(&segments).map_err(OpenStoreError::io(&segments, "making"))?;
        Ok(Self {
            _lock: lock(dir)?,
            state: Mutex::new(StoreState {
                residents: Residents::new(config.policy, config.limit()),
                segments: BTreeMap::new(),
                stored_bytes: 0,
                raw_bytes: 0,
            }),
            writer: Mutex::new(Writer {
                active: None,
                next: 0,
                compacting: false,
            }),
            counts: Counts::default(),
            dir: segments,
            config,
            steps,
        })
    }

    fn read_segments(&self) -> Result<(), OpenStoreError> {
        let numbers = self.numbers()?;
        let mut writer = self.writer.lock();
        writer.next = numbers.last().map_or(0, |last| last + 1);
        let mut segments = Vec::new();
        for number in &numbers {
            segments.extend(
                self.open_segment(*number)?
                    .map(|segment| (*number, segment)),
            );
        }
        for (number, segment) in segments {
            let youngest = Some(&number) == numbers.last();
            writer.active = self.take_in(segment, youngest)?;
        }
        Ok(())
    }

    /// Returns the numbers of all segments, in order.
    fn numbers(&self) -> Result<Vec<u64>, OpenStoreError> {
        let mut numbers = Vec::new();
        for entry in fs::read_dir(&self.dir).map_err(OpenStoreError::io(&self.dir, "listing"))? {
            let entry = entry.map_err(OpenStoreError::io(&self.dir, "listing"))?;
            numbers.extend(entry.file_name().to_str().and_then(number_of));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Opens a segment; one without a valid header holds nothing, and is removed. What cannot be read has nothing for
    /// us, and hides no other.
    fn open_segment(&self, number: u64) -> Result<Option<Segment>, OpenStoreError> {
        let path = path_of(&self.dir, number);
        match Segment::open(&path, number) {
            Ok(segment) => Ok(Some(segment)),
            Err(OpenSegmentError::Io(error)) if is_of_this_file(&error) => {
                log::warn!("{} cannot be read: ignored: {error}", path.display());
                self.counts.damaged.fetch_add(1, Relaxed);
                Ok(None)
            }
            Err(OpenSegmentError::Io(error)) => Err(OpenStoreError::io(&path, "opening")(error)),
            Err(OpenSegmentError::Format(SegmentError::Damaged)) => {
                log::warn!("{} has no valid header: removed", path.display());
                self.counts.damaged.fetch_add(1, Relaxed);
                let removed = self.steps.remove(&path);
                removed.map_err(OpenStoreError::io(&path, "removing"))?;
                Ok(None)
            }
            Err(OpenSegmentError::Format(source)) => Err(OpenStoreError::Segment { path, source }),
        }
    }

    /// Lets the chunks of a segment in. The youngest, if it is not sealed, is written on.
    fn take_in(&self, segment: Segment, youngest: bool) -> Result<Option<Active>, OpenStoreError> {
        let number = segment.number;
        let path = path_of(&self.dir, number);
        let reading = || OpenStoreError::io(&path, "reading");
        let mut contents = segment.contents().map_err(reading())?;
        let mut damaged = u64::from(contents.torn);
        if !contents.sealed {
            let found = contents.lines.len();
            contents.lines.retain(|line| segment.read(line).is_some());
            damaged += (found - contents.lines.len()) as u64;
        }
        let mut len = segment.file.metadata().map_err(reading())?.len();
        self.counts.damaged.fetch_add(damaged, Relaxed);
        let goes_on = youngest && !contents.sealed;
        if goes_on && len > u64::from(contents.end) {
            len = u64::from(contents.end);
            let cut = self.steps.cut(&segment.file, len);
            cut.map_err(OpenStoreError::io(&path, "cutting"))?;
        }
        let mut state = self.state.lock();
        let held = Held {
            segment: segment.clone(),
            len,
            live_bytes: 0,
        };
        state.segments.insert(number, held);
        for line in &contents.lines {
            let older = state.residents.get(&line.id).copied();
            if let Some(older) = older {
                state.forget(&line.id, &older);
            }
            let evicted = state.admit(line.id, RecordLocation::new(number, line), Class::Demand);
            self.counts.evicted.fetch_add(evicted.unwrap_or(1), Relaxed);
        }
        Ok(goes_on.then_some(Active {
            segment,
            end: contents.end,
            lines: contents.lines,
        }))
    }
}

/// Returns whether an error says something of one file, and not of the process or the file system.
fn is_of_this_file(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidInput, IsADirectory, NotFound, PermissionDenied};
    use nix::libc::{EIO, ELOOP};
    let kind = error.kind();
    matches!(
        kind,
        InvalidInput | IsADirectory | NotFound | PermissionDenied
    ) || [EIO, ELOOP].map(Some).contains(&error.raw_os_error())
}

fn lock(dir: &Path) -> Result<File, OpenStoreError> {
    let path = dir.join("lock");
    let file = regular::open_to_write(&path, Links::Followed, true);
    let file = file.map_err(OpenStoreError::io(&path, "opening"))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenStoreError::Locked {
            dir: dir.to_owned(),
        }),
        Err(TryLockError::Error(error)) => Err(OpenStoreError::io(&path, "locking")(error)),
    }
}
