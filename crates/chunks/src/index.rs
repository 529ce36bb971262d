//! The index of a source: its metadata, and the chunks of its files (`docs/nicfetch-protocol.md`).

mod build;
mod packed;

use std::ops::Range;
use std::sync::Arc;

use blocks::{Broken, ContentId, DecodeTreeError, FileId, Input, NodeKind, Tree};

use crate::{CHUNK_MAX, ChunkId};

pub use build::{BuildError, Built, Keep, KeepError, Tally, build};
pub use packed::{pack, unpack};

/// Bytes of a chunk, as a length in a file.
pub const CHUNK_BYTES: u64 = CHUNK_MAX as u64;
/// The largest index: a tree of two million files takes 200 MiB.
pub const INDEX_MAX: u64 = 256 << 20;
/// The most chunks of one index: 2 TiB.
pub const CHUNKS_MAX: u64 = 1 << 24;
/// The longest label.
pub const LABEL_MAX: usize = 255;
/// The id of a chunk of zeros, which is never requested.
pub const ZEROS: ChunkId = ContentId([0; 32]);

const MAGIC: [u8; 8] = *b"\x89NFIDX\r\n";
const VERSION: u32 = 1;
const HEAD_BYTES: usize = 48;
const ID_BYTES: usize = 32;

/// Why an index cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IndexError {
    /// It is not an index.
    #[error("not an index of nicfetch")]
    Magic,
    /// It was written by another release.
    #[error("version {found} of the index is not known")]
    Version {
        /// The version in its head.
        found: u32,
    },
    /// It is larger than allowed.
    #[error("an index has {bytes} bytes, at most {INDEX_MAX} are allowed")]
    TooLarge {
        /// How large it would be.
        bytes: u64,
    },
    /// It is damaged, or is not the requested one.
    #[error("the index is damaged: its hash differs")]
    Hash,
    /// A part breaks a rule.
    #[error(transparent)]
    Broken(#[from] Broken),
    /// Its tree is invalid.
    #[error("the file tree in the index cannot be decoded")]
    Tree(#[from] DecodeTreeError),
}

/// The place of a chunk: its file, its offset and its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkLocation {
    /// The file.
    pub file: FileId,
    /// The offset of its first byte in the file.
    pub offset: u64,
    /// How many bytes it has: 1 to [`CHUNK_MAX`].
    pub len: u32,
}

/// The metadata of a source, and what its files consist of. Immutable.
#[derive(Clone, Debug)]
pub struct Index {
    label: Vec<u8>,
    tree: Arc<Tree>,
    chunks: Vec<ChunkId>,
    /// The number of the first chunk of each file that has any, in ascending order of both.
    files: Vec<(u32, FileId)>,
    bytes: Arc<[u8]>,
    id: ContentId,
}

impl Index {
    /// Makes an index of a tree and the chunks of its files, in the order of its inodes.
    ///
    /// # Errors
    /// If there are more or fewer chunks than the tree has room for, or too many of anything.
    pub fn new(label: &[u8], tree: Arc<Tree>, chunks: Vec<ChunkId>) -> Result<Self, IndexError> {
        let files = files_of(&tree, chunks.len())?;
        let encoded = tree.encode();
        let len = HEAD_BYTES + label.len() + encoded.len() + chunks.len() * ID_BYTES + ID_BYTES;
        let rule = |rule| Broken {
            what: "index",
            rule,
        };
        if len as u64 > INDEX_MAX {
            return Err(IndexError::TooLarge { bytes: len as u64 });
        }
        if label.len() > LABEL_MAX {
            return Err(rule("its label is too long").into());
        }
        let mut out = Vec::with_capacity(len);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        for count in [label.len(), chunks.len()] {
            let count = u32::try_from(count).map_err(|_| rule("it has too many chunks"))?;
            out.extend_from_slice(&count.to_le_bytes());
        }
        for number in [encoded.len() as u64, len as u64, 0] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(label);
        out.extend_from_slice(&encoded);
        chunks.iter().for_each(|id| out.extend_from_slice(&id.0));
        let id = ContentId::of(&out);
        out.extend_from_slice(&id.0);
        Ok(Self {
            label: label.to_vec(),
            tree,
            chunks,
            files,
            bytes: out.into(),
            id,
        })
    }

