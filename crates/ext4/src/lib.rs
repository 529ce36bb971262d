//! Writes the metadata of ext4 file systems, without root, devices or programs.
//!
//! The data of files is on the device already, each file in one run of blocks; the caller has the
//! places. So a layer of an image can be written in one pass: the data of its files, directories behind
//! it, and what has a fixed place ([`Geometry`]): the superblock, the descriptors of groups, bitmaps and
//! inodes. A layer on top of it has the data of its own files and new metadata, and the data of lower
//! layers stays in place. What is not written must read as zeros, as the holes of an image do.
//!
//! The same tree at the same place gives the same bytes. The file system has no journal and no copies of its
//! superblock, so that a run of blocks is never interrupted; Linux mounts it to read and to write.
//!
//! ```
//! use blocks::{Attr, FileId, Inode, NodeData, NodeKind, Span, Timestamp, Tree, TreeParts};
//! use ext4::{Geometry, Volume};
//!
//! # let now = Timestamp::default();
//! # let attr = Attr { kind: NodeKind::Dir, perm: 0o755, uid: 0, gid: 0, nlink: 2, rdev: 0, size: 0,
//! #     blocks: 0, atime: now, mtime: now, ctime: now, source_inode: 1 };
//! let root = Inode { attr, data: NodeData::Dir { entries: Span::default() }, xattrs: Span::default() };
//! let tree = Tree::new(TreeParts { inodes: vec![root], ..TreeParts::default() })?;
//! let geometry = Geometry::new(64 << 20)?;
//! let volume = Volume { geometry, uuid: [1; 16], tree: &tree, place: &|_| 0 };
//! let written = ext4::metadata(&volume, geometry.data_start(), 0)?;
//! let first = &written.runs.iter().find(|run| run.block == 0).expect("the first block").bytes;
//! assert_eq!(first[1024 + 56..1024 + 58], 0xef53_u16.to_le_bytes());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod acl;
mod dirs;
mod error;
mod extents;
mod geometry;
mod groups;
mod inodes;
mod metadata;
mod run;
mod superblock;
mod xattrs;

pub use error::{BLOCK_BYTES, Ext4Error};
pub use geometry::Geometry;
pub use metadata::{Volume, Written, metadata};
pub use run::Run;
