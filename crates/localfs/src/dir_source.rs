//! The contents of a source, each read verified to be of the requested version.
//!
//! A read requests a [`FileKey`]: a file in a version. The file is found by its path, opened
//! beneath the root, and its version is taken before and after the bytes are read. Only when both
//! are the requested one are the bytes valid; otherwise the result is
//! [`Stale`](SourceErrorKind::Stale) with the present version.
//!
//! Limits of this check:
//!
//! - A write in progress. The kernel moves the timestamps before it copies the bytes, so a read
//!   in between may find old bytes, or some of either, under the version that the write leaves.
//! - A write through a shared mapping to a page that is dirty already: it moves no timestamp.
//! - The second of two writes within one step of the file system's times: it leaves the timestamps
//!   of the first one. Code that keeps the bytes has to check
//!   [`Version::is_recent`](blocks::Version::is_recent).

mod adviser;
mod attrs;
mod open_files;

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use blocks::{
    BackingFile, BlockRange, BlockSource, FileKey, Namespace, NodeKind, Residency, Seek,
    SourceError, SourceErrorKind, Sparse, Version, prompt,
};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, PosixFadviseAdvice, ResolveFlag, fcntl, posix_fadvise};
use nix::sys::uio::pread;
use nix::unistd::{Whence, lseek};
use rawio::cached::cached_pages;
use rawio::once::Once;
use rawio::read::{NowaitRead, pread_nowait};
use rawio::readahead::Readahead;
use rawio::stat::stat_at;

use self::adviser::Adviser;
use self::open_files::{OpenFile, OpenFiles};
use crate::attr::attr_of;
use crate::open::{gone, is_shortage, open_to_read};
use crate::{Prompt, SourceRoot};

/// Files held open between reads. A boot reads some hundred files; a quarter of the 1024
/// descriptors that a process has by default leaves the rest to others.
const OPEN_FILES: usize = 256;

/// Bytes of a residency question that are copied at a time.
const PROBE: usize = 65536;

/// The files of a source.
#[derive(Debug)]
pub struct DirSource {
    files: Arc<Files>,
    /// Started by the first advice, so that a source without advice has no thread.
    adviser: OnceLock<Option<Adviser>>,
}

/// What the source and its adviser share.
struct Files {
    root: Arc<SourceRoot>,
    names: Arc<dyn Namespace>,
    open: OpenFiles,
    /// The file system cannot tell whether a read would wait; a source is on one file system.
    may_wait: AtomicBool,
    once: Once,
}

impl DirSource {
    /// Returns the contents of the files of `root`, found by the paths that `names` knows.
    pub fn new(root: Arc<SourceRoot>, names: Arc<dyn Namespace>) -> Self {
        Self {
            files: Arc::new(Files {
                root,
                names,
                open: OpenFiles::new(OPEN_FILES),
                may_wait: AtomicBool::new(false),
                once: Once::default(),
            }),
            adviser: OnceLock::new(),
        }
    }

    /// Makes the kernel begin to read `len` bytes from `offset` into its page cache, as far as it
    /// reads ahead at all. Waits for the metadata of the file, and not for the bytes; a failure
    /// has no effect.
    pub fn begin_to_read(&self, file: &FileKey, offset: u64, len: u64) {
        let range = i64::try_from(offset).ok().zip(i64::try_from(len).ok());
        let Some((offset, len)) = range else { return };
        if let Ok(fd) = self.files.file(file, "reading ahead") {
            let will_need = PosixFadviseAdvice::POSIX_FADV_WILLNEED;
            // Advice that the file system cannot take changes nothing.
            posix_fadvise(fd.as_fd(), offset, len, will_need).unwrap_or_default();
        }
    }

    /// Returns how many files it holds open.
    #[must_use]
    pub fn open_files(&self) -> usize {
        self.files.open.len()
    }
}

impl Files {
    /// Returns the open file in the version of the key.
    fn file(&self, key: &FileKey, doing: &'static str) -> Result<Arc<OpenFile>, SourceError> {
        let failed = |error| SourceError::from_io(doing, error).about(key.file);
        if let Some(fd) = self.open.get(key.file) {
            if version(&fd).map_err(failed)? == key.version {
                return Ok(fd);
            }
            // Changed in place, or replaced under its name: the name decides.
            self.open.remove(key.file);
        }
        let fd = Arc::new(OpenFile::new(self.open_by_path(key, doing)?));
        self.open.insert(key.file, Arc::clone(&fd));
        Ok(fd)
    }

    /// Returns a file that is open in the version of the key, if its file system can be relied on not
    /// to wait.
    fn looked_at_now(&self, key: &FileKey) -> Option<Arc<OpenFile>> {
        if self.may_wait.load(Relaxed) {
            return None;
        }
        let fd = self.open.get(key.file)?;
        (version(&fd).ok()? == key.version).then_some(fd)
    }

