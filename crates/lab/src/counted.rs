//! A file system on a loop device of its own, so that reads of the disk are counted, and can be made cold.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::ok;

/// The kernel reads the tables of free blocks by itself after a mount, unless told otherwise.
const MOUNT_OPTIONS: &str = "noatime,no_prefetch_block_bitmaps";

/// What was read of a disk.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiskReads {
    /// Reads that the device was asked for.
    pub requests: u64,
    /// What they had in all.
    pub bytes: u64,
}

/// The file system, mounted until this is dropped.
#[derive(Debug)]
pub struct CountedDisk {
    image: PathBuf,
    mountpoint: PathBuf,
    device: String,
    /// What somebody had read of that device before.
    before: DiskReads,
}

impl CountedDisk {
    /// Makes a file system of so many MiB in a file.
    pub fn make(image: &Path, mib: u32, mountpoint: &Path) -> Self {
        fs::create_dir_all(mountpoint).unwrap();
        ok(Command::new("truncate")
            .arg(format!("--size={mib}M"))
            .arg(image));
        let options = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
        ok(Command::new("mkfs.ext4")
            .args(["-q", "-F", "-b", "4096", "-E", options])
            .arg(image));
        let mut made = Self {
            image: image.to_owned(),
            mountpoint: mountpoint.to_owned(),
            device: String::new(),
            before: DiskReads::default(),
        };
        made.mount();
        made
    }

    fn mount(&mut self) {
        // Direct: what the device reads must not be answered by the cache of the file below.
        let mut losetup = Command::new("losetup");
        losetup
            .args(["--find", "--show", "--direct-io=on"])
            .arg(&self.image);
        let device = ok(&mut losetup).trim().to_owned();
        self.device = device.trim_start_matches("/dev/").to_owned();
        self.before = self.counters();
        ok(Command::new("mount")
            .args(["-o", MOUNT_OPTIONS])
            .arg(&device)
            .arg(&self.mountpoint));
        // It goes with the mount.
        ok(Command::new("losetup").args(["--detach", &device]));
    }

    /// Has nothing of it in memory any more.
    pub fn make_cold(&mut self) {
        ok(Command::new("umount").arg(&self.mountpoint));
        self.mount();
    }

    /// Returns what was read of it since it was mounted.
    pub fn reads(&self) -> DiskReads {
        let now = self.counters();
        DiskReads {
            requests: now.requests - self.before.requests,
            bytes: now.bytes - self.before.bytes,
        }
    }

    /// Returns the counters of the device, which outlive what it was set up for.
    fn counters(&self) -> DiskReads {
        let stat = fs::read_to_string(format!("/sys/block/{}/stat", self.device)).unwrap();
        let fields = stat.split_whitespace().map(|field| field.parse());
        let fields: Vec<u64> = fields.collect::<Result<_, _>>().unwrap();
        DiskReads {
            requests: fields[0],
            bytes: fields[2] * 512,
        }
    }
}

impl Drop for CountedDisk {
    fn drop(&mut self) {
        let _unmounted = Command::new("umount")
            .arg("-l")
            .arg(&self.mountpoint)
            .output();
    }
}
