//! The types that all crates of yolofs share: blocks, files, versions and boots,
//! and the interfaces between storage and serving.
//!
//! No I/O happens here. The crates above interact only through these types:
//!
//! - [`Tree`] is the metadata of a source, all of it, immutable: one scan makes it, the boot
//!   image stores it. [`Namespace`] is the interface that the file system uses.
//! - [`BlockSource`] is authoritative and never misses; [`BlockCache`] may miss, and its loss
//!   costs only speed. [`CachedSource`] makes one source of both, so tiers nest.
//! - [`BlockDevice`] is a device of fixed size, read and written in blocks, that can be exported.
//! - [`Event`] is one action of a boot, reported to an [`Observer`]; many of them, merged, are a
//!   [`ReplayPlan`]: the blocks that the next boot will need, in order.
//!
//! ```
//! use blocks::{BLOCK_SIZE, BlockIndex, BlockRange};
//!
//! // A read of 100 bytes across the border of two blocks needs both.
//! let range = BlockRange::covering(BLOCK_SIZE as u64 - 50, 100);
//! assert_eq!((range.start(), range.len()), (BlockIndex(0), 2));
//! ```

#![forbid(unsafe_code)]

mod access;
mod attr;
mod block;
mod cached;
mod compare;
mod device;
mod digest;
mod error;
mod id;
mod input;
mod namespace;
mod plan;
pub mod prompt;
mod range_set;
mod source;
mod swap;
#[cfg(feature = "testing")]
pub mod testing;
mod tree;

pub use access::{Access, Caller, Event, Observer, Touch, Warmth};
pub use attr::{Attr, NodeKind};
pub use block::{BLOCK_SHIFT, BLOCK_SIZE, BlockIndex, BlockRange};
pub use cached::{CacheCounts, CachedSource, Miss};
pub use compare::{Aspect, Difference, Likeness, compare};
pub use device::{
    BlockDevice, Content, DeviceAccess, DeviceError, DeviceErrorKind, DeviceExtent, DeviceInfo,
    Durability, Space,
};
pub use digest::{Digest, ParseDigestError};
pub use error::{SourceError, SourceErrorKind};
pub use id::{ContentId, FileId, FileKey, SourceId, Timestamp, Version};
pub use input::{Broken, Input, is_zero};
pub use namespace::{ACCESS_LIST, EntryRef, LINKS_MAX, Lifetime, Namespace};
pub use plan::{Extent, ReplayPlan};
pub use range_set::RangeSet;
pub use source::{
    AllAttrs, AttrSource, BackingFile, BlockCache, BlockSource, FileWriter, Lookup, Residency,
    Seek, Sparse, WholeCopies,
};
pub use swap::SwapCache;
pub use tree::{
    DecodeTreeError, DirEntry, Inode, NAME_MAX, NodeData, PATH_LIMIT, Paths, Span, TARGET_MAX,
    Tree, TreeError, TreeParts, Xattr,
};
