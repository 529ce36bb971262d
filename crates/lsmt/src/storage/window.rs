//! A part of something that can be read.

use std::io;
use std::ops::Range;

use super::{Expected, ReadAt};
use crate::num::wide;

/// The bytes between two places of something larger.
#[derive(Debug)]
pub struct Window<R> {
    inner: R,
    range: Range<u64>,
}

impl<R: ReadAt> Window<R> {
    /// Returns the part within the range.
    pub fn new(inner: R, range: Range<u64>) -> Self {
        Self { inner, range }
    }
}

impl<R: ReadAt> ReadAt for Window<R> {
    fn size(&self) -> io::Result<u64> {
        Ok(self.range.end - self.range.start)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let end = offset.checked_add(wide(buffer.len()));
        if end.is_none_or(|end| end > self.range.end - self.range.start) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.inner.read_at(buffer, self.range.start + offset)
    }

    fn expect(&self, ranges: &[Range<u64>]) -> Option<Expected> {
        let at = |byte: u64| self.range.start.saturating_add(byte).min(self.range.end);
        let inner = ranges.iter().map(|range| at(range.start)..at(range.end));
        self.inner.expect(&inner.collect::<Vec<_>>())
    }
}
