//! One walk over a source that reads all of its metadata.
//!
//! Names are visited in the order of their bytes and directories depth first, so that an
//! unchanged source gives every file the id it had. Within a directory, attributes are read in
//! the order of inode numbers, which is the order on the disk of most file systems: a cold scan
//! of a spinning disk is several times faster for it.
//!
//! A directory that changes while it is read is read again, a few times; a source that changes
//! all the time gives a tree that was true at some moment for each directory, and a report of
//! where it may be outdated. Serving such a tree is safe: versions are checked at each read.

mod dir;
mod disk;
mod report;
mod tables;
mod walk;
pub(crate) mod xattrs;

pub use report::{Note, Reason, ScanReport};

use std::sync::Arc;
use std::time::Duration;

use blocks::Tree;

pub(crate) use disk::disk_root;

use crate::timed::{CallProgress, while_it_moves};
use crate::{LocalError, SourceRoot};

/// A scanned source.
#[derive(Clone, Debug)]
pub struct Scan {
    /// All of its metadata.
    pub tree: Tree,
    /// The files that were left out or changed meanwhile.
    pub report: ScanReport,
}

/// How far a scan is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Files found so far.
    pub files: u64,
}

/// Reads the metadata of a source; `progress` is called after every directory.
///
/// Does not enter other file systems that are mounted below the root, bind mounts included; the
/// report names them.
///
/// # Errors
/// If the root itself cannot be read, or the source has more names than a tree can hold. Errors
/// below the root are in the report instead.
pub fn scan(root: &SourceRoot, mut progress: impl FnMut(Progress)) -> Result<Scan, LocalError> {
    run(root, &mut progress, &CallProgress::default())
}

/// Does what [`scan`] does, for a source that may stop responding: gives up when it made no progress
/// for `patience`, however long the scan takes in all. `progress` is called now and then.
///
/// # Errors
/// As [`scan`]; [`LocalError::NoAnswer`] if it was given up. A thread then hangs in the source until
/// that responds again; when too many do, no other scan is begun.
pub fn scan_within(
    root: &Arc<SourceRoot>,
    patience: Duration,
    mut progress: impl FnMut(Progress),
) -> Result<Scan, LocalError> {
    let asked = Arc::clone(root);
    let scanned = while_it_moves(
        patience,
        move |call_progress| run(&asked, &mut |_| (), call_progress),
        |files| progress(Progress { files }),
    );
    scanned.unwrap_or_else(|why| Err(LocalError::no_answer(why, root.path(), patience)))
}

fn run(
    root: &SourceRoot,
    progress: &mut dyn FnMut(Progress),
    call_progress: &CallProgress,
) -> Result<Scan, LocalError> {
    let (parts, report) = match root.disk_files() {
        Some(files) => disk::scan(root, files)?,
        None => walk::Walk::run(root, progress, call_progress)?,
    };
    let tree = Tree::new(parts)?;
    Ok(Scan { tree, report })
}
