//! From the bytes of a layer as they lie there to its tar.

use std::cell::{Cell, RefCell};
use std::io::{self, BufReader, Read};
use std::ops::ControlFlow;

use blocks::Digest;

use super::{Limits, TarError};
use crate::{Verified, Watch};

/// Enough for the first bytes by which formats are known.
const MAGIC: usize = 4;
/// Bytes of a tar that are read at a time.
const BUFFER: usize = 128 << 10;
/// Memory that a zstd frame may ask for: 2 to this power, what `zstd -19 --long=27` needs.
const WINDOW_LOG_MAX: u32 = 27;

/// Returns the tar of a stored layer, as [`tar_of`] does. `reporter` receives how much of the
/// blob was read, and is also called for the output: a buffer of compressed zeros is gigabytes.
pub(crate) fn reporting_tar_of<'a>(
    blob: impl Read + 'a,
    diff_id: Digest,
    limits: &Limits,
    reporter: &'a ProgressReporter<'a>,
) -> io::Result<impl Read + 'a> {
    let told = ReportingReader {
        inner: blob,
        reporter,
        counts: Counts::Yes,
    };
    let tar = tar_of(told, diff_id, limits)?;
    Ok(BufReader::with_capacity(
        BUFFER,
        ReportingReader {
            inner: tar,
            reporter,
            counts: Counts::No,
        },
    ))
}

/// Returns the tar of a layer: decompressed, counted, and verified at its end.
pub(crate) fn tar_of<'a>(
    mut blob: impl Read + 'a,
    diff_id: Digest,
    limits: &Limits,
) -> io::Result<impl Read + 'a> {
    let mut magic = Vec::with_capacity(MAGIC);
    (&mut blob).take(MAGIC as u64).read_to_end(&mut magic)?;
    let is_gzip = magic.starts_with(&[0x1f, 0x8b]);
    let is_zstd = magic == [0x28, 0xb5, 0x2f, 0xfd];
    let whole = io::Cursor::new(magic).chain(blob);
    let tar: Box<dyn Read + 'a> = if is_gzip {
        Box::new(flate2::bufread::MultiGzDecoder::new(BufReader::new(whole)))
    } else if is_zstd {
        let mut decoder = zstd::Decoder::new(whole)?;
        decoder.window_log_max(WINDOW_LOG_MAX)?;
        Box::new(decoder)
    } else {
        Box::new(whole)
    };
    let bounded = Bounded {
        inner: tar,
        left: limits.bytes,
    };
    // A decoder gives a few bytes at a time, and headers are read one by one.
    Ok(BufReader::with_capacity(
        BUFFER,
        Verified::new(bounded, diff_id, None),
    ))
}

/// The callback for progress, called from two places.
pub(crate) struct ProgressReporter<'a> {
    watch: RefCell<Watch<'a>>,
    done: Cell<u64>,
}

impl<'a> ProgressReporter<'a> {
    pub(crate) fn new(watch: Watch<'a>) -> Self {
        Self {
            watch: RefCell::new(watch),
            done: Cell::new(0),
        }
    }
}

/// Whether the data read is the data whose progress is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counts {
    Yes,
    No,
}

struct ReportingReader<'a, R> {
    inner: R,
    reporter: &'a ProgressReporter<'a>,
    counts: Counts,
}

impl<R: Read> Read for ReportingReader<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let reporter = self.reporter;
        if (reporter.watch.borrow_mut())(reporter.done.get()).is_break() {
            return Err(io::Error::other(TarError::Cancelled));
        }
        let count = self.inner.read(into)?;
        if self.counts == Counts::Yes {
            reporter.done.set(reporter.done.get() + count as u64);
        }
        Ok(count)
    }
}

/// Reports progress, and stops if the callback breaks.
pub(crate) struct Watched<'a, R> {
    inner: R,
    done: u64,
    watch: Watch<'a>,
}

impl<'a, R> Watched<'a, R> {
    pub(crate) fn new(inner: R, watch: Watch<'a>) -> Self {
        let done = 0;
        Self { inner, done, watch }
    }
}

impl<R: Read> Read for Watched<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if let ControlFlow::Break(()) = (self.watch)(self.done) {
            return Err(io::Error::other(TarError::Cancelled));
        }
        let count = self.inner.read(into)?;
        self.done += count as u64;
        Ok(count)
    }
}

/// Fails where there is more than allowed: a small file can decompress to very much.
struct Bounded<R> {
    inner: R,
    left: u64,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(into)?;
        match self.left.checked_sub(count as u64) {
            Some(left) => self.left = left,
            None => return Err(io::Error::other(TarError::Limit("bytes"))),
        }
        Ok(count)
    }
}
