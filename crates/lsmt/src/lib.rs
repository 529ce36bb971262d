//! Layered block images, byte-compatible with overlaybd and `AgentENV`.
//!
//! An image is a stack of layers: each has the content of some sectors of the device, and the
//! topmost layer with a sector is valid. `docs/block-image-format.md` is the format.
//!
//! This crate opens no files: it reads and writes through [`ReadAt`] and [`Storage`], which files
//! and memory implement, and a cache of a registry's blobs can.
//!
//! ```
//! use std::sync::Arc;
//! use lsmt::{BlobOptions, DirFolder, Durability, LiveImage, NewUpper, Pace, Uuid};
//!
//! # fn main() -> lsmt::Result<()> {
//! # let vectors = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors");
//! # let dir = tempfile::tempdir().expect("a directory");
//! // A layer as registries have it: compressed, in a tar.
//! let file = std::fs::File::open(vectors.join("A.lz4.4k.tar.obd")).expect("a vector");
//! let layer = Arc::new(lsmt::open_blob(Arc::new(lsmt::FileStorage::new(file)))?);
//!
//! // A device in a folder of its own, over that layer.
//! let folder = Arc::new(DirFolder::new(dir.path()));
//! let size = layer.info().virtual_size;
//! let new = NewUpper { virtual_size: size, ..NewUpper::default() };
//! let live = LiveImage::create(folder, vec![layer], &new)?;
//! let image = live.image();
//!
//! let mut superblock = [0; 1024];
//! image.read_at(&mut superblock, 1024)?;
//! assert_eq!(superblock[56..58], [0x53, 0xef], "an ext4");
//! image.write_at(&[7; 4096], 1 << 20, Durability::Flushed)?;
//! image.trim(0..4096)?;
//! image.flush()?;
//!
//! // What was written becomes a sealed layer of the folder, while the device is in use.
//! let blobs = live.stack_and_commit(Uuid::NIL, b"my change", BlobOptions::default(), &Pace::unlimited())?;
//! assert_eq!(blobs, ["layer.2"]);
//! # Ok(())
//! # }
//! ```
//!
//! Reading:
//!
//! - [`open_blob`] opens a sealed layer in any wrapping: [`unwrap_tar`], [`ZFile`], [`Layer`].
//! - [`Stack`] merges layers into one [`Index`] and reads the device.
//! - [`open_turbo_blob`] opens the metadata of a turboOCI layer over the [`GzipTar`] that has its data.
//! - [`Trace`] is a recording of reads.
//!
//! Writing:
//!
//! - [`Upper`] is a writable layer; [`Image`] is the device of a [`Stack`] with one on top.
//! - [`LiveImage`] keeps an image in a [`Folder`], and exchanges its layers while it is in use:
//!   [`LiveImage::restack`], [`LiveImage::stack_and_commit`], [`LiveImage::collect`], which a
//!   [`Collector`] does in the background.
//! - [`Upper::commit`] and [`Stack::merge`] write sealed layers, and [`write_layer`] one of any data.
//!
//! No input is trusted: lengths are bounded before memory is allocated, and every error in
//! a blob is an [`LsmtError`].

#![forbid(unsafe_code)]

mod blob;
mod budget;
mod commit;
mod crc;
mod error;
mod header;
mod image;
mod index;
mod layer;
mod live;
mod num;
mod segment;
mod stack;
mod storage;
mod tar;
mod trace;
mod turbo;
mod upper;
mod uuid;
mod zfile;

pub use blob::{
    open_blob, open_blob_within, open_content, open_turbo_blob, open_turbo_blob_within,
};
pub use budget::{IMAGE_SEGMENTS_MAX, SegmentBudget};
pub use commit::{BlobOptions, Compression, LayerBody, Wrapper, write_layer};
pub use error::{LsmtError, Result};
pub use header::{DEVICE_BYTES_MAX, MESSAGE_BYTES, OPEN_SEGMENTS_MAX, SEALED_SEGMENTS_MAX};
pub use image::{Durability, Image};
pub use index::{Index, LAYERS_MAX};
pub use layer::{Layer, LayerInfo};
pub use live::{Collected, Collector, CollectorOptions, LiveImage, Pace};
pub use num::SECTOR;
pub use segment::{Content, SEGMENT_SECTORS_MAX, Segment};
pub use stack::{Extent, ExtentKind, Stack};
#[cfg(feature = "testing")]
pub use storage::crash;
pub use storage::{
    DirFolder, Expected, FileStorage, Folder, MemoryFolder, MemoryStorage, ReadAt, Storage, Window,
};
pub use tar::{TAR_DATA_OFFSET, blob_range, tar_around, unwrap_tar, wrap_tar};
pub use trace::{TRACE_READ_MAX, TRACE_RECORDS_MAX, Trace, TraceDialect, TraceRead};
pub use turbo::{AccessPoint, GzipIndex, GzipTar, make_gzip_index};
pub use upper::{NewUpper, Upper, UpperFiles, UpperKind, UpperUsage};
pub use uuid::Uuid;
pub use zfile::{Codec, Verify, ZFile, ZFileOptions, ZFileStyle, ZFileWriter};
