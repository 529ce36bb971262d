//! Readahead without a plan: what a reader of a far service probably reads next is requested before
//! he does.
//!
//! Only over a line whose round trip costs more than the bytes that were requested in vain, and not while
//! a plan's chunks are on their way: these say better what comes next.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::time::Duration;

use fetch::predict::{FileChunks, Predictor};
use parking_lot::Mutex;

use blocks::{FileId, NodeKind, Tree};
use chunks::index::{CHUNK_BYTES, Index};

/// A line with a shorter round trip needs no readahead of ours: the kernel's is enough.
const FAR: Duration = Duration::from_millis(2);
/// The rate of a line that was not measured yet, in bytes per second: 100 Mbit/s.
const RATE_MIN: u64 = 12_500_000;
/// Chunks that may be requested and not read yet, at least and at most: 2 and 32 MiB.
const BUDGET: (u64, u64) = (16, 256);

/// What is known of a line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    /// The round trip of a handshake.
    pub(super) round_trip: Duration,
    /// Bytes per second; 0 before the first measurement.
    pub(super) rate: u64,
}

impl Line {
    /// Returns how many chunks may be requested before anybody reads them: what two round trips bring.
    /// `None` if the line is too near to gain anything.
    fn budget(self) -> Option<u32> {
        if self.round_trip < FAR {
            return None;
        }
        let micros = u64::try_from(self.round_trip.as_micros()).unwrap_or(u64::MAX);
        let bytes = self.rate.max(RATE_MIN).saturating_mul(micros) / 500_000;
        let chunks = (bytes / CHUNK_BYTES).clamp(BUDGET.0, BUDGET.1);
        u32::try_from(chunks).ok()
    }
}

/// Predicts what is read of one source.
#[derive(Debug, Default)]
pub(super) struct ReadAhead {
    /// Made when it is first needed: a source on a near line never does.
    predictor: OnceLock<Mutex<Predictor>>,
}

impl ReadAhead {
    /// Notes that chunks are read, and returns those to request now: neither read nor returned before.
    pub(super) fn touched(&self, index: &Index, line: Line, numbers: &[u32]) -> Vec<u32> {
        let Some(budget) = line.budget() else {
            return Vec::new();
        };
        let predictor = self
            .predictor
            .get_or_init(|| Mutex::new(Predictor::new(files(index))));
        let mut predictor = predictor.lock();
        predictor.set_budget(budget);
        let next = numbers
            .iter()
            .flat_map(|number| predictor.touched(*number))
            .flatten();
        let next: Vec<_> = next.collect();
        next.into_iter()
            .filter(|number| !numbers.contains(number))
            .collect()
    }
}

/// Returns the files of a source in chunks, each with its directory.
fn files(index: &Index) -> Vec<FileChunks> {
    let tree = index.tree();
    let parents = parents(tree);
    let files = tree
        .files()
        .filter(|(_, inode)| inode.attr.kind == NodeKind::File);
    let chunks = files.map(|(file, inode)| {
        let numbers = index.covering(file, 0, inode.attr.size);
        FileChunks {
            first: numbers.start,
            chunks: numbers.end - numbers.start,
            directory: parents.get(&file).map_or(0, |dir| dir.0),
        }
    });
    chunks.collect()
}

/// Returns the directory of each file; of one with several names the first.
fn parents(tree: &Tree) -> HashMap<FileId, FileId> {
    let mut parents = HashMap::new();
    let dirs = tree
        .files()
        .filter(|(_, inode)| inode.attr.kind == NodeKind::Dir);
    for (dir, _) in dirs {
        for (_, file) in tree.entries(dir) {
            parents.entry(file).or_insert(dir);
        }
    }
    parents
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_near_line_has_no_budget_and_a_far_one_has_bounds() {
        let budget = |micros, rate| {
            let round_trip = Duration::from_micros(micros);
            Line { round_trip, rate }.budget()
        };
        assert_eq!(budget(1_999, 1 << 40), None);
        assert_eq!(budget(2_000, 0), Some(16));
        assert_eq!(budget(20_000, 125_000_000), Some(38));
        assert_eq!(budget(80_000, u64::MAX), Some(256));
        assert_eq!(budget(u64::MAX, u64::MAX), Some(256));
    }
}
