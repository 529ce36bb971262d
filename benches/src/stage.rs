//! A file system on a loop device of its own: its reads are counted, and it can be slowed down
//! without slowing the machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use nix::mount::MsFlags;

use crate::namespace::Mounted;
use crate::process::run_ok;

/// Setting up a loop device takes milliseconds.
const DEADLINE: Duration = Duration::from_secs(30);

/// May what is on it change?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It is mounted read-only.
    ReadOnly,
    /// It is mounted for writing too.
    ReadWrite,
}

/// Reads of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reads {
    /// Requests that reached it.
    pub requests: u64,
    /// Bytes they asked for.
    pub bytes: u64,
}

impl Reads {
    /// Returns what came after `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            requests: self.requests.saturating_sub(earlier.requests),
            bytes: self.bytes.saturating_sub(earlier.bytes),
        }
    }
}

/// An ext4 image, mounted.
#[derive(Debug)]
pub struct Stage {
    mounted: Mounted,
    /// As in `loop7`.
    device: String,
}

impl Stage {
    /// Mounts the image file `image` on the directory `target`.
    ///
    /// # Errors
    /// If there is no such image, or no loop device to be had.
    pub fn mount(image: &Path, target: &Path, access: Access) -> anyhow::Result<Self> {
        ensure!(
            image.exists(),
            "{} is missing: run scripts/images/stage.sh",
            image.display()
        );
        let mut losetup = Command::new("losetup");
        // Direct: the loop device's own reads must not be answered by the cache of the file below.
        losetup
            .args(["--find", "--show", "--direct-io=on"])
            .arg(image);
        let device = run_ok(losetup, DEADLINE)
            .context("setting up a loop device")?
            .output;
        let device = device.trim();
        let read_only = match access {
            Access::ReadOnly => MsFlags::MS_RDONLY,
            Access::ReadWrite => MsFlags::empty(),
        };
        let mounted = Mounted::new(device, target, "ext4", MsFlags::MS_NOATIME | read_only, "");
        // While it is mounted this only marks the device: it goes with the mount.
        let mut detach = Command::new("losetup");
        detach.args(["--detach", device]);
        run_ok(detach, DEADLINE).context("marking the loop device")?;
        let device = device
            .strip_prefix("/dev/")
            .context("losetup named no device")?
            .to_owned();
        Ok(Self {
            mounted: mounted?,
            device,
        })
    }

    /// Returns where it is mounted.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.mounted.path()
    }

    /// Returns the block device.
    #[must_use]
    pub fn device(&self) -> PathBuf {
        Path::new("/dev").join(&self.device)
    }

    /// Returns the device's number, as in `7:0`.
    ///
    /// # Errors
    /// If sysfs does not say.
    pub fn device_number(&self) -> anyhow::Result<String> {
        Ok(self.sysfs("dev")?.trim().to_owned())
    }

    /// Returns what was read from the device since it was set up.
    ///
    /// # Errors
    /// If sysfs does not say.
    pub fn reads(&self) -> anyhow::Result<Reads> {
        parse_stat(&self.sysfs("stat")?)
    }

    /// Returns how many write requests reached the device since it was set up.
    ///
    /// # Errors
    /// If sysfs does not say.
    pub fn writes(&self) -> anyhow::Result<u64> {
        let field = field(&self.sysfs("stat")?, WRITES);
        field.context("a stat line of another kernel")
    }

    /// Has the kernel read ahead by so many KiB. A loop device takes over what the disk below it asks for, often some MiB.
    ///
    /// # Errors
    /// If sysfs refuses.
    pub fn set_read_ahead(&self, kib: u32) -> anyhow::Result<()> {
        let path = self.sysfs_path("queue/read_ahead_kb");
        fs::write(&path, kib.to_string()).with_context(|| format!("writing {kib} to {path}"))
    }

    fn sysfs(&self, file: &str) -> anyhow::Result<String> {
        let path = self.sysfs_path(file);
        fs::read_to_string(&path).with_context(|| format!("reading {path}"))
    }

    fn sysfs_path(&self, file: &str) -> String {
        format!("/sys/block/{}/{file}", self.device)
    }
}

/// Fields of a line of `/sys/block/*/stat`: read requests, merged ones, sectors of 512 bytes,
/// milliseconds; then the same of writes.
const READS: usize = 0;
const READ_SECTORS: usize = 2;
const WRITES: usize = 4;

fn field(line: &str, index: usize) -> Option<u64> {
    line.split_whitespace().nth(index)?.parse().ok()
}

fn parse_stat(line: &str) -> anyhow::Result<Reads> {
    let (requests, sectors) = field(line, READS)
        .zip(field(line, READ_SECTORS))
        .context("a stat line of another kernel")?;
    Ok(Reads {
        requests,
        bytes: sectors.saturating_mul(512),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_requests_and_bytes() {
        let line = "   10  2  80  5  0  0  0  0  0  4  5  0  0  0  0  0  0\n";
        assert_eq!(
            parse_stat(line).unwrap(),
            Reads {
                requests: 10,
                bytes: 40_960
            }
        );
        assert!(parse_stat("").is_err());
        assert!(parse_stat("1 2").is_err());
    }

    #[test]
    fn later_counts_minus_earlier_ones() {
        let (a, b) = (
            Reads {
                requests: 3,
                bytes: 9,
            },
            Reads {
                requests: 5,
                bytes: 8,
            },
        );
        assert_eq!(
            b.since(a),
            Reads {
                requests: 2,
                bytes: 0
            }
        );
    }
}
