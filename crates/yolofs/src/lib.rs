//! The read-only file system of yolofs, and everything that makes it as fast as a warm one.
//!
//! - [`FileSystem`] is a plain Rust object: it implements the operations of FUSE on a
//!   [`Namespace`](blocks::Namespace) and a [`BlockSource`](blocks::BlockSource), does not depend on
//!   FUSE, and is tested against a model without mounting anything.
//! - [`Mount`] puts it into the kernel. The adapter between the two translates, calls and
//!   replies; all the other decisions are the file system's.
//! - The parts of a mount can be in different processes, and end separately: [`Connection`] is the kernel's
//!   end, [`Visible`] the mount at its place, and [`Serving`] the threads that answer, which
//!   another process can replace while users only wait.
//! - [`Serving::prewarm`] restores what recorded boots used: it looks names up through the
//!   mount, so that the kernel caches them, and pushes blocks into the kernel's page cache.
//!   Pushed blocks cost no request.
//!
//! A boot that finds everything in the kernel runs at the speed of a warm page cache; other reads
//! are answered from the boot image, and the rest from the source.
//!
//! ```
//! use std::sync::Arc;
//!
//! use blocks::testing::{MemSource, Node, tree};
//! use blocks::{Caller, FileId};
//! use yolofs::{CachePath, Config, FileSystem};
//!
//! let names = Arc::new(tree(&[Node::dir(&[("hello", 1)]), Node::file(5)])?);
//! let mut source = MemSource::default();
//! source.insert(names.key(FileId(1)).expect("it is a file"), b"hello".to_vec());
//! let fs = FileSystem::new(names, Arc::new(source), Config::default());
//!
//! // What the kernel would ask.
//! let me = Caller::default();
//! let hello = fs.lookup(me, FileId::ROOT, b"hello")?.node.expect("it has this name");
//! let mut bytes = [0; 16];
//! let length = fs.read(me, hello.file, 0, &mut bytes, CachePath::Through)?;
//! assert_eq!(&bytes[..length], b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod connection;
mod control;
mod errno;
mod fs;
mod fuse;
mod mount;
mod notify;
mod prewarm;
mod serving;
#[cfg(feature = "testing")]
pub mod testing;
mod visible;
mod walk;

pub use connection::{Connection, Hello, HelloError, Writes};
pub use control::{Control, EndSwitch};
pub use fs::{
    Backing, CachePath, Config, Counters, DirItem, Diverted, Entry, FileSystem, FsError, Ledger,
    Mode, Node, OpenDecision, PassedTo, ReadOutcome, Request, Space, XattrAnswers, XattrReply,
    is_program, node_id,
};
pub use mount::{Mount, MountError, MountOptions};
pub use prewarm::{Lock, PrewarmError, PrewarmOptions, PrewarmReport, Progress};
pub use serving::{End, Ended, NotRetired, Predecessors, ServeOptions, Serving};
pub use visible::{
    Busy, Itself, Layering, MountIds, MountTable, MountTarget, Mounter, Privileges, Readahead,
    Tried, Visible,
};
