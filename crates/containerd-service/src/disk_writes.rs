//! The measured write rate of the disk below a directory, and the data that waits to be written.
//!
//! The kernel's own estimate of a disk's rate was wrong where it was tried, and the time that a disk was busy
//! does not show a limit that delays requests before they reach it
//! (docs/adr/0013-a-disk-is-known-by-what-it-wrote.md). Two facts are reliable: how many bytes were written,
//! and when all were on the disk.
//!
//! A rate is stored in the run directory, which is as old as the device's number: all processes that unpack
//! layers on this machine share it. It expires after an hour: the limit of a volume may change, and a process
//! that underestimates a disk writes too little to it to notice.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use nix::sys::stat::{major, minor};
use serde::{Deserialize, Serialize};
use tiering::Rate;
use tiering::lass::{Written, learn_rate};

use host::run_dir::RunDir;

/// How long a rate is believed.
const KEPT: Duration = Duration::from_secs(3600);
/// What may wait to be written in all of the machine when a disk is measured, which waits for all of that
/// which is its own: half a minute of a slow one.
const WAITING_MAX: u64 = 1 << 30;
/// The kernel counts in these, whatever the disk has.
const SECTOR: u64 = 512;

/// The disk below a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DiskWrites {
    /// As in `8:0`; of a partition, that of the whole disk.
    number: String,
}

/// A rate in the run directory.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Kept {
    bytes_per_second: u64,
    /// Seconds since 1970.
    measured_at: u64,
}

/// A disk that is being measured while something is unpacked to it.
#[derive(Debug)]
pub(crate) struct Measuring {
    disk: DiskWrites,
    began: (Instant, u64),
}

impl DiskWrites {
    /// Returns the disk of a file or a directory; `None` if it cannot be examined.
    pub(crate) fn below(path: &Path) -> Option<Self> {
        let device = fs::metadata(path).ok()?.dev();
        let number = format!("{}:{}", major(device), minor(device));
        let of = sysfs(&number);
        // What it is a link to is `.../block/sda/sda1`.
        let whole = fs::canonicalize(&of)
            .ok()
            .filter(|of| of.join("partition").exists())
            .and_then(|of| fs::read_to_string(of.parent()?.join("dev")).ok());
        Some(Self {
            number: whole.map_or(number, |whole| whole.trim().to_owned()),
        })
    }

    /// Returns its rate, if it was measured recently.
    pub(crate) fn rate(&self, run_dir: &RunDir) -> Option<Rate> {
        let (rate, age) = self.kept(run_dir)?;
        (age < KEPT).then_some(rate)
    }

    /// Returns whether it was measured within this time.
    pub(crate) fn is_known_since(&self, age: Duration, run_dir: &RunDir) -> bool {
        self.kept(run_dir).is_some_and(|(_, of)| of < age)
    }

    fn kept(&self, run_dir: &RunDir) -> Option<(Rate, Duration)> {
        let text = fs::read(self.file(run_dir)).ok()?;
        let kept: Kept = serde_json::from_slice(&text).ok()?;
        let age = now().checked_sub(kept.measured_at)?;
        let rate = Rate::per_second(kept.bytes_per_second)?;
        Some((rate, Duration::from_secs(age)))
    }

    /// Returns how many bytes wait to be written to it, or are being written, according to the kernel; 0
    /// where debugfs is not accessible.
    pub(crate) fn waiting(&self) -> u64 {
        let stats = format!("/sys/kernel/debug/bdi/{}/stats", self.number);
        let stats = fs::read_to_string(stats).unwrap_or_default();
        kilobytes(&stats, &["BdiWriteback:", "BdiReclaimable:"])
    }

    /// Begins to measure it, when a layer is about to be unpacked to it. `None` if its writes are not
    /// counted: it is not a disk, or several; or if much other data waits to be written.
    pub(crate) fn measure(self) -> Option<Measuring> {
        let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
        if kilobytes(&meminfo, &["Dirty:", "Writeback:"]) > WAITING_MAX {
            return None;
        }
        let began = (Instant::now(), self.written()?);
        Some(Measuring { disk: self, began })
    }

    /// Returns how many bytes were ever written to it.
    fn written(&self) -> Option<u64> {
        let stat = fs::read_to_string(sysfs(&self.number).join("stat")).ok()?;
        let sectors: u64 = stat.split_whitespace().nth(6)?.parse().ok()?;
        Some(sectors.saturating_mul(SECTOR))
    }

    fn file(&self, run_dir: &RunDir) -> PathBuf {
        run_dir.path().join(format!("disk-{}.rate", self.number))
    }

    fn keep(&self, run_dir: &RunDir, rate: Rate) -> anyhow::Result<()> {
        let kept = Kept {
            bytes_per_second: rate.bytes_per_second(),
            measured_at: now(),
        };
        let file = self.file(run_dir);
        let aside = file.with_extension(format!("rate.{}", std::process::id()));
        fs::write(&aside, serde_json::to_vec(&kept)?)
            .and_then(|()| fs::rename(&aside, &file))
            .with_context(|| format!("writing {}", file.display()))
    }
}

