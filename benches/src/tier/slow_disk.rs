//! A disk that writes as slowly as the one of the paper.
//!
//! Writes go to a disk when the kernel gets to it, and then belong to nobody's group. So all of the
//! machine's writes to the one device are limited, and how much may wait for it in memory. Both outlive
//! the loop device, and would slow down whoever is given its number next; so a process of its own
//! takes them away, even when the bench is killed.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, ensure};

/// cgroup v1's hierarchy for block devices: its root group may have limits, too.
const ROOT: &str = "/sys/fs/cgroup/blkio";
/// Bytes that may be dirty: less than a layer, so that storing one takes as long as the disk does.
const DIRTY_MAX: u64 = 8 << 20;
/// Requests of files that make one of the disk. The limit counts before the kernel has put neighbours
/// together, and a layer's files are neighbours: the base layer of our images (4 959 files, 138 MB)
/// makes 7 471, which become 645.
const NEIGHBOURS: u64 = 11;
/// Waits for its input to end, and takes all limits away: of the device `$1`, whose directory is `$2`.
const RESTORE: &str = r#"
cat >/dev/null
for what in write_iops write_bps; do
    echo "$1 0" >"$3/blkio.throttle.${what}_device"
done
echo 100 >"$2/max_ratio"
echo 0 >"$2/strict_limit"
"#;

/// What the disk does in a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteRate {
    /// Requests that reach it.
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
    /// Takes the limits away when we are gone.
    restorer: Child,
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
        let restorer = Command::new("sh")
            .args(["-c", RESTORE, "restore", &device])
            .args([&bdi, root])
            .stdin(Stdio::piped())
            // Ctrl-C is for us.
            .process_group(0)
            .spawn()
            .context("starting the process that takes the disk's limits away")?;
        let disk = Self {
            device,
            rate,
            restorer,
        };
        // Otherwise the bound holds only when all of the machine's memory is dirty.
        write(&bdi.join("strict_limit"), "1")?;
        write(&bdi.join("max_bytes"), &DIRTY_MAX.to_string())?;
        Ok(disk)
    }

    /// Makes it slow.
    pub(super) fn impose(&self) -> anyhow::Result<()> {
        let requests = u64::from(self.rate.requests) * NEIGHBOURS;
        self.limit(requests, self.rate.bytes)
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
        drop(self.restorer.stdin.take());
        match self.restorer.wait() {
            Ok(status) if status.success() => {}
            ended => eprintln!(
                "warning: the device {} may stay slow: {ended:?}",
                self.device
            ),
        }
    }
}

fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(file, text).with_context(|| format!("writing {text} to {}", file.display()))
}
