//! A bound on what is written to a mounted ext4.
//!
//! A device that has no more room says so when the kernel writes to it: long after the program has written to a file, which
//! may have ended by then. So the file system itself is told to keep all other space, and programs that write hear at once
//! that there is none. The kernel forgets it when the file system is unmounted, and nothing of it is on the device.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use nix::sys::stat::{major, minor};
use nix::sys::statvfs::statvfs;

/// Has the ext4 on `dir` give away no more than so many bytes.
pub(super) fn bound(dir: &Path, bytes: u64) -> io::Result<()> {
    let device = fs::metadata(dir)?.dev();
    let block = format!("/sys/dev/block/{}:{}", major(device), minor(device));
    let block = fs::canonicalize(block)?;
    let name = block.file_name().ok_or(io::ErrorKind::NotFound)?;
    let about = statvfs(dir)?;
    let given = bytes / about.fragment_size().max(1);
    let kept = about.blocks_free().saturating_sub(given);
    let file = Path::new("/sys/fs/ext4")
        .join(name)
        .join("reserved_clusters");
    fs::write(file, kept.to_string())
}
