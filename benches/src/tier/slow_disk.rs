//! A disk that writes as slowly as the one of the paper.
//!
//! Writes go to a disk when the kernel gets to it, and then belong to nobody's group. So all of the
//! machine's writes to the one device are limited, and how much may wait for it in memory.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};

/// cgroup v1's hierarchy for block devices: its root group may have limits, too.
const ROOT: &str = "/sys/fs/cgroup/blkio";
/// Bytes that may be dirty: less than a layer, so that storing one takes as long as the disk does.
const DIRTY_MAX: u64 = 8 << 20;

/// What the disk does in a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteRate {
    /// Requests.
    pub requests: u32,
    /// Bytes.
    pub bytes: u64,
}

/// A limit on writes to one device, for as long as it lives.
#[derive(Debug)]
pub(super) struct SlowDisk {
    /// As in `7:0`.
    device: String,
    rate: WriteRate,
}

impl SlowDisk {
    /// Bounds what waits for this device, but lets it be quick yet.
    pub(super) fn new(device: String, rate: WriteRate) -> anyhow::Result<Self> {
        let root = Path::new(ROOT);
        ensure!(
            root.join("blkio.throttle.write_bps_device").exists(),
            "writes are limited by cgroup v1's blkio controller, which is not at {ROOT}"
        );
        let bdi = PathBuf::from(format!("/sys/class/bdi/{device}"));
        // Otherwise the bound holds only when all of the machine's memory is dirty.
        write(&bdi.join("strict_limit"), "1")?;
        write(&bdi.join("max_bytes"), &DIRTY_MAX.to_string())?;
        Ok(Self { device, rate })
    }

    /// Makes it slow.
    pub(super) fn impose(&self) -> anyhow::Result<()> {
        self.limit(u64::from(self.rate.requests), self.rate.bytes)
    }

    /// Lets it be quick again.
    pub(super) fn lift(&self) -> anyhow::Result<()> {
        self.limit(0, 0)
    }

    fn limit(&self, requests: u64, bytes: u64) -> anyhow::Result<()> {
        let limits = [("write_iops", requests), ("write_bps", bytes)];
        for (what, limit) in limits {
            let file = Path::new(ROOT).join(format!("blkio.throttle.{what}_device"));
            write(&file, &format!("{} {limit}", self.device))?;
        }
        Ok(())
    }
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        if let Err(error) = self.lift() {
            eprintln!("warning: the device stays slow: {error:#}");
        }
    }
}

fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(file, text).with_context(|| format!("writing {text} to {}", file.display()))
}
