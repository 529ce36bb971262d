//! The machine that reads a tree from its disk.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::{DISK, make_disk, take_kernel};
use crate::commands::done;

/// What the machine does: it reads everything, forgets it, and reads it again.
const INIT: &str = "#!/bin/busybox sh
exec </dev/ttyS0 >/dev/ttyS0 2>&1
/bin/busybox mount -t proc proc /proc
while :; do
    /bin/busybox find /warm /cold -type f -exec /bin/busybox sha256sum {} +
    echo 3 >/proc/sys/vm/drop_caches
done
";

/// Room on the disk beside the tree, in MiB: for the file system's own tables.
const ROOM_MIB: u32 = 12;

/// Makes the machine of a tree, whose files are on its disk.
pub(crate) fn make_reader(tree: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to)?;
    take_kernel(to)?;
    let root = tempfile::tempdir()?;
    let mut copy = Command::new("cp");
    copy.arg("-a")
        .args(["warm", "cold", "bin"].map(|part| tree.join(part)));
    done(copy.arg(root.path()))?;
    make_disk(root.path(), INIT, ROOM_MIB, &to.join(DISK))
}
