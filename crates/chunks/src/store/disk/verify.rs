//! Reads all chunks and compares them with their ids, to find damage before a client does.

use std::io;
use std::ops::ControlFlow;

use super::{ChunkId, DiskStore, RecordLocation};

/// Damaged chunks that a report names; it counts all.
const NAMED_MAX: usize = 100;

/// What [`DiskStore::verify`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Chunks that were read.
    pub chunks: u64,
    /// Their bytes, decompressed.
    pub raw_bytes: u64,
    /// Damaged chunks, which were dropped.
    pub damaged: u64,
    /// The first hundred of these.
    pub named: Vec<ChunkId>,
    /// Numbers of segments that the disk did not give, or not whole: nothing is known of chunks there that were not read, and they
    /// are kept. At most a hundred are named.
    pub unread_segments: Vec<u64>,
    /// Whether it was cancelled.
    pub stopped: bool,
}

impl VerifyReport {
    /// Returns whether everything was read, and nothing is damaged.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.damaged == 0 && self.unread_segments.is_empty() && !self.stopped
    }

    fn could_not_read(&mut self, number: u64, error: &io::Error) {
        if self.unread_segments.last() == Some(&number) {
            return;
        }
        log::error!("segment {number:016x} cannot be read, and is kept: {error}");
        if self.unread_segments.len() < NAMED_MAX {
            self.unread_segments.push(number);
        }
    }
}

impl DiskStore {
    /// Reads every chunk, decompresses it, and compares it with its id; damaged ones are dropped. What the disk does not give is
    /// kept: a disk that fails for a moment has damaged nothing.
    /// Gets and puts continue meanwhile. Calls `watch` with the raw bytes of each chunk, and stops when it
    /// breaks.
    pub fn verify(&self, watch: &mut dyn FnMut(u64) -> ControlFlow<()>) -> VerifyReport {
        let mut report = VerifyReport::default();
        let numbers: Vec<u64> = self.state.lock().segments.keys().copied().collect();
        for number in numbers {
            let live = self.live_in(number).unwrap_or_else(|error| {
                report.could_not_read(number, &error);
                Vec::new()
            });
            for (id, place) in live {
                if watch(u64::from(place.raw_len)).is_break() {
                    report.stopped = true;
                    return report;
                }
                self.check(&id, &place, &mut report);
            }
        }
        report
    }

    /// Returns what lives in a segment, in the order in which it lies.
    fn live_in(&self, number: u64) -> io::Result<Vec<(ChunkId, RecordLocation)>> {
        // Compacted away since: whoever copied it read it.
        let Some(segment) = self.segment(number) else {
            return Ok(Vec::new());
        };
        let lines = segment.contents()?.lines;
        let state = self.state.lock();
        let places = lines
            .iter()
            .map(|line| (line.id, RecordLocation::new(number, line)));
        let lives =
            |(id, place): &(ChunkId, RecordLocation)| state.residents.get(id) == Some(place);
        Ok(places.filter(lives).collect())
    }

    fn check(&self, id: &ChunkId, place: &RecordLocation, report: &mut VerifyReport) {
        let Some(segment) = self.segment(place.number) else {
            return;
        };
        let stored = match segment.read_record(&place.line(*id)) {
            Ok(stored) => stored,
            Err(error) => {
                report.could_not_read(place.number, &error);
                return;
            }
        };
        report.chunks += 1;
        report.raw_bytes += u64::from(place.raw_len);
        if stored.is_some_and(|stored| stored.open(id).is_ok()) {
            return;
        }
        self.lose(id, place);
        report.damaged += 1;
        if report.named.len() < NAMED_MAX {
            report.named.push(*id);
        }
    }
}
