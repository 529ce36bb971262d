//! The pass itself: one thread reads, with some requests in flight ahead of it, and another hashes.

use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Instant;

use blocks::{BlockIndex, BlockRange, ContentId, RangeSet};

use super::requests::{Requests, Source, Step};
use crate::layout::{HASH, PAGE, PAGE_BYTES, hash, len_usize};
use crate::store::places::Places;
use crate::{Cancelled, Progress, Watch};

/// Buffers between the thread that reads and the one that hashes.
const BUFFERS: usize = 4;
/// What the disk is reading ahead of the thread that waits for it: a dozen of large requests, so that it
/// need not wait for the processor.
const AHEAD_BYTES: u64 = 16 << 20;

/// The result of reading.
#[derive(Debug, Default)]
pub(super) struct Read {
    pub(super) bytes: u64,
    pub(super) gap_bytes: u64,
    /// Requests, each for no more than the disk takes at once.
    pub(super) requests: u64,
    /// Blocks that could not be read, or do not match their segment's table.
    pub(super) bad: BTreeMap<ContentId, RangeSet>,
}

/// Something of a segment on its way to be hashed: what was read at a step, nothing at the end.
struct Piece {
    step: Step,
    bytes: Vec<u8>,
}

/// Reads blocks of segments in the order of the disk, and verifies them.
///
/// # Errors
/// If the watch cancels.
pub(super) fn read(
    places: &Places,
    wanted: BTreeMap<ContentId, RangeSet>,
    watch: Watch<'_>,
) -> Result<Read, Cancelled> {
    let total = wanted.values().map(RangeSet::len).sum::<u64>() * PAGE_BYTES;
    let requests = Requests::new(places, wanted);
    std::thread::scope(|scope| {
        let (send, come) = sync_channel(BUFFERS);
        let (give_back, spare) = sync_channel(BUFFERS);
        let reader = std::thread::Builder::new()
            .name("bootimg-pass".to_owned())
            .spawn_scoped(scope, move || read_all(requests, &send, &spare));
        let verified = verify(come, &give_back, total, watch);
        if let Err(error) = reader {
            log::warn!("nothing is read: no thread can be started: {error}");
        }
        verified
    })
}

/// Reads step after step, until the receiver is gone. `spare` has buffers that are no longer in use.
fn read_all(mut requests: Requests<'_>, send: &SyncSender<Piece>, spare: &Receiver<Vec<u8>>) {
    let mut device = requests.measure();
    let mut ahead: VecDeque<Step> = VecDeque::new();
    let mut ahead_bytes = 0;
    loop {
        let is_measured = device.is_measured();
        // What is measured is read alone.
        let most = if is_measured { AHEAD_BYTES } else { 1 };
        while ahead_bytes < most
            && let Some(step) = requests.next(&device)
        {
            if is_measured {
                step.begin();
            }
            ahead_bytes += step.len();
            ahead.push_back(step);
        }
        let Some(step) = ahead.pop_front() else {
            return;
        };
        ahead_bytes -= step.len();
        let mut bytes = spare.try_recv().unwrap_or_default();
        let started = Instant::now();
        step.read(&mut bytes);
        if !is_measured && !bytes.is_empty() {
            device.read(step.len(), started.elapsed());
        }
        if send.send(Piece { step, bytes }).is_err() {
            return;
        }
    }
}

/// Hashes what comes, and compares it with the table of its segment, which comes last.
fn verify(
    come: Receiver<Piece>,
    give_back: &SyncSender<Vec<u8>>,
    total: u64,
    watch: Watch<'_>,
) -> Result<Read, Cancelled> {
    let mut read = Read::default();
    let mut came = Came::default();
    let mut done = 0;
    for Piece { step, bytes } in come {
        match step {
            Step::Part(source, pages) | Step::Rest(source, pages) => {
                read.requests += 1;
                let first = pages.start().0;
                let blocks = came.take(&source, first, &bytes) * PAGE_BYTES;
                done += blocks;
                let data = BlockRange::new(BlockIndex(1), BlockIndex(source.blocks + 1));
                read.gap_bytes += (pages.intersect(data).len() * PAGE_BYTES).saturating_sub(blocks);
            }
            Step::End(source) => {
                let bad = std::mem::take(&mut came).bad(&source);
                read.bytes += (source.wanted.len() - bad.len()) * PAGE_BYTES;
                if !bad.is_empty() {
                    read.bad.insert(source.id, bad);
                }
            }
        }
        drop(give_back.try_send(bytes)); // if there are enough, or the reader has ended, nobody needs it
        if watch(Progress { done, total }) == ControlFlow::Break(()) {
            return Err(Cancelled);
        }
    }
    Ok(read)
}

/// What came of a segment.
#[derive(Debug, Default)]
struct Came {
    /// The hashes of wanted blocks, in order.
    hashes: Vec<(u64, [u8; HASH])>,
    table: Vec<u8>,
}

impl Came {
    /// Takes what was read of a segment's file from a page on. Returns how many wanted blocks it has.
    fn take(&mut self, source: &Arc<Source>, first: u64, bytes: &[u8]) -> u64 {
        let before = self.hashes.len();
        for (page, bytes) in (first..).zip(bytes.chunks(PAGE)) {
            let Some(block) = page.checked_sub(1) else {
                continue; // the header says nothing that the name and the length do not
            };
            if block >= source.blocks {
                self.table.extend_from_slice(bytes);
            } else if source.wanted.contains(BlockIndex(block)) {
                self.hashes.push((block, hash(bytes)));
            }
        }
        (self.hashes.len() - before) as u64
    }

    /// Returns which of the wanted blocks did not come, or are not what the table says.
    fn bad(self, source: &Source) -> RangeSet {
        // A segment is called what its table hashes to.
        let is_right = hash(&self.table) == source.id.0;
        let (table, _) = self.table.as_chunks::<HASH>();
        let mut bad = source.wanted.clone();
        for (block, hash) in self.hashes {
            if is_right && table.get(len_usize(block)) == Some(&hash) {
                bad.remove(BlockRange::with_len(BlockIndex(block), 1));
            }
        }
        bad
    }
}
