//! Little-endian numbers and sizes: the alphabet of the format.

use crate::FormatError;

/// A page: header, footer, block.
pub(crate) const PAGE: usize = blocks::BLOCK_SIZE;
/// A page, as a length in a file.
pub(crate) const PAGE_BYTES: u64 = 1 << blocks::BLOCK_SHIFT;
/// Bytes of a BLAKE3 hash.
pub(crate) const HASH: usize = 32;

/// Returns the hash of `bytes`.
pub(crate) fn hash(bytes: &[u8]) -> [u8; HASH] {
    *blake3::hash(bytes).as_bytes()
}

/// Returns the length of something in memory as a length in a file.
pub(crate) const fn len64(len: usize) -> u64 {
    len as u64 // usize is at most 64 bits wide wherever Rust runs
}

/// Returns a length in a file as a length in memory; one that cannot be is as good as endless.
pub(crate) fn len_usize(len: u64) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}

/// Bytes that are read from front to back, each once.
#[derive(Debug)]
pub(crate) struct Input<'a> {
    what: &'static str,
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    /// Returns the bytes of the part called `what` as input.
    pub(crate) const fn new(what: &'static str, bytes: &'a [u8]) -> Self {
        Self { what, rest: bytes }
    }

    /// Returns the error that says that `rule` was broken.
    pub(crate) const fn broken(&self, rule: &'static str) -> FormatError {
        FormatError::Rule {
            what: self.what,
            rule,
        }
    }

    /// Takes the next `len` bytes.
    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], FormatError> {
        let (head, rest) = self
            .rest
            .split_at_checked(len)
            .ok_or(self.broken("it ends early"))?;
        self.rest = rest;
        Ok(head)
    }

    /// Takes a table of `count` records of `N` bytes. Nothing is allocated.
    pub(crate) fn records<const N: usize>(
        &mut self,
        count: usize,
    ) -> Result<&'a [[u8; N]], FormatError> {
        let len = count.checked_mul(N).ok_or(self.broken("it ends early"))?;
        let (records, _) = self.take(len)?.as_chunks::<N>();
        Ok(records)
    }

    /// Takes the next `N` bytes.
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        let (head, rest) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or(self.broken("it ends early"))?;
        self.rest = rest;
        Ok(*head)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, FormatError> {
        self.array().map(u8::from_le_bytes)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, FormatError> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, FormatError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, FormatError> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn i64(&mut self) -> Result<i64, FormatError> {
        self.array().map(i64::from_le_bytes)
    }

    /// Returns a number of elements.
    pub(crate) fn count(&mut self) -> Result<usize, FormatError> {
        self.u32().map(|count| count as usize)
    }

    /// Succeeds if everything was taken.
    pub(crate) fn end(&self) -> Result<(), FormatError> {
        if self.rest.is_empty() {
            return Ok(());
        }
        Err(self.broken("something follows its end"))
    }

    /// Succeeds if all that is left is zero.
    pub(crate) fn zeros(&self) -> Result<(), FormatError> {
        if is_zero(self.rest) {
            return Ok(());
        }
        Err(self.broken("a reserved field is in use"))
    }
}

/// Returns whether all bytes are zero.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    // In chunks: the compiler makes vector code of the inner loop, and data that is not zero
    // ends the outer one at once.
    bytes
        .chunks(256)
        .all(|chunk| chunk.iter().fold(0, |acc, byte| acc | byte) == 0)
}
