//! Writes the metadata of EROFS file systems, without root, devices or programs.
//!
//! The data of files is on the device already, each file in one run of blocks; the caller has the
//! places. So a layer of an image can be written in one pass: the data of its files, the metadata of
//! the whole tree behind it, and the superblock, which is always the first block. A layer on top of it has the
//! data of its own files and new metadata, and the data of lower layers stays in place.
//!
//! The same tree at the same place gives the same bytes.
//!
//! ```
//! use blocks::{Attr, FileId, Inode, NodeData, NodeKind, Span, Timestamp, Tree, TreeParts};
//!
//! # let now = Timestamp::default();
//! # let attr = Attr { kind: NodeKind::Dir, perm: 0o755, uid: 0, gid: 0, nlink: 2, rdev: 0, size: 0,
//! #     blocks: 0, atime: now, mtime: now, ctime: now, source_inode: 1 };
//! let root = Inode { attr, data: NodeData::Dir { entries: Span::default() }, xattrs: Span::default() };
//! let tree = Tree::new(TreeParts { inodes: vec![root], ..TreeParts::default() })?;
//! let written = erofs::metadata(&tree, [0; 16], 1, &|_| 0)?;
//! assert_eq!(written.superblock[1024..1028], 0xe0f5_e1e2_u32.to_le_bytes());
//! assert_eq!(written.metadata.len(), 4096);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod dirs;
mod error;
mod metadata;
mod nodes;
mod xattrs;

pub use error::{BLOCK_BYTES, ErofsError};
pub use metadata::{Written, metadata};
