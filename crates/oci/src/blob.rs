//! Blobs: bytes that are named by their SHA-256.

use std::io::{self, Read};

use blocks::Digest;
use sha2::{Digest as _, Sha256};

/// Why a blob does not match its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BlobError {
    /// Its bytes have another digest.
    #[error("its digest is {found}, but the manifest says {expected}")]
    Digest {
        /// The digest in its name.
        expected: Digest,
        /// The actual digest.
        found: Digest,
    },
    /// It has another length than expected.
    #[error("it has {found} bytes or more, but the manifest says {expected}")]
    Length {
        /// The expected length.
        expected: u64,
        /// Bytes seen so far.
        found: u64,
    },
}

impl From<BlobError> for io::Error {
    fn from(error: BlobError) -> Self {
        Self::new(io::ErrorKind::InvalidData, error)
    }
}

/// Returns the SHA-256 of bytes.
#[must_use]
pub fn digest_of(bytes: &[u8]) -> Digest {
    Digest(Sha256::digest(bytes).into())
}

/// Reads to the end, and returns the SHA-256 of the data and its length in bytes.
///
/// # Errors
/// Those of the reader.
pub fn digest_and_len(mut reader: impl Read) -> io::Result<(Digest, u64)> {
    let mut hasher = Sha256::new();
    let len = io::copy(&mut reader, &mut hasher)?;
    Ok((Digest(hasher.finalize().into()), len))
}

/// A reader that counts and hashes the data, and fails at the end of a wrong blob.
///
/// Data that was read before the end is not verified: callers must not use it until the reader has
/// reported the end.
#[derive(Debug)]
pub struct Verified<R> {
    inner: R,
    hasher: Sha256,
    expected: Digest,
    /// The expected length, if it is known.
    len: Option<u64>,
    seen: u64,
}

impl<R: Read> Verified<R> {
    /// Returns a reader that expects this digest, and this many bytes if it is known.
    pub fn new(inner: R, expected: Digest, len: Option<u64>) -> Self {
        Self {
            inner,
            hasher: Sha256::new(),
            expected,
            len,
            seen: 0,
        }
    }

    /// Returns the bytes that have passed.
    pub fn seen(&self) -> u64 {
        self.seen
    }

    fn check_end(&self) -> Result<(), BlobError> {
        if let Some(expected) = self.len.filter(|&len| len != self.seen) {
            let found = self.seen;
            return Err(BlobError::Length { expected, found });
        }
        let found = Digest(self.hasher.clone().finalize().into());
        if found == self.expected {
            Ok(())
        } else {
            let expected = self.expected;
            Err(BlobError::Digest { expected, found })
        }
    }
}

impl<R: Read> Read for Verified<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        let count = self.inner.read(into)?;
        if count == 0 {
            self.check_end()?;
            return Ok(0);
        }
        self.hasher.update(&into[..count]);
        self.seen += count as u64;
        match self.len {
            Some(expected) if self.seen > expected => {
                let found = self.seen;
                Err(BlobError::Length { expected, found }.into())
            }
            _ => Ok(count),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8], expected: Digest, len: Option<u64>) -> Result<Vec<u8>, String> {
        let mut out = Vec::new();
        let mut reader = Verified::new(bytes, expected, len);
        match reader.read_to_end(&mut out) {
            Ok(_) => Ok(out),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn what_is_right_passes() {
        let digest = digest_of(b"hello");
        assert_eq!(read(b"hello", digest, Some(5)), Ok(b"hello".to_vec()));
        assert_eq!(read(b"hello", digest, None), Ok(b"hello".to_vec()));
        assert_eq!(read(b"", digest_of(b""), Some(0)), Ok(Vec::new()));
    }

    #[test]
    fn what_is_wrong_fails_at_the_end_at_the_latest() {
        let digest = digest_of(b"hello");
        for (bytes, len) in [
            (&b"hellO"[..], Some(5)),
            (b"hell", Some(5)),
            (b"hello!", Some(5)),
            (b"hell", None),
        ] {
            assert!(read(bytes, digest, len).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn an_endless_blob_is_stopped_at_its_length() {
        let mut reader = Verified::new(io::repeat(7), digest_of(b""), Some(10_000));
        assert!(io::copy(&mut reader, &mut io::sink()).is_err());
        assert!(reader.seen() < 100_000);
    }
}