    /// Finds out whether the file system can say that a read would wait: behind the end of a file none
    /// does.
    fn try_prompt(&self, fd: &OwnedFd, key: &FileKey) {
        let behind = key.version.size.saturating_add(1 << 20);
        if let Ok(NowaitRead::Unsupported) = pread_nowait(fd, &mut [0], behind) {
            self.may_wait.store(true, Relaxed);
        }
    }

    fn open_by_path(&self, key: &FileKey, doing: &'static str) -> Result<OwnedFd, SourceError> {
        let Some(path) = self.names.path(key.file) else {
            return Err(SourceError::new(SourceErrorKind::NotFound, doing).about(key.file));
        };
        let mut elsewhere = match self.open_at(&path, key, doing) {
            Err(error) if is_elsewhere(&error) => error,
            decided => return decided,
        };
        for path in self.names.paths(key.file).iter().flatten().skip(1) {
            match self.open_at(path, key, doing) {
                // That the file is in another version says more than that one of its names is gone.
                Err(error) if is_elsewhere(&error) => {
                    if elsewhere.kind() == SourceErrorKind::NotFound {
                        elsewhere = error;
                    }
                }
                decided => return decided,
            }
        }
        Err(elsewhere)
    }

    fn open_at(
        &self,
        path: &[u8],
        key: &FileKey,
        doing: &'static str,
    ) -> Result<OwnedFd, SourceError> {
        let failed = |error| SourceError::from_io(doing, error).about(key.file);
        // Should a pipe have taken the file's place, opening it must not wait for a writer.
        let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        let open = || open_to_read(&*self.root, path, flags, ResolveFlag::empty());
        let fd = match open() {
            // What is open only because it may be read again makes room.
            Err(error) if is_shortage(&error) => {
                self.open.clear();
                open()
            }
            opened => opened,
        };
        let fd = fd.map_err(|error| failed(gone(error)))?;
        check(&fd, key, doing)?;
        self.try_prompt(&fd, key);
        Ok(fd)
    }
}

/// Whether a name does not lead to the file in the version that is asked for: another one may.
fn is_elsewhere(error: &SourceError) -> bool {
    matches!(
        error.kind(),
        SourceErrorKind::NotFound | SourceErrorKind::Stale { .. }
    )
}

/// The version of an open file; that of anything but a regular file is none that was recorded.
fn version(fd: impl AsFd) -> io::Result<Version> {
    let attr = attr_of(&stat_at(fd, "")?);
    let attr = attr.filter(|attr| attr.kind == NodeKind::File);
    attr.map(|attr| attr.version())
        .ok_or_else(|| Errno::ENOENT.into())
}

/// Fails unless the open file is in the version of the key.
fn check(fd: impl AsFd, key: &FileKey, doing: &'static str) -> Result<(), SourceError> {
    let now = version(fd).map_err(|error| SourceError::from_io(doing, error).about(key.file))?;
    if now == key.version {
        Ok(())
    } else {
        Err(SourceError::new(SourceErrorKind::Stale { now }, doing).about(key.file))
    }
}

