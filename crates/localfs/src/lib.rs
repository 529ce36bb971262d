//! A local directory or disk image as a source of a mount.
//!
//! - [`SourceRoot`] is the opened source. It holds a directory descriptor, because the mount may
//!   later cover the very path it was opened by.
//! - [`scan`] reads all metadata into a [`blocks::Tree`].
//! - [`DirSource`] reads contents and verifies for each read that they are of the requested version.
//! - [`TimedSource`] returns within a deadline, whether the disk responds or not.
//! - [`LazyTree`] has the names of a source that was not scanned, read on request.
//! - [`LiveTree`] has the names of a source that may change while it is mounted.
//!
//! Nothing here ever follows a symbolic link below the root: every name is opened by
//! `openat2(2)` beneath the root's descriptor (Linux 5.6), so a source cannot lead out of itself.
//!
//! ```
//! use localfs::{SourceRoot, scan};
//!
//! let dir = tempfile::tempdir()?;
//! std::fs::write(dir.path().join("file"), "content")?;
//! let root = SourceRoot::open(dir.path())?;
//! let scan = scan(&root, |_| {})?;
//! assert_eq!(scan.tree.len(), 2, "the directory and its file");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod attr;
mod dir_source;
mod disk_format;
mod disk_inode;
mod error;
mod lazy;
mod live;
mod open;
mod qcow2;
mod root;
mod scan;
mod shown;
mod timed;

pub use dir_source::DirSource;
pub use disk_format::DiskFormat;
pub use error::LocalError;
pub use lazy::LazyTree;
pub use live::LiveTree;
pub use qcow2::Qcow2Error;
pub use root::{SourceKind, SourceRoot, canonical_within};
pub use scan::{Note, Progress, Reason, Scan, ScanReport, scan, scan_within};
pub use timed::{Patience, Prompt, PromptNames, TimedSource, Timekeeping};
