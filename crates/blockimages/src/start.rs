//! What a start reads of an image: recorded, and fetched first the next time.

use std::collections::HashSet;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lsmt::{Expected, ReadAt, TRACE_RECORDS_MAX, Trace, TraceDialect, TraceRead};
use parking_lot::Mutex;
use ranges::Ending;

use crate::plan::BLOCK_BYTES;
use crate::start_data::StartDataRef;

/// Blocks that are noted: 4 GiB, more than any start reads, and 24 MiB of memory.
const BLOCKS_MAX: usize = 1 << 20;

/// Records the reads of layers, each block once, in the order of the first reads. Clones share the
/// recording.
#[derive(Clone, Debug, Default)]
pub struct StartRecorder(Arc<Mutex<Recording>>);

#[derive(Debug, Default)]
struct Recording {
    seen: HashSet<(u32, u64)>,
    reads: Vec<TraceRead>,
    last: Option<Instant>,
    is_over: bool,
}

/// How far a recording is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordingProgress {
    /// Bytes that were read so far.
    pub bytes: u64,
    /// How long ago something was read that had not been read before; `None` if nothing was read.
    pub quiet: Option<Duration>,
    /// Whether it was stopped.
    pub is_over: bool,
}

impl StartRecorder {
    /// Returns the reads so far, in overlaybd's format.
    #[must_use]
    pub fn trace(&self) -> Trace {
        Trace {
            dialect: TraceDialect::Overlaybd,
            reads: self.0.lock().reads.clone(),
        }
    }

    /// Returns how far it is.
    #[must_use]
    pub fn progress(&self) -> RecordingProgress {
        let recording = self.0.lock();
        RecordingProgress {
            bytes: recording.seen.len() as u64 * BLOCK_BYTES,
            quiet: recording.last.map(|last| last.elapsed()),
            is_over: recording.is_over,
        }
    }

    /// Records no more, and returns the memory that it took.
    pub fn stop(&self) {
        *self.0.lock() = Recording {
            is_over: true,
            ..Recording::default()
        };
    }

    fn note(&self, layer: u32, range: &Range<u64>) {
        let mut recording = self.0.lock();
        if recording.is_over {
            return;
        }
        let Recording {
            seen, reads, last, ..
        } = &mut *recording;
        for block in range.start / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES) {
            if seen.len() >= BLOCKS_MAX {
                return;
            }
            if !seen.insert((layer, block)) {
                continue;
            }
            *last = Some(Instant::now());
            let offset = block * BLOCK_BYTES;
            let is_full = reads.len() as u64 >= TRACE_RECORDS_MAX;
            match reads.last_mut() {
                Some(last)
                    if last.layer == layer
                        && last.offset + last.len == offset
                        && last.len < lsmt::TRACE_READ_MAX =>
                {
                    last.len += BLOCK_BYTES;
                }
                _ if is_full => return,
                _ => reads.push(TraceRead {
                    layer,
                    offset,
                    len: BLOCK_BYTES,
                }),
            }
        }
    }
}

/// The plan of an image's start, and its recording.
#[derive(Clone, Debug, Default)]
pub struct Start {
    /// What an earlier start read: it is fetched first, in this order within each layer.
    pub plan: Option<Trace>,
    /// What the registry has of the blocks that it read: it is fetched before all else, and verified.
    pub data: Option<StartDataRef>,
    /// The recorder of this start.
    pub recorder: Option<StartRecorder>,
    /// When the image began to be opened, if that was before; all of it has one deadline.
    pub began: Option<Instant>,
    /// Ends the waits of who opens the image, and reads the device.
    pub ending: Arc<Ending>,
}

impl Start {
    /// Returns the same for one layer, counted from the bottom.
    #[must_use]
    pub const fn of_layer(&self, layer: u32) -> LayerStart<'_> {
        LayerStart { start: self, layer }
    }
}

/// The plan of the start for one layer.
#[derive(Clone, Copy, Debug)]
pub struct LayerStart<'a> {
    start: &'a Start,
    layer: u32,
}

impl LayerStart<'_> {
    /// Returns the ranges to fetch first: bytes of the uncompressed blob, each with its place in the order
    /// of the reads of all layers.
    #[must_use]
    pub fn plan(&self) -> Vec<(usize, Range<u64>)> {
        let reads = self.start.plan.iter().flat_map(|plan| &plan.reads);
        let own = reads
            .enumerate()
            .filter(|(_, read)| read.layer == self.layer);
        own.map(|(place, read)| (place, read.offset..read.offset.saturating_add(read.len)))
            .collect()
    }

    /// Returns the uncompressed blob, whose reads are recorded if requested.
    #[must_use]
    pub fn watched(&self, content: Arc<dyn ReadAt>) -> Arc<dyn ReadAt> {
        match &self.start.recorder {
            None => content,
            Some(recorder) => Arc::new(Watched {
                content,
                layer: self.layer,
                recorder: recorder.clone(),
            }),
        }
    }
}

struct Watched {
    content: Arc<dyn ReadAt>,
    layer: u32,
    recorder: StartRecorder,
}

impl ReadAt for Watched {
    fn size(&self) -> io::Result<u64> {
        self.content.size()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.content.read_at(buffer, offset)?;
        let range = offset..offset.saturating_add(buffer.len() as u64);
        self.recorder.note(self.layer, &range);
        Ok(())
    }

    fn expect(&self, ranges: &[Range<u64>]) -> Option<Expected> {
        self.content.expect(ranges)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_recorded_is_bounded() {
        let recorder = StartRecorder::default();
        recorder.note(0, &(0..BLOCK_BYTES * (BLOCKS_MAX as u64 + 5)));
        recorder.note(1, &(0..1));
        let reads = recorder.trace().reads;
        let bytes: u64 = reads.iter().map(|read| read.len).sum();
        assert_eq!(bytes, BLOCK_BYTES * BLOCKS_MAX as u64);
        assert!(reads.iter().all(|read| read.layer == 0));
    }

    #[test]
    fn each_block_is_recorded_once_and_neighbours_together() {
        let recorder = StartRecorder::default();
        recorder.note(0, &(5000..9000));
        recorder.note(0, &(12_288..12_289));
        recorder.note(1, &(0..1));
        recorder.note(0, &(0..16_384));
        let reads = recorder.trace().reads;
        let read = |layer, offset, len| TraceRead { layer, offset, len };
        let expected = [read(0, 4096, 12_288), read(1, 0, 4096), read(0, 0, 4096)];
        assert_eq!(reads, expected);
        let start = Start {
            plan: Some(recorder.trace()),
            recorder: None,
            ..Start::default()
        };
        assert_eq!(start.of_layer(0).plan(), [(0, 4096..16_384), (2, 0..4096)]);
        assert_eq!(start.of_layer(2).plan(), []);
        let progress = recorder.progress();
        assert_eq!((progress.bytes, progress.is_over), (5 * BLOCK_BYTES, false));
        assert!(progress.quiet.is_some());
        recorder.stop();
        recorder.note(2, &(0..1));
        assert!(recorder.trace().reads.is_empty() && recorder.progress().is_over);
    }
}
