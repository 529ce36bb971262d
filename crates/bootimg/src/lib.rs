//! Boot images: the file format, reading and writing, and the store.
//!
//! A boot image contains what the boots of one source used: its whole metadata
//! ([`blocks::Tree`]), the used blocks in the order in which boots need them, and the
//! [`blocks::ReplayPlan`] with the place of each block. `docs/bootimg-format.md` is the
//! format; the modules follow it.
//!
//! - [`write_image`] makes one from a plan and a source.
//! - [`Image`] is an open one. [`Image::attach`] matches it with the present source, and
//!   returns an [`Attached`], a [`blocks::BlockCache`] in the file ids of the new tree: changed files
//!   are left out, and every byte is verified each time it leaves the file.
//! - [`Image::load`] reads all of one into memory in one sequential pass.
//! - [`Store`] keeps many of them, shares equal blocks between them, and evicts the least
//!   valuable when it grows too large. A [`Stack`] in it lists the layers of a container image,
//!   each of which has its own boot image.
//!
//! ```
//! use std::sync::Arc;
//!
//! use blocks::testing::{MemSource, Node, tree};
//! use blocks::{BlockCache as _, BlockIndex, BlockRange, Extent, FileId, Lookup, ReplayPlan, SourceId, Timestamp};
//! use bootimg::{Image, SourceInfo, Variant, WriteRequest, unwatched, write_image};
//!
//! // A source of one file, of which boots read the first block.
//! let tree = tree(&[Node::dir(&[("program", 1)]), Node::file(10_000)])?;
//! let program = tree.key(FileId(1)).expect("it is a file");
//! let mut source = MemSource::default();
//! source.insert(program, vec![7; 10_000]);
//! let range = BlockRange::with_len(BlockIndex(0), 1);
//! let extent = Extent { file: program.file, range, bin: 0, seen: 1 };
//! let plan = ReplayPlan { runs: 1, bin_ms: 100, extents: vec![extent], ..ReplayPlan::default() };
//! let info = SourceInfo {
//!     id: SourceId::of_label(b"dir:/srv"),
//!     label: "dir:/srv".to_owned(),
//!     ..SourceInfo::default()
//! };
//!
//! let dir = tempfile::tempdir()?;
//! let path = dir.path().join("program.bimg");
//! let request = WriteRequest { tree: &tree, info: &info, plan: &plan, blocks: &source, variant: Variant::Mapped };
//! write_image(&path, &request, &mut unwatched)?;
//!
//! // Before the next boot: what is in the boot image needs the source no more.
//! let attached = Arc::new(Image::open(&path)?).attach(&tree);
//! let mut block = [0; 4096];
//! assert_eq!(attached.get(&program, range, &mut block), Lookup::Hit { blocks: 1 });
//! assert_eq!(block, [7; 4096]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod against;
mod attach;
mod backing;
mod codec;
mod copy;
mod data;
mod dump;
mod durable;
mod error;
mod extents;
mod first_of;
mod header;
mod holds;
mod id;
mod index;
mod layout;
mod load;
mod merge;
mod meta;
mod names;
mod plan;
mod progress;
mod reader;
mod residue;
mod scan;
mod squeeze;
mod stack;
mod store;
#[cfg(feature = "testing")]
pub mod testing;
mod touches;
mod writer;

// The sample of the integration tests calls us by our name.
#[cfg(test)]
extern crate self as bootimg;
#[cfg(test)]
#[path = "../tests/sample/mod.rs"]
mod sample;

pub use against::{AgainstReport, FileDifference};
pub use attach::{AttachReport, Attached, AttachedCounts, Hint, Passing};
pub use dump::DumpRow;
pub use error::{FormatError, OpenError, StoreError, WriteError};
pub use first_of::FirstOf;
pub use header::Variant;
pub use id::ImageId;
pub use index::{ExtentIndex, FileExtents, Find};
pub use load::{Cancelled, DamagedExtent, LoadReport, VerifyReport};
pub use merge::{Merged, merge, unite};
pub use meta::{ImageInfo, SourceInfo};
pub use names::{decode_names, encode_names};
pub use plan::{PLAN_ENTRIES_MAX, PLAN_MAX, decode_plan, encode_plan};
pub use progress::{Progress, Watch, unwatched};
pub use reader::Image;
pub use residue::Residue;
pub use stack::{Stack, StackError, layer_name, place_name};
pub use store::{
    AddReport, CopyParts, FasterCopies, FasterCopy, GcMode, GcReport, Pass, PassedImage,
    SharedGroup, Store, StoreConfig, StoreVerifyReport, StoredImage, StoredPart, StoredParts,
    StoredVerifyReport, check_name,
};
pub use writer::{
    DropReason, DroppedFile, WriteReport, WriteRequest, write_image, write_passing_image,
};
