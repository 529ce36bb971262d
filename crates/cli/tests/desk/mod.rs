//! A desk to work at without root: a disk image, logs of reads of it, and a store.

#![allow(
    clippy::allow_attributes,
    reason = "what is unused differs from test to test"
)]
#![allow(dead_code, reason = "each test binary uses its own part of the desk")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::lab::{json, noise};

/// Reads of `DISK_LEN` bytes of disk: 16, 1 and 32 blocks, all different.
const ONE: &str = include_str!("../../../tracer/tests/fixtures/qemu-io.log");
/// The first 16 blocks that `ONE` reads too, and 16 that it does not.
const TWO: &str = "\
blk_co_preadv blk 0x1 bs 0x2 offset 0 bytes 65536 flags 0x0
blk_co_preadv blk 0x1 bs 0x2 offset 4194304 bytes 65536 flags 0x0
";
pub(crate) const DISK_LEN: usize = 8 << 20;

/// A directory with a disk image, logs of reads of it, and a store.
pub(crate) struct Desk(TempDir);

impl Desk {
    pub(crate) fn new() -> Self {
        let desk = Self(tempfile::tempdir().unwrap());
        fs::write(desk.path("disk.raw"), noise(1, DISK_LEN)).unwrap();
        fs::write(desk.path("one.log"), ONE).unwrap();
        fs::write(desk.path("two.log"), TWO).unwrap();
        desk
    }

    /// A desk with the boot images `one` and `two`.
    pub(crate) fn with_images() -> Self {
        let desk = Self::new();
        desk.record("one");
        desk.record("two");
        desk
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Returns `bootimg` with the desk's store and these arguments, in the desk's directory.
    pub(crate) fn bootimg(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bootimg"));
        command
            .args(args)
            .current_dir(self.0.path())
            .env("YOLOFS_STORE", self.path("store"))
            .env("YOLOFS_RUN_DIR", self.path("run"))
            .env_remove("YOLOFS_STORE_MAX")
            .env_remove("YOLOFS_LOG");
        command
    }

    /// Makes the boot image `name` of the log `name`.
    pub(crate) fn record(&self, name: &str) -> Value {
        let log = format!("{name}.log");
        let args = ["from-trace", "disk.raw", "--qemu", &log, "--name", name];
        json(self.bootimg(&args).arg("--json"))
    }

    /// Returns what `ls --json` says, by name.
    pub(crate) fn list(&self) -> Vec<Value> {
        let mut images = json(&mut self.bootimg(&["ls", "--json"]));
        let mut images: Vec<_> = images.as_array_mut().unwrap().drain(..).collect();
        images.sort_by_key(|image| image["name"].as_str().unwrap().to_owned());
        images
    }

    pub(crate) fn names(&self) -> Vec<String> {
        let name = |image: &Value| image["name"].as_str().unwrap().to_owned();
        self.list().iter().map(name).collect()
    }

    /// Returns every file of the store with its content, apart from the times of use.
    pub(crate) fn snapshot(&self) -> Vec<(PathBuf, Vec<u8>)> {
        files_below(&self.path("store"))
            .into_iter()
            .map(|path| (path.clone(), fs::read(path).unwrap()))
            .collect()
    }
}

pub(crate) fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(files_below(&path));
        } else {
            files.push(path);
        }
    }
    files.sort();
    files
}

/// Changes a byte in the middle of a file: in the data of a boot image with little metadata.
pub(crate) fn damage(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    fs::write(path, bytes).unwrap();
}
