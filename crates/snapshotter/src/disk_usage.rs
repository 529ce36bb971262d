//! The disk usage of a directory.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::error::{Result, SnapshotError};
use crate::snapshot::Usage;

/// The unit of `st_blocks`, whatever the file system's block is.
const BLOCK_BYTES: u64 = 512;

/// Counts the inodes and blocks under `root`, itself included. A file with several names counts
/// once. What goes away meanwhile counts nothing: a container may be running there.
pub(crate) fn disk_usage(root: &Path) -> Result<Usage> {
    let of = fs::symlink_metadata(root).map_err(SnapshotError::io("look at", root))?;
    let mut usage = Usage::default();
    let mut several_names = HashSet::new();
    let mut add = |of: &fs::Metadata| {
        if of.is_dir() || of.nlink() < 2 || several_names.insert((of.dev(), of.ino())) {
            usage.inodes += 1;
            usage.bytes += of.blocks() * BLOCK_BYTES;
        }
    };
    add(&of);
    let mut dirs = vec![root.to_owned()];
    while let Some(dir) = dirs.pop() {
        let Some(entries) = present(fs::read_dir(&dir)).map_err(SnapshotError::io("list", &dir))?
        else {
            continue;
        };
        for entry in entries {
            let entry = entry.map_err(SnapshotError::io("list", &dir))?;
            let of = present(entry.metadata()).map_err(SnapshotError::io("look into", &dir))?;
            let Some(of) = of else { continue };
            add(&of);
            if of.is_dir() {
                dirs.push(entry.path());
            }
        }
    }
    Ok(usage)
}

fn present<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_hard_links_once_and_holes_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path();
        let empty = disk_usage(path).unwrap();
        fs::write(path.join("a"), vec![1; 100_000]).unwrap();
        fs::File::open(path.join("a")).unwrap().sync_all().unwrap();
        let one = disk_usage(path).unwrap();
        assert_eq!(one.inodes, empty.inodes + 1);
        assert!(
            (100_000..200_000).contains(&(one.bytes - empty.bytes)),
            "{one:?}"
        );
        fs::hard_link(path.join("a"), path.join("b")).unwrap();
        fs::File::create(path.join("hole"))
            .unwrap()
            .set_len(1 << 30)
            .unwrap();
        let after = disk_usage(path).unwrap();
        assert_eq!(after.inodes, one.inodes + 1);
        assert!(after.bytes - one.bytes < 1 << 20, "{after:?}");
        assert!(disk_usage(&path.join("none")).is_err());
    }
}
