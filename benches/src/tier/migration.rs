//! Reads of a disk through a mount, while something else is moved from it to NVM.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use serde::Serialize;

use crate::aims::Aim;
use crate::boots::milliseconds;
use crate::report::count;
use crate::rounds::{Shuffle, median};

/// Bytes of one read.
const READ: usize = 4096;
/// How long is read for a sample.
pub(super) const WINDOW: Duration = Duration::from_secs(10);
/// Files that are moved meanwhile: more than a slow disk reads in that time.
pub(super) const MOVED: usize = 40;

/// Reads of one window.
#[derive(Clone, Debug, Serialize)]
pub struct Foreground {
    /// Which round it was part of, from 1.
    pub round: u32,
    /// Whether something was moved meanwhile.
    pub migrating: bool,
    /// How many reads there were.
    pub reads: u64,
    /// Bytes a second.
    pub bytes_per_second: f64,
    /// Milliseconds of the middle read.
    pub p50_ms: f64,
    /// Bytes that the mover has read of the disk meanwhile.
    pub moved_bytes: u64,
}

/// Reads random blocks of a file, none of them twice, for [`WINDOW`].
pub(super) fn read_at_random(
    path: &Path,
    round: u32,
    migrating: bool,
) -> anyhow::Result<Foreground> {
    let reading = || format!("reading {}", path.display());
    let file = File::open(path).with_context(reading)?;
    // One block a read, and not what lies beside it.
    posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_RANDOM).with_context(reading)?;
    let blocks = file.metadata().with_context(reading)?.len() / READ as u64;
    let blocks: Vec<u64> = (0..blocks).collect();
    let blocks = Shuffle::from_clock().order(&blocks);
    let (mut buf, mut times) = ([0; READ], Vec::new());
    let begin = Instant::now();
    for block in blocks {
        let before = Instant::now();
        if before - begin >= WINDOW {
            break;
        }
        let read = file.read_exact_at(&mut buf, block * READ as u64);
        read.with_context(reading)?;
        times.push(milliseconds(before.elapsed()));
    }
    let took = begin.elapsed();
    ensure!(
        took >= WINDOW,
        "{} is too small for a window",
        path.display()
    );
    let reads = times.len() as u64;
    Ok(Foreground {
        round,
        migrating,
        reads,
        bytes_per_second: count(reads * READ as u64) / took.as_secs_f64(),
        p50_ms: median(&times).context("nothing was read")?,
        moved_bytes: 0,
    })
}

/// Returns the largest files below a directory, the largest first.
pub(super) fn largest(root: &Path, most: usize) -> anyhow::Result<Vec<PathBuf>> {
    let (mut dirs, mut found) = (vec![root.to_owned()], Vec::new());
    while let Some(dir) = dirs.pop() {
        let entries = fs::read_dir(&dir).with_context(|| format!("listing {}", dir.display()))?;
        for entry in entries {
            let entry = entry?;
            let metadata = entry.metadata()?;
            if metadata.is_dir() {
                dirs.push(entry.path());
            } else if metadata.is_file() {
                found.push((metadata.len(), entry.path()));
            }
        }
    }
    found.sort_unstable_by(|a, b| b.cmp(a));
    found.truncate(most);
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

/// Returns the aims of migration.
#[must_use]
pub fn of_migration(samples: &[Foreground]) -> Vec<Aim> {
    let middle = |migrating: bool, value: fn(&Foreground) -> f64| {
        let of = |sample: &&Foreground| sample.migrating == migrating;
        median(&samples.iter().filter(of).map(value).collect::<Vec<_>>())
    };
    let rate = |migrating| middle(migrating, |sample| sample.bytes_per_second);
    let share = rate(true).zip(rate(false));
    vec![Aim::at_most(
        5.0,
        "migration: % fewer bytes a second of others who read the disk",
        share.map(|(with, without)| 100.0 * (1.0 - with / without)),
    )]
}
