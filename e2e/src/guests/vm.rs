//! A virtual machine, whose kernel and disk are files of the mount.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Stdio};

use anyhow::Context as _;

use crate::Rng;
use crate::base::MACHINE;
use crate::lab::{Lab, done};
use crate::machine::{self, Cache};

/// What the machine does: it reads everything, forgets it, and reads it again.
const INIT: &str = "#!/bin/busybox sh
exec </dev/ttyS0 >/dev/ttyS0 2>&1
/bin/busybox mount -t proc proc /proc
while :; do
    /bin/busybox find /warm /cold -type f -exec /bin/busybox sha256sum {} +
    echo 3 >/proc/sys/vm/drop_caches
done
";

/// Memory of the machine, in MiB.
const MEMORY_MIB: u32 = 128;

/// Room on the disk beside the tree, in MiB: for the file system's own tables.
const ROOM_MIB: u32 = 12;

/// Makes the machine of a tree, whose files are on its disk.
pub(crate) fn make(tree: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to)?;
    machine::take_kernel(to)?;
    let root = tempfile::tempdir()?;
    let mut copy = std::process::Command::new("cp");
    copy.arg("-a")
        .args(["warm", "cold", "bin"].map(|part| tree.join(part)));
    done(copy.arg(root.path()))?;
    machine::make_disk(root.path(), INIT, ROOM_MIB, &to.join(machine::DISK))
}

/// Boots it from what is mounted at `root`.
pub(super) fn boot(lab: &Lab, root: &Path, rng: &mut Rng) -> anyhow::Result<Child> {
    // Through the page cache, or around it, where each read is one of the worker.
    let cache = if rng.once_in(2) {
        Cache::Writeback
    } else {
        Cache::None
    };
    machine::qemu(&root.join(MACHINE), cache, MEMORY_MIB, "")
        .env("YOLOFS_RUN_DIR", lab.run_dir())
        // What it writes goes there.
        .env("TMPDIR", lab.run_dir())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .context("starting QEMU (apt-get install qemu-system-x86)")
}
