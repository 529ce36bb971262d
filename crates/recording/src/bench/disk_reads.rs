//! What the disk of a source was asked for.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use nix::sys::stat::{major, minor, stat};

/// The counters of a disk.
#[derive(Debug)]
pub(super) struct DiskReads {
    /// The kernel's file with them; nothing for file systems that are on no disk of their own.
    stat: Option<PathBuf>,
}

impl DiskReads {
    /// Returns the counters of the disk that a path is on.
    ///
    /// # Errors
    /// If the path is not there.
    pub(super) fn of(path: &Path) -> anyhow::Result<Self> {
        let about = stat(path).with_context(|| format!("looking at {}", path.display()))?;
        let (major, minor) = (major(about.st_dev), minor(about.st_dev));
        let stat = PathBuf::from(format!("/sys/dev/block/{major}:{minor}/stat"));
        let stat = stat.exists().then_some(stat);
        Ok(Self { stat })
    }

    /// Returns how many reads the disk has answered so far, and their bytes.
    pub(super) fn now(&self) -> Option<(u64, u64)> {
        read(&fs::read_to_string(self.stat.as_ref()?).ok()?)
    }

    /// Returns what was read since `before`.
    pub(super) fn since(&self, before: Option<(u64, u64)>) -> Option<(u64, u64)> {
        let (before, now) = (before?, self.now()?);
        Some((
            now.0.saturating_sub(before.0),
            now.1.saturating_sub(before.1),
        ))
    }
}

/// Reads the kernel's line: requests, merged ones and sectors of 512 bytes, in this order.
fn read(line: &str) -> Option<(u64, u64)> {
    let mut fields = line.split_whitespace().map(str::parse);
    let requests = fields.next()?.ok()?;
    let sectors: u64 = fields.nth(1)?.ok()?;
    Some((requests, sectors * 512))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_line_is_read() {
        assert_eq!(read("  7  1  16  3  0 0 0 0 0 0 0\n"), Some((7, 16 * 512)));
        assert_eq!(read("7 1"), None);
    }
}