    /// Reads an index.
    ///
    /// # Errors
    /// If it is damaged or breaks a rule. Hostile bytes cost time and memory in proportion to
    /// their number.
    pub fn decode(bytes: &[u8]) -> Result<Self, IndexError> {
        if bytes.len() as u64 > INDEX_MAX {
            let bytes = bytes.len() as u64;
            return Err(IndexError::TooLarge { bytes });
        }
        let mut input = Input::new("index", bytes);
        if input.array()? != MAGIC {
            return Err(IndexError::Magic);
        }
        let found = input.u32()?;
        if found != VERSION || input.u32()? != 0 {
            return Err(IndexError::Version { found });
        }
        let (body, seal) = bytes
            .split_last_chunk::<ID_BYTES>()
            .ok_or(input.broken("it ends early"))?;
        let id = ContentId::of(body);
        if id.0 != *seal {
            return Err(IndexError::Hash);
        }
        let (label, chunks) = (input.count()?, input.count()?);
        let (tree, len) = (input.u64()?, input.u64()?);
        if input.u64()? != 0 || len != bytes.len() as u64 || label > LABEL_MAX {
            return Err(input.broken("a number in its head is wrong").into());
        }
        let label = input.take(label)?.to_vec();
        let tree = input.take(usize::try_from(tree).unwrap_or(usize::MAX))?;
        let chunks = input.records::<ID_BYTES>(chunks)?;
        input.take(ID_BYTES)?;
        input.end()?;
        let tree = Arc::new(Tree::decode(tree)?);
        Ok(Self {
            label,
            files: files_of(&tree, chunks.len())?,
            tree,
            chunks: chunks.iter().map(|id| ContentId(*id)).collect(),
            bytes: bytes.into(),
            id,
        })
    }

    /// Returns its id: the hash of its bytes.
    #[must_use]
    pub const fn id(&self) -> ContentId {
        self.id
    }

    /// Returns it as bytes.
    #[must_use]
    pub const fn bytes(&self) -> &Arc<[u8]> {
        &self.bytes
    }

    /// Returns the name that its creator gave to the source.
    #[must_use]
    pub fn label(&self) -> &[u8] {
        &self.label
    }

    /// Returns the metadata of the source.
    #[must_use]
    pub const fn tree(&self) -> &Arc<Tree> {
        &self.tree
    }

    /// Returns the ids of all chunks, by number.
    #[must_use]
    pub fn chunks(&self) -> &[ChunkId] {
        &self.chunks
    }

    /// Returns the id of a chunk.
    #[must_use]
    pub fn chunk(&self, number: u32) -> Option<ChunkId> {
        self.chunks.get(number as usize).copied()
    }

    /// Returns the place of a chunk.
    #[must_use]
    pub fn place(&self, number: u32) -> Option<ChunkLocation> {
        if number as usize >= self.chunks.len() {
            return None;
        }
        let after = self.files.partition_point(|(first, _)| *first <= number);
        let (first, file) = *self.files.get(after.checked_sub(1)?)?;
        let offset = u64::from(number - first) * CHUNK_BYTES;
        let left = self.tree.inode(file)?.attr.size.checked_sub(offset)?;
        let len = u32::try_from(left.min(CHUNK_BYTES)).ok()?;
        Some(ChunkLocation { file, offset, len })
    }

    /// Returns the ids of the chunks of a file.
    #[must_use]
    pub fn chunks_of(&self, file: FileId) -> &[ChunkId] {
        let numbers = self.covering(file, 0, u64::MAX);
        &self.chunks[numbers.start as usize..numbers.end as usize]
    }

    /// Returns the numbers of the chunks that `len` bytes of `file` from `offset` lie in, as far
    /// as the file reaches.
    #[must_use]
    pub fn covering(&self, file: FileId, offset: u64, len: u64) -> Range<u32> {
        let found = self.files.binary_search_by_key(&file, |(_, file)| *file);
        let Some((first, size)) = found.ok().and_then(|at| {
            let size = self.tree.inode(file)?.attr.size;
            Some((self.files[at].0, size))
        }) else {
            return 0..0;
        };
        let end = offset.saturating_add(len).min(size);
        if offset >= end {
            return 0..0;
        }
        // Both fit: a tree with more chunks than the table was refused.
        let number = |chunk: u64| first + u32::try_from(chunk).unwrap_or(0);
        number(offset / CHUNK_BYTES)..number((end - 1) / CHUNK_BYTES) + 1
    }
}

/// Returns where each file's chunks begin, if there are as many as the files have.
fn files_of(tree: &Tree, chunks: usize) -> Result<Vec<(u32, FileId)>, Broken> {
    let rule = |rule| Broken {
        what: "index",
        rule,
    };
    let mut files = Vec::new();
    let mut next = 0_u64;
    for (file, inode) in tree.files() {
        if inode.attr.kind != NodeKind::File || inode.attr.size == 0 {
            continue;
        }
        let first = u32::try_from(next).map_err(|_| rule("it has too many chunks"))?;
        files.push((first, file));
        next = next.saturating_add(inode.attr.size.div_ceil(CHUNK_BYTES));
        if next > CHUNKS_MAX {
            return Err(rule("it has too many chunks"));
        }
    }
    if next != chunks as u64 {
        return Err(rule("its chunks are not those of its files"));
    }
    Ok(files)
}

#[cfg(test)]
mod tests;
