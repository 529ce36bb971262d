//! Switches the kernel's read-ahead off while the pages that a command touches are recorded.
//!
//! The former setting is written to a file first, so that the next recording can restore it if this one is killed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

/// The most bytes of the note that are read: a line for each disk.
const NOTE_MAX: u64 = 64 << 10;

/// Another recording has switched read-ahead off, and will restore it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("another recording of pins is going on: wait until it has ended")]
pub(super) struct Busy;

/// Read-ahead that is off until this is dropped. There is one at a time for a disk.
#[derive(Debug)]
pub(super) struct ReadAheadOff {
    note: File,
    before: BTreeMap<PathBuf, String>,
    /// The settings themselves are locked: every recorder of this kernel sees them, whatever its directories are.
    _turn: Vec<Flock<File>>,
}

impl ReadAheadOff {
    /// Switches it off for the disks of these devices. `note` is the file for the former settings.
    ///
    /// # Errors
    /// [`Busy`], or if a disk has no such setting, or it cannot be changed.
    pub(super) fn of(devices: &[(u32, u32)], note: &Path) -> anyhow::Result<Self> {
        let mut settings = BTreeSet::new();
        for (major, minor) in devices {
            let found = setting(*major, *minor);
            settings.insert(
                found.with_context(|| {
                    format!("device {major}:{minor} has no setting of read-ahead")
                })?,
            );
        }
        let turn: Result<Vec<_>, _> = settings.iter().map(|setting| take_turn(setting)).collect();
        let opened = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(note);
        let mut off = Self {
            _turn: turn?,
            note: opened.with_context(|| format!("opening {}", note.display()))?,
            before: BTreeMap::new(),
        };
        off.recall()?;
        off.restore();
        off.before.clear();
        for setting in settings {
            let was = fs::read_to_string(&setting)
                .with_context(|| format!("reading {}", setting.display()))?;
            off.before.insert(setting, was.trim().to_owned());
        }
        off.remember()?;
        for setting in off.before.keys() {
            fs::write(setting, "0")
                .with_context(|| format!("writing 0 to {}", setting.display()))?;
        }
        Ok(off)
    }

    fn remember(&mut self) -> anyhow::Result<()> {
        let lines = self
            .before
            .iter()
            .map(|(path, was)| format!("{was} {}\n", path.display()));
        let text: String = lines.collect();
        self.note.set_len(0).context("noting the read-ahead")?;
        self.note.rewind().context("noting the read-ahead")?;
        self.note
            .write_all(text.as_bytes())
            .context("noting the read-ahead")
    }

    fn recall(&mut self) -> anyhow::Result<()> {
        let mut text = String::new();
        let read = (&self.note).take(NOTE_MAX).read_to_string(&mut text);
        read.context("reading what a recording that was killed has noted")?;
        let lines = text.lines().filter_map(|line| line.split_once(' '));
        let ours =
            lines.filter(|(was, path)| was.parse::<u32>().is_ok() && path.starts_with("/sys/"));
        self.before = ours
            .map(|(was, path)| (path.into(), was.to_owned()))
            .collect();
        Ok(())
    }

    fn restore(&self) {
        for (setting, was) in &self.before {
            if let Err(error) = fs::write(setting, was) {
                log::warn!("{} is not {was} again: {error}", setting.display());
            }
        }
    }
}

impl Drop for ReadAheadOff {
    fn drop(&mut self) {
        self.restore();
        if let Err(error) = self.note.set_len(0) {
            log::warn!("the note about the read-ahead stays: {error}");
        }
    }
}

/// Returns where the read-ahead of a device is set: at its disk, if it is a partition.
fn setting(major: u32, minor: u32) -> Option<PathBuf> {
    let device = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    let known = ["queue/read_ahead_kb", "../queue/read_ahead_kb"];
    let setting = known
        .into_iter()
        .map(|name| device.join(name))
        .find(|path| path.is_file())?;
    setting.canonicalize().ok()
}

fn take_turn(setting: &Path) -> anyhow::Result<Flock<File>> {
    let file = File::open(setting).with_context(|| format!("opening {}", setting.display()))?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Err((_, Errno::EAGAIN)) => Err(Busy.into()),
        locked => locked
            .map_err(|(_, errno)| errno)
            .with_context(|| format!("locking {}", setting.display())),
    }
}
