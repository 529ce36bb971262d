//! Builds the index of a source: reads each file once, cuts it into chunks and stores these.

use std::io::{self, Read};
use std::ops::ControlFlow;
use std::sync::Arc;

use blocks::{BlockSource, FileKey, NodeKind, SourceError, SourceErrorKind, Tree, is_zero};

use super::{CHUNK_BYTES, Index, IndexError, ZEROS};
use crate::{CHUNK_MAX, ChunkId, ChunkStore, Class, PutOutcome};

/// Why a chunk could not be kept.
pub type KeepError = Box<dyn std::error::Error + Send + Sync>;

/// Stores the chunks of an index that is being built: in this process, or in another.
pub trait Keep {
    /// Stores the chunk whose bytes are `raw`, unless it is there already.
    ///
    /// # Errors
    /// If there is no space for it, or the other process does not respond.
    fn keep(&self, id: &ChunkId, raw: &[u8]) -> Result<PutOutcome, KeepError>;
}

impl<S: ChunkStore + ?Sized> Keep for S {
    fn keep(&self, id: &ChunkId, raw: &[u8]) -> Result<PutOutcome, KeepError> {
        if self.contains(id) {
            return Ok(PutOutcome::Present);
        }
        Ok(self.put(id, raw, Class::Demand)?)
    }
}

/// Why a source could not be indexed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A file could not be read, or changed while it was.
    #[error("cannot read {path}")]
    Read {
        /// The path.
        path: String,
        /// The cause.
        source: SourceError,
    },
    /// A chunk could not be kept.
    #[error("cannot keep a chunk of {path}")]
    Keep {
        /// The path of the file.
        path: String,
        /// The cause.
        source: KeepError,
    },
    /// The source is too large for an index.
    #[error("the source cannot be indexed")]
    Index(#[from] IndexError),
    /// It was cancelled.
    #[error("cancelled")]
    Cancelled,
}

/// The result of indexing.
#[derive(Clone, Debug)]
pub struct Built {
    /// The index.
    pub index: Index,
    /// Bytes of all files.
    pub bytes: u64,
    /// Bytes of chunks that were not there before.
    pub new_bytes: u64,
}

/// Reads every file of `source`, whose metadata is `tree`, and stores its chunks in `store`. `watch`
/// receives the number of bytes read so far.
///
/// # Errors
/// If a file cannot be read in the version of `tree`, or a chunk cannot be stored.
pub fn build(
    label: &[u8],
    tree: &Arc<Tree>,
    source: &dyn BlockSource,
    store: &(impl Keep + ?Sized),
    watch: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<Built, BuildError> {
    let mut chunks = Vec::new();
    let mut tally = Tally::default();
    let mut buf = vec![0; CHUNK_MAX];
    for (file, inode) in tree.files() {
        if inode.attr.kind != NodeKind::File {
            continue;
        }
        let path = || String::from_utf8_lossy(&tree.path(file).unwrap_or_default()).into_owned();
        let version = inode.attr.version();
        let key = FileKey { file, version };
        let mut offset = 0;
        while offset < version.size {
            let left = version.size - offset;
            let len = usize::try_from(left.min(CHUNK_BYTES)).unwrap_or(CHUNK_MAX);
            let raw = &mut buf[..len];
            read(source, &key, offset, raw).map_err(|source| BuildError::Read {
                path: path(),
                source,
            })?;
            let id = tally.keep(store, raw).map_err(|source| BuildError::Keep {
                path: path(),
                source,
            })?;
            chunks.push(id);
            offset += len as u64;
            if watch(tally.bytes).is_break() {
                return Err(BuildError::Cancelled);
            }
        }
    }
    let index = Index::new(label, Arc::clone(tree), chunks)?;
    Ok(Built {
        index,
        bytes: tally.bytes,
        new_bytes: tally.new_bytes,
    })
}

/// Counts so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Bytes of all files.
    pub bytes: u64,
    /// Bytes of chunks that were not there before.
    pub new_bytes: u64,
}

impl Tally {
    /// Reads the content of a file to its end, and keeps its chunks in `store`.
    ///
    /// # Errors
    /// If it cannot be read, or a chunk cannot be kept.
    pub fn cut(
        &mut self,
        content: &mut dyn Read,
        store: &(impl Keep + ?Sized),
    ) -> io::Result<Vec<ChunkId>> {
        let mut chunks = Vec::new();
        let mut raw = Vec::with_capacity(CHUNK_MAX);
        loop {
            raw.clear();
            content.take(CHUNK_BYTES).read_to_end(&mut raw)?;
            if raw.is_empty() {
                return Ok(chunks);
            }
            chunks.push(self.keep(store, &raw).map_err(io::Error::other)?);
        }
    }

    fn keep(&mut self, store: &(impl Keep + ?Sized), raw: &[u8]) -> Result<ChunkId, KeepError> {
        self.bytes += raw.len() as u64;
        if is_zero(raw) {
            return Ok(ZEROS);
        }
        let id = ChunkId::of(raw);
        if store.keep(&id, raw)? == PutOutcome::Stored {
            self.new_bytes += raw.len() as u64;
        }
        Ok(id)
    }
}

fn read(
    source: &dyn BlockSource,
    key: &FileKey,
    offset: u64,
    raw: &mut [u8],
) -> Result<(), SourceError> {
    if source.read_at(key, offset, raw)? == raw.len() {
        return Ok(());
    }
    // The version says how long it is.
    Err(SourceError::new(SourceErrorKind::Io, "reading to the end").about(key.file))
}
