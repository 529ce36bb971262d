//! Names and attributes of a source that may change while it is mounted.
//!
//! Every request reads the disk; only the inode and the known names of each [`FileId`] are
//! remembered. A file keeps its id as long as it is the same inode, whatever its name: a renamed file is
//! found again when its new name is looked up, which is what the kernel does first. A new or replaced
//! file gets a new id, and no id is ever reused. So does a regular file of which only the modification
//! time differs: a kernel would keep its old pages under the old id. Users that have it open by that
//! id may still see them.
//!
//! A kernel checks permissions by the mode, the owner and the access list of its latest answer while that
//! is valid, and not at all for open files. So an id is valid for a file only while no user has fewer
//! rights on it than by the answers under that id. Otherwise the id is
//! [`Stale`](blocks::SourceErrorKind::Stale) for good, and the file gets a new one at its next
//! look-up.
//!
//! Until a renamed file or directory is looked up under its new name, requests for its id return
//! that it is gone. The file system's answers live for a limited time, so this ends by itself.
//!
//! Memory is bounded by the existing files: when many new ids were assigned, those of files that are
//! gone are removed, and those that a file had long before its present one, so that at most twice as
//! many ids as needed are remembered (and some 65 000, which is negligible). Files of the scan are never
//! removed.

mod find;
mod ids;
mod namespace;

use std::sync::Arc;
use std::time::Duration;

use blocks::Tree;
use parking_lot::Mutex;
use rawio::stat::stat_at;

use self::ids::Ids;
use crate::disk_inode::DiskInode;
use crate::{LocalError, SourceRoot};

/// Files that the scan did not know and that are remembered before it is worth to look which of
/// them are gone: some 10 MB.
const PATIENCE: usize = 65536;

/// The names and attributes of a source as they are right now.
#[derive(Debug)]
pub struct LiveTree {
    root: Arc<SourceRoot>,
    ttl: Duration,
    /// The mount that the root is on; other mounts below are not shown.
    mount: Option<u64>,
    ids: Mutex<Ids>,
}

impl LiveTree {
    /// Returns the names of `root`. Files that are in `tree`, a scan of the same source, have the
    /// ids they have there. Answers are valid for `ttl`.
    ///
    /// # Errors
    /// If the root cannot be read.
    pub fn new(root: Arc<SourceRoot>, tree: Arc<Tree>, ttl: Duration) -> Result<Self, LocalError> {
        Self::with_patience(root, tree, ttl, PATIENCE)
    }

    fn with_patience(
        root: Arc<SourceRoot>,
        tree: Arc<Tree>,
        ttl: Duration,
        patience: usize,
    ) -> Result<Self, LocalError> {
        let stat = stat_at(&*root, "").map_err(|error| root.scan_failed(error))?;
        Ok(Self {
            mount: stat.mount,
            ids: Mutex::new(Ids::new(tree, DiskInode::of(&stat), patience)),
            root,
            ttl,
        })
    }

    /// Returns how many files it remembers.
    #[must_use]
    pub fn known_files(&self) -> usize {
        self.ids.lock().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blocks::{FileId, Namespace as _};
    use std::fs::{self, File};

    #[test]
    fn files_that_are_gone_are_forgotten_and_the_others_are_not() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("old"), b"").unwrap();
        let root = Arc::new(SourceRoot::open(dir.path()).unwrap());
        let tree = Arc::new(crate::scan(&root, |_| ()).unwrap().tree);
        let live = LiveTree::with_patience(root, tree, Duration::ZERO, 20).unwrap();
        let lookup = |name: &str| live.lookup(FileId::ROOT, name.as_bytes()).unwrap();
        let old = lookup("old").unwrap();
        let mut kept = Vec::new();
        let mut last = old;
        for i in 0..1000 {
            let brief = dir.path().join("brief");
            File::create_new(&brief).unwrap();
            let file = lookup("brief").unwrap();
            assert!(file > last, "ids are never used again");
            last = file;
            if i % 50 == 0 {
                let name = format!("kept{i}");
                fs::rename(&brief, dir.path().join(&name)).unwrap();
                // A rename moves the time of change, as a write with its time put back would.
                let renamed = lookup(&name).unwrap();
                assert!(renamed > file);
                last = renamed;
                kept.push((name, renamed));
            } else {
                fs::remove_file(brief).unwrap();
            }
            assert!(live.known_files() <= 2 * (2 + kept.len()) + 22);
        }
        for (name, file) in kept {
            assert_eq!(lookup(&name), Some(file));
        }
        assert_eq!(lookup("old"), Some(old));
        assert!(live.attr(last).is_err());
    }
}
