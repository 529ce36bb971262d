//! A chunk as received: it is decompressed and verified by the thread that reads it first, and not at all if
//! it is not read.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use parking_lot::Mutex;

use super::Chunk;
use chunks::{ChunkError, ChunkId, Class, Stored};

/// A chunk that came, not verified until it is opened.
#[derive(Debug)]
pub(in crate::client) struct Arrived {
    id: ChunkId,
    /// Why it came, for the local store.
    class: Class,
    stored: Stored,
    /// The number of the connection on which it came.
    connection: usize,
    /// Held by the thread that opens it: others wait for the result.
    pub(super) opening: Mutex<()>,
    is_verified: AtomicBool,
}

impl Arrived {
    pub(super) const fn new(id: ChunkId, stored: Stored, class: Class, connection: usize) -> Self {
        Self {
            id,
            class,
            stored,
            connection,
            opening: Mutex::new(()),
            is_verified: AtomicBool::new(false),
        }
    }

    /// Returns its content, if it is valid.
    pub(super) fn content(&self) -> Result<Chunk, ChunkError> {
        self.stored.read(&self.id).map(Arc::new)
    }

    /// Returns whether it was never verified before, and marks it as verified.
    pub(super) fn is_first_time(&self) -> bool {
        !self.is_verified.swap(true, Relaxed)
    }

    /// Returns whether it was verified.
    pub(super) fn is_verified(&self) -> bool {
        self.is_verified.load(Relaxed)
    }

    pub(super) const fn connection(&self) -> usize {
        self.connection
    }

    pub(super) const fn len(&self) -> usize {
        self.stored.bytes.len()
    }

    /// Returns its id, its bytes as they came, and why it came.
    pub(in crate::client) const fn parts(&self) -> (&ChunkId, &Stored, Class) {
        (&self.id, &self.stored, self.class)
    }
}
