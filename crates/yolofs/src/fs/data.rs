//! Content: opening, reading, seeking.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::time::{Instant, SystemTime};

use blocks::{
    Access, Attr, BlockRange, Caller, Event, FileId, FileKey, Seek, SourceError, SourceErrorKind,
    Version, Warmth, prompt,
};

use super::{FileSystem, FsError, Mode, ReadOutcome, Request};

/// How often one request follows a file that keeps changing before it gives up: a file that is
/// being written right now may change between any two looks.
const CHASES: u32 = 8;

/// The bits of a mode that let somebody run a file.
const ANYBODY_RUNS: u16 = 0o111;

/// Returns whether a file with this mode and this beginning is a program: Linux runs no program that is
/// passed through (`execve` fails with `EIO`, up to 6.18 at least; mapping one as a library
/// works).
#[must_use]
pub fn is_program(mode: u32, head: &[u8]) -> bool {
    let may_run = mode & u32::from(ANYBODY_RUNS) != 0;
    may_run && (head.starts_with(b"#!") || head.starts_with(b"\x7fELF"))
}

/// How a file is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CachePath {
    /// The kernel fills its page cache.
    Through,
    /// The kernel hands the bytes to the reader and keeps nothing (`O_DIRECT`).
    Around,
}

/// How a file is to be opened.
#[derive(Debug)]
pub enum OpenDecision {
    /// Through the kernel's page cache.
    Cached,
    /// By passthrough to the first of these that the kernel accepts: it sends no read requests.
    Passthrough(Vec<Backing>),
}

/// A file that the kernel may read in place of the served one.
#[derive(Debug)]
pub struct Backing {
    /// The file, open for reading.
    pub fd: OwnedFd,
    /// Its place.
    pub to: PassedTo,
}

/// The place of a file that another one is passed through to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassedTo {
    /// In the source: it is the file itself.
    Source,
    /// On faster memory: it is a copy.
    Copy,
}

impl PassedTo {
    /// Returns its name.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Copy => "copy on faster memory",
        }
    }
}

/// What a read has come to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadAnswer {
    /// Bytes that were read.
    pub(crate) len: usize,
    outcome: ReadOutcome,
}

impl FileSystem {
    /// Decides how a file is to be opened for reading.
    ///
    /// # Errors
    /// If the namespace fails.
    pub fn open(&self, file: FileId) -> Result<OpenDecision, FsError> {
        self.serve(Request::Open, || {
            let attr = self.current_attr(file)?;
            let version = attr.version();
            let key = FileKey { file, version };
            if self.config.mode != Mode::Disk || self.is_recording() || attr.size == 0 {
                return Ok(OpenDecision::Cached);
            }
            let asks_source = !self.config.boot_files.contains(&file) && self.backing.is_some();
            if asks_source || self.copies.is_some() {
                may_wait("opening")?;
            }
            let mut backings = Vec::from_iter(self.open_copy(&key));
            if !self.config.boot_files.contains(&file) {
                backings.extend(self.open_backing(&key));
            }
            // Asked last: it reads the file.
            Ok(match backings.is_empty() || self.stays(&key, &attr) {
                true => OpenDecision::Cached,
                false => OpenDecision::Passthrough(backings),
            })
        })
    }

    /// Returns whether a file is passed through to a copy when it is opened next.
    pub(super) fn has_copy(&self, key: &FileKey) -> bool {
        let Ok(attr) = self.current_attr(key.file) else {
            return false;
        };
        let copies = self.copies.as_ref();
        copies.is_some_and(|copies| matches!(copies.open_copy(key), Ok(Some(_))))
            && !self.stays(key, &attr)
    }

    /// Returns whether a file is never passed through: an empty one has nothing to be read, and a program
    /// would not run.
    fn stays(&self, key: &FileKey, attr: &Attr) -> bool {
        let mut magic = [0; 4];
        let mut begins_as_program = || {
            let read = self.source.read_at(key, 0, &mut magic);
            let head = read.map_or(&[][..], |len| &magic[..len.min(magic.len())]);
            is_program(attr.perm.into(), head)
        };
        attr.size == 0 || (attr.perm & ANYBODY_RUNS != 0 && begins_as_program())
    }