impl Measuring {
    /// Waits until all that was unpacked below `dir` is on the disk, which may take a while, and stores
    /// the measured rate.
    ///
    /// # Errors
    /// If the disk fails, or the run directory.
    pub(crate) fn unpacked(self, dir: &Path, run_dir: &RunDir) -> anyhow::Result<()> {
        let flushing = self.look()?;
        let flush = || -> anyhow::Result<()> { Ok(nix::unistd::syncfs(File::open(dir)?)?) };
        flush().with_context(|| format!("flushing the disk of {}", dir.display()))?;
        let end = self.look()?;
        let since = |(at, bytes): (Instant, u64)| Written {
            bytes: end.1.saturating_sub(bytes),
            time: end.0.saturating_duration_since(at),
        };
        let (all, flush) = (since(self.began), since(flushing));
        let known = self.disk.rate(run_dir);
        let rate = learn_rate(known, all, flush);
        log::debug!("the disk has written {all:?}, at the end {flush:?}: {rate:?} ({known:?})");
        // Of a disk that has shown nothing new, what is known gets no younger.
        match rate.filter(|_| rate != known) {
            Some(rate) => self.disk.keep(run_dir, rate),
            None => Ok(()),
        }
    }

    fn look(&self) -> anyhow::Result<(Instant, u64)> {
        let written = self.disk.written();
        let written = written.with_context(|| format!("device {} is gone", self.disk.number))?;
        Ok((Instant::now(), written))
    }
}

fn sysfs(number: &str) -> PathBuf {
    Path::new("/sys/dev/block").join(number)
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// Adds up some of the lines `NAME:   NUMBER kB` of a text, and returns bytes.
fn kilobytes(text: &str, names: &[&str]) -> u64 {
    let number = |line: &str| -> Option<u64> {
        let mut words = line.split_whitespace();
        let is_one = names.contains(&words.next()?);
        words.next()?.parse().ok().filter(|_| is_one)
    };
    let sum = text.lines().filter_map(number).fold(0, u64::saturating_add);
    sum.saturating_mul(1024)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn disk() -> DiskWrites {
        DiskWrites {
            number: "7:42".to_owned(),
        }
    }

    #[test]
    fn what_waits_is_read_from_what_the_kernel_says() {
        let stats = "BdiWriteback:             4156 kB\nBdiReclaimable:           1988 kB\n\
                     BdiDirtyThresh:           8188 kB\nb_dirty:                     1\nBdiWriteback:\n";
        let both = ["BdiWriteback:", "BdiReclaimable:"];
        assert_eq!(kilobytes(stats, &both), (4156 + 1988) << 10);
        assert_eq!(kilobytes("Dirty: 99999999999999999999 kB", &["Dirty:"]), 0);
        let most = format!("Dirty: {} kB", u64::MAX);
        assert_eq!(kilobytes(&most, &["Dirty:"]), u64::MAX);
    }

    #[test]
    fn a_rate_is_kept_and_believed_for_an_hour() {
        let dir = tempfile::tempdir().unwrap();
        let run_dir = RunDir::open(dir.path()).unwrap();
        assert_eq!(disk().rate(&run_dir), None);
        let rate = Rate::per_second(45_000_000).unwrap();
        disk().keep(&run_dir, rate).unwrap();
        assert_eq!(disk().rate(&run_dir), Some(rate));
        let minute = Duration::from_secs(60);
        assert!(disk().is_known_since(minute, &run_dir));
        let other = DiskWrites {
            number: "7:43".to_owned(),
        };
        assert_eq!(other.rate(&run_dir), None);
        let file = disk().file(&run_dir);
        for (at, rate_then) in [
            (now() - 3500, Some(rate)),
            (now() - 3601, None),
            (now() + 900, None),
        ] {
            let text = format!("{{\"bytes_per_second\":45000000,\"measured_at\":{at}}}");
            fs::write(&file, text).unwrap();
            assert_eq!(disk().rate(&run_dir), rate_then, "{at}");
            assert!(!disk().is_known_since(minute, &run_dir), "{at}");
        }
        fs::write(&file, "{").unwrap();
        assert_eq!(disk().rate(&run_dir), None);
        // It is none of the mounts that the run directory describes.
        assert_ne!(file.extension().unwrap(), "json");
    }

    /// On whatever this directory lies: what is flushed is counted there, if anything is.
    #[test]
    fn what_was_flushed_was_written() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let disk = DiskWrites::below(dir.path()).unwrap();
        let Some(before) = disk.written() else {
            assert!(!sysfs(&disk.number).exists(), "{disk:?} is a disk");
            return;
        };
        let mut file = File::create(dir.path().join("file")).unwrap();
        file.write_all(&[7; 4 << 20]).unwrap();
        file.sync_all().unwrap();
        let written = disk.written().unwrap() - before;
        assert!(written >= 4 << 20, "{written}");
    }
}
