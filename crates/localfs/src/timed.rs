//! A source with a deadline.
//!
//! A network file system whose server is gone, or a disk that does not respond, blocks its readers
//! uninterruptibly and without end. A thread that serves a mount must not block like
//! that: it would also block requests that do not need the source. [`TimedSource`] makes such
//! calls on [helper threads](helpers) and waits for them no longer than its deadline. Then
//! the read fails with [`TimedOut`](blocks::SourceErrorKind::TimedOut); the helper returns
//! when the source does, and continues.
//!
//! Handing a read to another thread takes longer than a read from memory does. So it is first
//! tried without waiting, on the calling thread, which the disk file systems of Linux support
//! ([`Prompt`]); for reads that have to wait for a disk the hand-over is negligible.
//!
//! A thread that answers others from memory does not wait for helpers either. It calls within
//! [`prompt::now`], gets an error if the result needs waiting, and passes the whole request to the
//! [`waiter`](TimedSource::waiter): a helper finishes it, or it fails at the deadline.

mod call_progress;
mod helpers;
mod names;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use blocks::prompt::{self, Waiter};
use blocks::{
    AllAttrs, AttrSource, BackingFile, BlockRange, BlockSource, FileId, FileKey, Seek, SourceError,
    SourceErrorKind, Sparse,
};

pub(crate) use self::call_progress::{CallProgress, while_it_moves};
use self::helpers::Helpers;
pub(crate) use self::helpers::NoAnswer;
pub use self::helpers::{Patience, Timekeeping};
pub use self::names::PromptNames;

/// A source that can return what is available without waiting.
pub trait Prompt: Send + Sync {
    /// Reads like [`BlockSource::read_at`] if that takes no waiting, or returns `None`; then what
    /// is in `buf` must not be used.
    fn read_now(
        &self,
        file: &FileKey,
        offset: u64,
        buf: &mut [u8],
    ) -> Option<Result<usize, SourceError>>;

    /// Reads like [`BlockSource::read_once`] if that takes no waiting, or returns `None`.
    fn read_once_now(
        &self,
        file: &FileKey,
        offset: u64,
        buf: &mut [u8],
    ) -> Option<Result<usize, SourceError>> {
        self.read_now(file, offset, buf)
    }
}

/// A source whose results arrive within a deadline, or are errors.
#[derive(Debug)]
pub struct TimedSource<S> {
    source: Arc<S>,
    helpers: Arc<Helpers>,
}

impl<S: Send + Sync + 'static> TimedSource<S> {
    /// Returns `source` with a deadline.
    #[must_use]
    pub fn new(source: Arc<S>, patience: Patience) -> Self {
        Self {
            source,
            helpers: Arc::new(Helpers::new(patience)),
        }
    }

    /// Returns another source with the same deadline and the same threads.
    #[must_use]
    pub fn beside<T: Send + Sync + 'static>(&self, source: Arc<T>) -> TimedSource<T> {
        TimedSource {
            source,
            helpers: Arc::clone(&self.helpers),
        }
    }

    /// Returns the source itself, whose calls may block for ever.
    #[must_use]
    pub const fn source(&self) -> &Arc<S> {
        &self.source
    }

    /// Returns a waiter that runs requests on the threads of this source, within its deadline.
    #[must_use]
    pub fn waiter(&self) -> Arc<dyn Waiter> {
        Arc::clone(&self.helpers) as _
    }

    /// Returns what waiting for the source has come to.
    #[must_use]
    pub fn timekeeping(&self) -> Timekeeping {
        self.helpers.timekeeping()
    }

    /// Runs `ask` on the source, and waits for the result until the deadline.
    ///
    /// # Errors
    /// [`TimedOut`](SourceErrorKind::TimedOut) if there is none by then, an I/O error if `ask`
    /// panicked or no thread can be had; [`WouldWait`](SourceErrorKind::WouldWait) on a thread that
    /// [must not wait](prompt::now).
    pub fn within<T: Send + 'static>(
        &self,
        doing: &'static str,
        ask: impl FnOnce(&S) -> T + Send + 'static,
    ) -> Result<T, SourceError> {
        match prompt::patience() {
            prompt::Patience::None => {
                return Err(SourceError::new(SourceErrorKind::WouldWait, doing));
            }
            // It is one of ours, or like one of ours: there is nothing to hand over.
            prompt::Patience::Endless => return Ok(ask(&self.source)),
            prompt::Patience::Bounded => {}
        }
        let source = Arc::clone(&self.source);
        // The source may be dropped by the helper, later than by its owner: a helper that hangs
        // holds it.
        self.helpers
            .run(move || ask(&source))
            .map_err(|why| match why {
                NoAnswer::Late => SourceError::new(SourceErrorKind::TimedOut, doing),
                NoAnswer::Died => SourceError::new(SourceErrorKind::Io, doing),
                NoAnswer::NoThread(error) => SourceError::from_io(doing, error),
            })
    }

    /// [`within`](Self::within), for questions about a file that can fail by themselves.
    fn about<T: Send + 'static>(
        &self,
        file: &FileKey,
        doing: &'static str,
        ask: impl FnOnce(&S, &FileKey) -> Result<T, SourceError> + Send + 'static,
    ) -> Result<T, SourceError> {
        let key = *file;
        self.within(doing, move |source| ask(source, &key))
            .unwrap_or_else(|error| Err(error.about(key.file)))
    }
}