    fn open_copy(&self, key: &FileKey) -> Option<Backing> {
        let fd = match self.copies.as_ref()?.open_copy(key) {
            Ok(fd) => fd?,
            Err(error) => {
                self.tally.copy_failed();
                let file = key.file.0;
                log::warn!("the copy of file {file} cannot be used, its source is read: {error}");
                return None;
            }
        };
        let to = PassedTo::Copy;
        Some(Backing { fd, to })
    }

    fn open_backing(&self, key: &FileKey) -> Option<Backing> {
        match self.backing.as_ref()?.open_backing(key) {
            Ok(fd) => {
                let to = PassedTo::Source;
                Some(Backing { fd, to })
            }
            // A file that cannot be opened now may well be read later: reading says so.
            Err(error) => {
                log::debug!("file {} is not passed through: {error}", key.file.0);
                None
            }
        }
    }

    /// Reads content from `offset` into `buf` and returns how many bytes: all of `buf`, or up to
    /// the end of the file.
    ///
    /// # Errors
    /// If the source fails, or the file keeps changing, or was just truncated and the kernel, which
    /// would fill the missing part with zeros, does not know it yet.
    pub fn read(
        &self,
        caller: Caller,
        file: FileId,
        offset: u64,
        buf: &mut [u8],
        path: CachePath,
    ) -> Result<usize, FsError> {
        let read = self.read_uncounted(caller, file, offset, buf, path);
        self.count_read(&read);
        read.map(|read| read.len)
    }

    /// Counts the result of a read, unless it is to be answered by a waiter.
    pub(crate) fn count_read(&self, read: &Result<ReadAnswer, FsError>) {
        match read {
            Ok(read) => self.tally.read(read.outcome, read.len),
            Err(error) if error.would_wait() => {}
            Err(_) => self.tally.read(ReadOutcome::Failed, 0),
        }
    }

    /// [`read`](Self::read), for callers that [count](Self::count_read) the result themselves.
    pub(crate) fn read_uncounted(
        &self,
        caller: Caller,
        file: FileId,
        offset: u64,
        buf: &mut [u8],
        path: CachePath,
    ) -> Result<ReadAnswer, FsError> {
        let start = Instant::now();
        let len = buf.len() as u64;
        self.serve(Request::Read, || {
            if path == CachePath::Through {
                let asked = BlockRange::covering(offset, len);
                self.injected.asked(file, asked);
                self.sample.asked(file, asked);
            }
            let warmth = self.warmth(file, offset, len);
            // What goes through the page cache of the mount is kept there, and need not be anywhere
            // else; a recording leaves the source as any boot would.
            let once = path == CachePath::Through && !self.is_recording();
            let mut version = Version::default();
            // Before the bytes are read: they may be of before another change, however long the rest takes.
            let mut begun = SystemTime::now();
            let read = self.follow(file, |key| {
                (version, begun) = (key.version, SystemTime::now());
                match once {
                    true => self.source.read_once(key, offset, buf),
                    false => self.source.read_at(key, offset, buf),
                }
            })?;
            if path == CachePath::Through {
                self.refuse_cut(file, &version, offset..offset.saturating_add(len), read.0)?;
                if self.recent.read(file, &version, begun) {
                    self.diversions.tell_of(file);
                }
            }
            let access = Access {
                file,
                offset,
                len,
                warmth,
            };
            self.observe(caller, start, || Event::Read(access));
            let (len, outcome) = read;
            Ok(ReadAnswer { len, outcome })
        })
    }

