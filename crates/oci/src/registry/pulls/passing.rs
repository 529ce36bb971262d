//! The bytes of a blob, handed on while they come.

use std::fmt;
use std::ops::ControlFlow;

use blocks::Digest;
use sha2::{Digest as _, Sha256};

use super::{RegistryError, Sink, Unfinished};
use crate::{BlobError, Descriptor};

/// Hashes the bytes that it passes on.
pub(super) struct Passing<'a> {
    take: &'a mut dyn FnMut(&[u8]) -> ControlFlow<()>,
    hasher: Sha256,
    len: u64,
}

impl fmt::Debug for Passing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Passing")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

impl<'a> Passing<'a> {
    pub(super) fn new(take: &'a mut dyn FnMut(&[u8]) -> ControlFlow<()>) -> Self {
        Self {
            take,
            hasher: Sha256::new(),
            len: 0,
        }
    }

    pub(super) fn finish(self, expected: Digest) -> Result<(), Unfinished> {
        let found = Digest(self.hasher.finalize().into());
        if found == expected {
            return Ok(());
        }
        Err(Unfinished::Wrong(BlobError::Digest { expected, found }))
    }
}

impl Sink for Passing<'_> {
    fn len(&self) -> u64 {
        self.len
    }

    /// What was handed on cannot be taken back. Should the same bytes be others this time, those that
    /// were handed on decide.
    fn restart(&mut self) -> Result<u64, RegistryError> {
        Ok(self.len)
    }

    fn append(&mut self, bytes: &[u8], blob: &Descriptor) -> Result<(), Unfinished> {
        let (expected, found) = (blob.size, self.len + bytes.len() as u64);
        if found > expected {
            return Err(Unfinished::Wrong(BlobError::Length { expected, found }));
        }
        self.hasher.update(bytes);
        self.len = found;
        match (self.take)(bytes) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Unfinished::Here(RegistryError::Cancelled)),
        }
    }
}
