//! The read-only file system of yolofs, and everything that makes it as fast as a warm one.
//!
//! - [`FileSystem`] is a plain Rust object: it answers the verbs of FUSE from a
//!   [`Namespace`](blocks::Namespace) and a [`BlockSource`](blocks::BlockSource), knows nothing of
//!   FUSE, and is tested against a model without mounting anything.
//! - [`Mount`] puts it into the kernel. The adapter between the two translates, calls and
//!   replies; all the other decisions are the file system's.
//! - [`Mount::prewarm`] brings back what recorded boots touched: it looks names up through the
//!   mount, so that the kernel remembers them, and pushes blocks into the kernel's page cache.
//!   What was pushed costs no request.
//!
//! A boot that finds everything in the kernel runs at the speed of a warm page cache; what it
//! does not find is answered from the boot image, and the rest by the source.

#![forbid(unsafe_code)]

mod errno;
mod fs;
mod fuse;
mod inject;
mod mount;
mod notify;
mod prewarm;

pub use fs::{
    CachePath, Config, Counters, DirItem, Entry, FileSystem, FsError, Mode, Node, OpenDecision,
    ReadOutcome, Request, Space, XattrReply, node_id,
};
pub use mount::{Busy, End, Mount, MountError, MountOptions, Readahead};
pub use prewarm::{Lock, PrewarmError, PrewarmOptions, PrewarmReport, Progress};