    /// Returns the first offset from `offset` on that is data, or a hole. The source is asked only if a file
    /// has less space than length: the begin of holes is on its disk, and an overlay asks for each file
    /// that it copies up.
    ///
    /// # Errors
    /// If there is none before the end of the file, or the source fails.
    pub fn lseek(&self, file: FileId, offset: u64, what: Seek) -> Result<u64, FsError> {
        self.serve(Request::Lseek, || {
            let may_have_holes = self.current_attr(file)?.may_have_holes();
            let sparse = self.sparse.as_ref().filter(|_| may_have_holes);
            let (found, _) = self.follow(file, |key| match sparse {
                Some(sparse) => sparse.seek(key, offset, what),
                None => Ok(seek_in_data(key.version.size, offset, what)),
            })?;
            found.ok_or(FsError::BeyondEnd)
        })
    }

    /// Says whether a file may be written: it may not.
    ///
    /// # Errors
    /// If `mask` asks for writing ([`libc`'s `W_OK`](https://man7.org/linux/man-pages/man2/access.2.html), 2),
    /// or the namespace cannot answer.
    pub fn access(&self, file: FileId, mask: i32) -> Result<(), FsError> {
        const WRITE: i32 = 2;
        self.serve(Request::Access, || {
            self.current_attr(file)?;
            if mask & WRITE != 0 {
                return Err(FsError::ReadOnly);
            }
            Ok(())
        })
    }

    /// Asks something of a file in its current version; if it turns out to have another one by
    /// now, diverts it and asks again.
    fn follow<T>(
        &self,
        file: FileId,
        mut ask: impl FnMut(&FileKey) -> Result<T, SourceError>,
    ) -> Result<(T, ReadOutcome), FsError> {
        let mut outcome = ReadOutcome::Served;
        let mut chases = 0;
        loop {
            let key = self
                .key(file)
                .inspect_err(|error| self.forget_revoked(file, error))?;
            match ask(&key) {
                Ok(answer) => return Ok((answer, outcome)),
                Err(error) => match error.kind() {
                    SourceErrorKind::Stale { now } if chases < CHASES => {
                        self.divert(&key, now)?;
                        outcome = ReadOutcome::Diverted;
                        chases += 1;
                    }
                    _ => return Err(error.into()),
                },
            }
        }
    }

    /// Fails if the kernel would make zeros of what an answer of `read` bytes lacks.
    fn refuse_cut(
        &self,
        file: FileId,
        version: &Version,
        wanted: Range<u64>,
        read: usize,
    ) -> Result<(), FsError> {
        let end = wanted.start.saturating_add(read as u64);
        let cut = self.diversions.cuts(file, end, wanted.end);
        let being_forgotten = self.recent.cuts(file, end, wanted.end);
        match cut.or(being_forgotten.then_some(*version)) {
            None => Ok(()),
            Some(now) => {
                let kind = SourceErrorKind::Stale { now };
                let error = SourceError::new(kind, "reading behind the new end of a file");
                Err(error.about(file).into())
            }
        }
    }

    fn warmth(&self, file: FileId, offset: u64, len: u64) -> Warmth {
        let Some(residency) = self.residency.as_ref().filter(|_| self.is_recording()) else {
            return Warmth::Unknown;
        };
        let resident = self
            .key(file)
            .ok()
            .and_then(|key| residency.is_resident(&key, offset, len));
        match resident {
            Some(true) => Warmth::Warm,
            Some(false) => Warmth::Cold,
            None => Warmth::Unknown,
        }
    }
}

/// Fails on a thread that must not wait.
pub(super) fn may_wait(doing: &'static str) -> Result<(), SourceError> {
    match prompt::patience() {
        prompt::Patience::None => Err(SourceError::new(SourceErrorKind::WouldWait, doing)),
        prompt::Patience::Bounded | prompt::Patience::Endless => Ok(()),
    }
}

/// Seeks in a file without holes: all of it is data, and its end is the only hole.
fn seek_in_data(size: u64, offset: u64, what: Seek) -> Option<u64> {
    let found = match what {
        Seek::Data => offset,
        Seek::Hole => size,
    };
    (offset < size).then_some(found)
}
