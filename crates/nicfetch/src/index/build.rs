//! Making an index: every file is read once, cut into chunks, and its chunks are kept.

use std::ops::ControlFlow;
use std::sync::Arc;

use blocks::{BlockSource, FileKey, NodeKind, SourceError, SourceErrorKind, Tree, is_zero};

use super::{CHUNK_BYTES, Index, IndexError, ZEROS};
use crate::{CHUNK_MAX, ChunkId, ChunkStore, Class, PutError, PutOutcome};

/// Why a source could not be indexed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A file could not be read, or changed while it was.
    #[error("cannot read {path}")]
    Read {
        /// Which one.
        path: String,
        /// Why not.
        source: SourceError,
    },
    /// A chunk could not be kept.
    #[error("cannot keep a chunk of {path}")]
    Keep {
        /// Of which file.
        path: String,
        /// Why not.
        source: PutError,
    },
    /// The source is too large for an index.
    #[error("the source cannot be indexed")]
    Index(#[from] IndexError),
    /// Somebody wanted it to stop.
    #[error("cancelled")]
    Cancelled,
}

/// What indexing came to.
#[derive(Clone, Debug)]
pub struct Built {
    /// The index.
    pub index: Index,
    /// Bytes of all files.
    pub bytes: u64,
    /// Bytes of chunks that were not there before.
    pub new_bytes: u64,
}

/// Reads every file of `source`, whose metadata `tree` is, and keeps its chunks in `store`. The
/// watch is told how many bytes are done.
///
/// # Errors
/// If a file cannot be read in the version that the tree says, or a chunk cannot be kept.
pub fn build(
    label: &[u8],
    tree: &Arc<Tree>,
    source: &dyn BlockSource,
    store: &dyn ChunkStore,
    watch: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<Built, BuildError> {
    let mut chunks = Vec::new();
    let (mut bytes, mut new_bytes) = (0, 0);
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
            let (id, outcome) = keep(store, raw).map_err(|source| BuildError::Keep {
                path: path(),
                source,
            })?;
            chunks.push(id);
            offset += len as u64;
            bytes += len as u64;
            if outcome == PutOutcome::Stored {
                new_bytes += len as u64;
            }
            if watch(bytes).is_break() {
                return Err(BuildError::Cancelled);
            }
        }
    }
    let index = Index::new(label, Arc::clone(tree), chunks)?;
    Ok(Built {
        index,
        bytes,
        new_bytes,
    })
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

fn keep(store: &dyn ChunkStore, raw: &[u8]) -> Result<(ChunkId, PutOutcome), PutError> {
    if is_zero(raw) {
        return Ok((ZEROS, PutOutcome::Present));
    }
    let id = ChunkId::of(raw);
    if store.contains(&id) {
        return Ok((id, PutOutcome::Present));
    }
    Ok((id, store.put(&id, raw, Class::Demand)?))
}
