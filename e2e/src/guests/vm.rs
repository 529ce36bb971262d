//! A virtual machine, whose kernel and disk are files of the mount.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Stdio};

use anyhow::Context as _;

use crate::Rng;
use crate::lab::Lab;
use crate::machine::{self, Cache};
use crate::names::MACHINE;

/// Memory of the machine, in MiB.
const MEMORY_MIB: u32 = 128;

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
