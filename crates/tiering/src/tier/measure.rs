//! How fast a directory is, by trying.

use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

use super::{ProbeError, failed, nameless};
use crate::Rate;
use crate::pace::{Cancelled, Pace};

/// Bytes that are written or read at once: what is copied is copied in such pieces.
const PIECE: usize = 1 << 20;
/// Small writes that are synced one by one.
const SYNCS: u32 = 16;
/// Bytes of each.
const SYNCED: usize = 4096;

/// How fast a directory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// Bytes that were written and read.
    pub bytes: u64,
    /// Writing one after another, synced at the end.
    pub write: Option<Rate>,
    /// Sequential reads, after the pages were dropped from the page cache.
    pub read: Option<Rate>,
    /// Median time to write 4 KiB and sync it.
    pub sync: Duration,
}

/// Why a directory was not measured.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// It failed.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// It was cancelled.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}

/// Measures a directory with a file of `bytes` bytes, at least one piece of 1 MiB. The file has
/// no name, and is gone when this returns.
///
/// # Errors
/// If it cannot be written or read, or is full, or `pace` stops it.
pub fn measure(dir: &Path, bytes: u64, pace: &dyn Pace) -> Result<Measured, MeasureError> {
    let file = nameless(dir).map_err(failed("make a file", dir))?;
    // Not zeros, which some disks do not write.
    let piece: Vec<u8> = (0..=250u8).cycle().take(PIECE).collect();
    let pieces = bytes.div_ceil(PIECE as u64).max(1);
    let bytes = pieces * PIECE as u64;
    let offsets = || (0..pieces).map(|piece| piece * PIECE as u64);

    let begin = Instant::now();
    for offset in offsets() {
        pace.turn(PIECE as u64)?;
        file.write_all_at(&piece, offset)
            .map_err(failed("write", dir))?;
    }
    file.sync_data().map_err(failed("sync", dir))?;
    let written = begin.elapsed();

    let forget = posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
    forget
        .map_err(io::Error::from)
        .map_err(failed("empty the cache", dir))?;
    let mut buffer = vec![0; PIECE];
    let begin = Instant::now();
    for offset in offsets() {
        pace.turn(PIECE as u64)?;
        file.read_exact_at(&mut buffer, offset)
            .map_err(failed("read", dir))?;
    }
    let read = begin.elapsed();

    let mut syncs = Vec::new();
    for number in 0..SYNCS {
        pace.turn(SYNCED as u64)?;
        let begin = Instant::now();
        let offset = u64::from(number) * SYNCED as u64;
        file.write_all_at(&piece[..SYNCED], offset)
            .map_err(failed("write", dir))?;
        file.sync_data().map_err(failed("sync", dir))?;
        syncs.push(begin.elapsed());
    }
    syncs.sort_unstable();
    Ok(Measured {
        bytes,
        write: Rate::measured(bytes, written),
        read: Rate::measured(bytes, read),
        sync: syncs[syncs.len() / 2],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pace::{Demand, Throttle, Unhurried};
    use std::fs;
    use std::sync::Arc;

    #[test]
    fn a_directory_is_measured_and_left_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let found = measure(dir.path(), 1, &Unhurried).unwrap();
        assert_eq!(found.bytes, 1 << 20);
        assert!(found.write.is_some() && found.read.is_some());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn it_stops_when_it_is_told_to_and_says_what_failed() {
        let dir = tempfile::tempdir().unwrap();
        let pace = Throttle::new(None, Arc::<Demand>::default());
        pace.cancel();
        let error = measure(dir.path(), 1, &pace).unwrap_err();
        assert_eq!(error.to_string(), "it was cancelled");
        let error = measure(&dir.path().join("no"), 1, &Unhurried).unwrap_err();
        assert!(
            error.to_string().starts_with("cannot make a file in /"),
            "{error}"
        );
    }
}