/// Reads until `buf` is full or the file ends.
fn read_full(
    offset: u64,
    buf: &mut [u8],
    mut pread: impl FnMut(&mut [u8], u64) -> io::Result<usize>,
) -> io::Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        let at = offset.saturating_add(done as u64);
        if i64::try_from(at).is_err() {
            break; // no file reaches there: the end is before it
        }
        match pread(&mut buf[done..], at) {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

impl BlockSource for DirSource {
    fn read_at(&self, file: &FileKey, offset: u64, buf: &mut [u8]) -> Result<usize, SourceError> {
        let doing = "reading";
        let fd = self.files.file(file, doing)?;
        fd.set_readahead(Readahead::Usual);
        let failed = |error| SourceError::from_io(doing, error).about(file.file);
        let read = read_full(offset, buf, |buf, at| {
            Ok(pread(&fd, buf, i64::try_from(at).unwrap_or(i64::MAX))?)
        })
        .map_err(failed)?;
        check(&fd, file, doing)?;
        Ok(read)
    }

    fn read_once(&self, file: &FileKey, offset: u64, buf: &mut [u8]) -> Result<usize, SourceError> {
        let doing = "reading";
        let fd = self.files.file(file, doing)?;
        fd.set_readahead(Readahead::Off);
        let failed = |error| SourceError::from_io(doing, error).about(file.file);
        let once = &self.files.once;
        let read = read_full(offset, buf, |buf, at| once.pread(&fd, buf, at)).map_err(failed)?;
        check(&fd, file, doing)?;
        Ok(read)
    }

    fn advise(&self, file: &FileKey, ranges: &[BlockRange]) {
        let start = || Adviser::start(Arc::clone(&self.files)).ok();
        if let Some(adviser) = self.adviser.get_or_init(start) {
            adviser.advise(*file, ranges);
        }
    }
}

impl Prompt for DirSource {
    fn read_now(
        &self,
        file: &FileKey,
        offset: u64,
        buf: &mut [u8],
    ) -> Option<Result<usize, SourceError>> {
        let read = |fd: &OpenFile, buf: &mut [u8], at| {
            fd.set_readahead(Readahead::Usual);
            pread_nowait(fd, buf, at)
        };
        self.files.read_now(file, offset, buf, read)
    }

    fn read_once_now(
        &self,
        file: &FileKey,
        offset: u64,
        buf: &mut [u8],
    ) -> Option<Result<usize, SourceError>> {
        let once = &self.files.once;
        let read = |fd: &OpenFile, buf: &mut [u8], at| {
            fd.set_readahead(Readahead::Off);
            once.pread_nowait(fd, buf, at)
        };
        self.files.read_now(file, offset, buf, read)
    }
}

impl Files {
    fn read_now(
        &self,
        file: &FileKey,
        offset: u64,
        buf: &mut [u8],
        pread: impl Fn(&OpenFile, &mut [u8], u64) -> io::Result<NowaitRead>,
    ) -> Option<Result<usize, SourceError>> {
        if self.may_wait.load(Relaxed) {
            return None;
        }
        let fd = self.open.get(file.file)?;
        let mut done = 0;
        while done < buf.len() {
            let at = offset.saturating_add(done as u64);
            match pread(&fd, &mut buf[done..], at).ok()? {
                NowaitRead::Read(0) => break,
                NowaitRead::Read(read) => done += read,
                NowaitRead::WouldBlock => return None,
                NowaitRead::Unsupported => {
                    self.may_wait.store(true, Relaxed);
                    return None;
                }
            }
        }
        // Not before the read: a file system that could not read at once might not answer this
        // at once either. Nothing is lost by that, for the version was there before it was asked
        // for, and none comes back.
        check(&fd, file, "reading").ok()?;
        Some(Ok(done))
    }
}

impl Residency for DirSource {
    fn is_resident(&self, file: &FileKey, offset: u64, len: u64) -> Option<bool> {
        let fd = if prompt::patience() == prompt::Patience::None {
            self.files.looked_at_now(file)?
        } else {
            self.files.file(file, "looking for").ok()?
        };
        let end = offset.saturating_add(len).min(file.version.size);
        if lacks_pages(&fd, offset..end) {
            return Some(false);
        }
        let mut at = offset;
        let mut buf = vec![0; PROBE];
        while at < end {
            let wanted = usize::try_from(end - at).unwrap_or(PROBE).min(PROBE);
            match pread_nowait(&fd, &mut buf[..wanted], at).ok()? {
                NowaitRead::Read(0) => return None,
                NowaitRead::Read(read) => at += read as u64,
                NowaitRead::WouldBlock => return Some(false),
                NowaitRead::Unsupported => return None,
            }
        }
        Some(true)
    }
}

/// Whether the page cache surely lacks some of these bytes. The answer reads nothing, while a read
/// that may not wait begins to read ahead before it gives up.
fn lacks_pages(fd: &OpenFile, bytes: Range<u64>) -> bool {
    let Some(len) = bytes.end.checked_sub(bytes.start) else {
        return false;
    };
    let pages = BlockRange::covering(bytes.start, len).len();
    cached_pages(fd, bytes.start, len).is_ok_and(|cached| cached < pages)
}

impl BackingFile for DirSource {
    fn open_backing(&self, file: &FileKey) -> io::Result<OwnedFd> {
        let fd = self
            .files
            .open_by_path(file, "opening")
            .map_err(io::Error::other)?;
        // The kernel reads through this one: it may wait for the disk.
        fcntl(&fd, FcntlArg::F_SETFL(OFlag::empty()))?;
        Ok(fd)
    }
}

impl Sparse for DirSource {
    fn seek(&self, file: &FileKey, offset: u64, what: Seek) -> Result<Option<u64>, SourceError> {
        let doing = "seeking";
        let failed = |error| SourceError::from_io(doing, error).about(file.file);
        // Seeking moves the position of the open file, which nothing here ever uses.
        let fd = self.files.file(file, doing)?;
        let Ok(from) = i64::try_from(offset) else {
            return Ok(None);
        };
        let whence = match what {
            Seek::Data => Whence::SeekData,
            Seek::Hole => Whence::SeekHole,
        };
        let found = match lseek(fd.as_fd(), from, whence) {
            Ok(found) => u64::try_from(found).ok(),
            Err(Errno::ENXIO) => None,
            Err(errno) => return Err(failed(errno.into())),
        };
        check(&fd, file, doing)?;
        Ok(found)
    }
}

impl std::fmt::Debug for Files {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Files")
            .field("root", &self.root)
            .field("open", &self.open.len())
            .finish_non_exhaustive()
    }
}
