//! Layered block images, byte-compatible with overlaybd and `AgentENV`.
//!
//! An image is a stack of layers: each says of some sectors of the device what they hold, and the
//! topmost that says anything of a sector is right. `docs/block-image-format.md` is the format.
//!
//! This crate opens no files: it reads and writes through [`ReadAt`] and [`Storage`], of which files
//! and memory are implementations, and a cache of a registry's blobs may be another.
//!
//! ```
//! use std::sync::Arc;
//!
//! # fn main() -> lsmt::Result<()> {
//! # let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors");
//! # let open = |name: &str| std::fs::File::open(folder.join(name)).expect("a vector");
//! // A layer as registries have it: compressed, in a tar.
//! let blob = Arc::new(lsmt::FileStorage::new(open("A.lz4.4k.tar.obd")));
//! let layer = lsmt::open_blob(blob)?;
//! let stack = lsmt::Stack::new(vec![layer])?;
//! let mut superblock = [0; 1024];
//! stack.read_at(&mut superblock, 1024)?;
//! assert_eq!(superblock[56..58], [0x53, 0xef]);
//! # Ok(())
//! # }
//! ```
//!
//! - [`open_blob`] opens a sealed layer whatever is around it: [`unwrap_tar`], [`ZFile`], [`Layer`].
//! - [`Stack`] merges layers into one [`Index`] and reads the device.
//! - [`open_turbo_blob`] opens the metadata of a turboOCI layer over the [`GzipTar`] that has its data.
//! - [`Trace`] is a recording of reads.

#![forbid(unsafe_code)]
#![expect(dead_code, reason = "the writable layer comes next")]

mod blob;
mod crc;
mod error;
mod header;
mod index;
mod layer;
mod num;
mod segment;
mod stack;
mod storage;
mod tar;
mod trace;
mod turbo;
mod uuid;
mod zfile;

pub use blob::{open_blob, open_content, open_turbo_blob};
pub use error::{LsmtError, Result};
pub use header::{DEVICE_BYTES_MAX, MESSAGE_BYTES, OPEN_SEGMENTS_MAX, SEALED_SEGMENTS_MAX};
pub use index::{Index, LAYERS_MAX};
pub use layer::{Layer, LayerInfo};
pub use num::SECTOR;
pub use segment::{Content, SEGMENT_SECTORS_MAX, Segment};
pub use stack::{Extent, ExtentKind, Stack};
pub use storage::{FileStorage, MemoryStorage, ReadAt, Storage, Window};
pub use tar::{TAR_DATA_OFFSET, blob_range, unwrap_tar, wrap_tar};
pub use trace::{TRACE_READ_MAX, TRACE_RECORDS_MAX, Trace, TraceDialect, TraceRead};
pub use turbo::{AccessPoint, GzipIndex, GzipTar};
pub use uuid::Uuid;
pub use zfile::{Codec, Verify, ZFile, ZFileOptions, ZFileStyle, ZFileWriter};
