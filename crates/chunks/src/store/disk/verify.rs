//! Reads all chunks and compares them with their ids, to find damage before a client does.

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
    /// Whether it was cancelled.
    pub stopped: bool,
}

impl DiskStore {
    /// Reads every chunk, decompresses it, and compares it with its id; damaged ones are dropped.
    /// Gets and puts continue meanwhile. Calls `watch` with the raw bytes of each chunk, and stops when it
    /// breaks.
    pub fn verify(&self, watch: &mut dyn FnMut(u64) -> ControlFlow<()>) -> VerifyReport {
        let mut report = VerifyReport::default();
        let numbers: Vec<u64> = self.state.lock().segments.keys().copied().collect();
        for number in numbers {
            for (id, place) in self.live_in(number) {
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
    fn live_in(&self, number: u64) -> Vec<(ChunkId, RecordLocation)> {
        // Compacted away since: whoever copied it read it.
        let Some(segment) = self.segment(number) else {
            return Vec::new();
        };
        let lines = match segment.contents() {
            Ok(contents) => contents.lines,
            Err(error) => {
                log::warn!("cannot read segment {number:016x}: {error}");
                Vec::new()
            }
        };
        let state = self.state.lock();
        let places = lines
            .iter()
            .map(|line| (line.id, RecordLocation::new(number, line)));
        let lives =
            |(id, place): &(ChunkId, RecordLocation)| state.residents.get(id) == Some(place);
        places.filter(lives).collect()
    }

    fn check(&self, id: &ChunkId, place: &RecordLocation, report: &mut VerifyReport) {
        let Some(segment) = self.segment(place.number) else {
            return;
        };
        report.chunks += 1;
        report.raw_bytes += u64::from(place.raw_len);
        let stored = segment.read(&place.line(*id));
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