/// A way of reading a source.
type Read<S> = fn(&S, &FileKey, u64, &mut [u8]) -> Result<usize, SourceError>;

impl<S: Send + Sync + 'static> TimedSource<S> {
    fn read_by_helper(
        &self,
        file: &FileKey,
        offset: u64,
        buf: &mut [u8],
        read: Read<S>,
    ) -> Result<usize, SourceError> {
        let len = buf.len();
        // Into a buffer of the helper's: a late one must not write to the caller's.
        let bytes = self.about(file, "reading", move |source, key| {
            let mut bytes = vec![0; len];
            let read = read(source, key, offset, &mut bytes)?;
            bytes.truncate(read);
            Ok(bytes)
        })?;
        buf[..bytes.len()].copy_from_slice(&bytes);
        Ok(bytes.len())
    }
}

impl<S: BlockSource + Prompt + 'static> BlockSource for TimedSource<S> {
    fn read_at(&self, file: &FileKey, offset: u64, buf: &mut [u8]) -> Result<usize, SourceError> {
        if prompt::patience() == prompt::Patience::Endless {
            return self.source.read_at(file, offset, buf);
        }
        match self.source.read_now(file, offset, buf) {
            Some(answer) => answer,
            None => self.read_by_helper(file, offset, buf, S::read_at),
        }
    }

    fn read_once(&self, file: &FileKey, offset: u64, buf: &mut [u8]) -> Result<usize, SourceError> {
        if prompt::patience() == prompt::Patience::Endless {
            return self.source.read_once(file, offset, buf);
        }
        match self.source.read_once_now(file, offset, buf) {
            Some(answer) => answer,
            None => self.read_by_helper(file, offset, buf, S::read_once),
        }
    }

    fn advise(&self, file: &FileKey, ranges: &[BlockRange]) {
        // Never waits, by the contract of the trait.
        self.source.advise(file, ranges);
    }
}

impl<S: Sparse + 'static> Sparse for TimedSource<S> {
    fn seek(&self, file: &FileKey, offset: u64, what: Seek) -> Result<Option<u64>, SourceError> {
        self.about(file, "seeking", move |source, key| {
            source.seek(key, offset, what)
        })
    }
}

impl<S: AttrSource + 'static> AttrSource for TimedSource<S> {
    fn all_attrs(&self, file: FileId) -> Result<AllAttrs, SourceError> {
        self.within("reading all attributes", move |source| {
            source.all_attrs(file)
        })
        .unwrap_or_else(|error| Err(error.about(file)))
    }

    fn all_attrs_at(&self, file: FileId, path: &[u8]) -> Result<AllAttrs, SourceError> {
        let path = path.to_vec();
        self.within("reading all attributes", move |source| {
            source.all_attrs_at(file, &path)
        })
        .unwrap_or_else(|error| Err(error.about(file)))
    }
}

impl<S: BackingFile + 'static> BackingFile for TimedSource<S> {
    fn open_backing(&self, file: &FileKey) -> io::Result<OwnedFd> {
        let key = *file;
        self.within("opening", move |source| source.open_backing(&key))
            .unwrap_or_else(|error| Err(io::Error::other(error.about(key.file))))
    }
}

/// The default deadline of a source. A working disk responds within seconds even
/// when it is busy; Linux gives a SCSI disk as long before it resets it.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);
