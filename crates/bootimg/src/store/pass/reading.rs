//! The pass itself: one thread reads, another hashes.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Instant;

use blocks::{BlockIndex, BlockRange, ContentId, RangeSet};

use super::device::Device;
use super::order::place_on_disk;
use crate::data::segment_offset;
use crate::layout::{HASH, PAGE, PAGE_BYTES, hash, len_usize};
use crate::store::places::Places;
use crate::store::segment::Segment;
use crate::{Cancelled, Progress, Watch};

/// Bytes of a read: above 1 MiB a disk gains little, and the kernel cuts it anyway.
const STEP_BLOCKS: u64 = 1024;
/// Buffers between the thread that reads and the one that hashes.
const BUFFERS: usize = 4;
/// Large reads that are measured: the gap that follows from them holds for the rest.
const MEASURED: usize = 8;

/// The result of reading.
#[derive(Debug, Default)]
pub(super) struct Read {
    pub(super) bytes: u64,
    pub(super) gap_bytes: u64,
    /// Blocks that could not be read, or do not match their segment's table.
    pub(super) bad: BTreeMap<ContentId, RangeSet>,
}

/// Something of a segment on its way to be hashed.
enum Piece {
    /// Blocks from `first` on; those in `wanted` are verified.
    Blocks { first: u64, bytes: Vec<u8> },
    /// All of it came: its table, if that could be read.
    End {
        id: ContentId,
        wanted: RangeSet,
        table: Option<Vec<[u8; HASH]>>,
    },
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
    let placed = wanted.into_iter().map(|(id, set)| {
        let file = File::open(places.segment(&id));
        (file.map_or(0, |file| place_on_disk(&file)), id, set)
    });
    let mut placed: Vec<_> = placed.collect();
    placed.sort_unstable_by_key(|(place, id, _)| (*place, *id));
    std::thread::scope(|scope| {
        let (send, come) = sync_channel(BUFFERS);
        let reader = move || {
            let device = measure(places, &placed);
            read_all(places, placed, device, &send);
        };
        let reader = std::thread::Builder::new()
            .name("bootimg-pass".to_owned())
            .spawn_scoped(scope, reader);
        let verified = verify(come, total, watch);
        if let Err(error) = reader {
            log::warn!("nothing is read: no thread can be started: {error}");
        }
        verified
    })
}

/// Reads one block each of segments that lie apart.
fn measure(places: &Places, placed: &[(u64, ContentId, RangeSet)]) -> Device {
    let mut device = Device::default();
    let step = (placed.len() / 8).max(1);
    for (_, id, set) in placed.iter().rev().step_by(step) {
        let Some(run) = set.runs().last() else {
            continue;
        };
        let Ok(segment) = Segment::open(&places.segment(id)) else {
            continue;
        };
        let file = segment.into_backing();
        let mut block = [0; PAGE];
        let last = segment_offset(run.end().0 - 1);
        // One that cannot be read is told of when its turn comes.
        if !device.seek(|| drop(file.read_only_this(last, &mut block))) {
            break;
        }
    }
    device
}

/// Reads segment after segment, until the receiver is gone.
fn read_all(
    places: &Places,
    placed: Vec<(u64, ContentId, RangeSet)>,
    mut device: Device,
    send: &SyncSender<Piece>,
) {
    let mut measured = 0;
    for (_, id, wanted) in placed {
        let path = places.segment(&id);
        let segment = Segment::open(&path).inspect_err(|_| {
            log::warn!("{} cannot be read", path.display());
        });
        let Ok(segment) = segment else {
            let table = None;
            if send.send(Piece::End { id, wanted, table }).is_err() {
                return;
            }
            continue;
        };
        let file = segment.backing();
        for run in join(&wanted, device.gap_bytes() / PAGE_BYTES) {
            let mut rest = run;
            while !rest.is_empty() {
                let (range, after) = rest.split_first(STEP_BLOCKS);
                let mut bytes = vec![0; len_usize(range.byte_len())];
                let started = Instant::now();
                let first = range.start().0;
                if let Err(error) = file.read_only_this(segment_offset(first), &mut bytes) {
                    log::warn!("{}: {error}", path.display());
                    bytes.clear(); // what is missing is not right
                }
                if measured < MEASURED && range.len() == STEP_BLOCKS {
                    measured += 1;
                    device.read(range.byte_len(), started.elapsed());
                }
                if send.send(Piece::Blocks { first, bytes }).is_err() {
                    return;
                }
                rest = after;
            }
        }
        let table = segment.table().ok();
        if send.send(Piece::End { id, wanted, table }).is_err() {
            return;
        }
    }
}

/// Returns the runs of a set, joined where no more than `gap` blocks lie between them.
fn join(wanted: &RangeSet, gap: u64) -> Vec<BlockRange> {
    let mut joined: Vec<BlockRange> = Vec::new();
    for run in wanted.runs() {
        match joined.last_mut() {
            Some(last) if run.start().0 - last.end().0 <= gap => {
                *last = BlockRange::new(last.start(), run.end());
            }
            _ => joined.push(*run),
        }
    }
    joined
}

/// Hashes what comes, and compares it with the table of its segment, which comes last.
fn verify(come: Receiver<Piece>, total: u64, watch: Watch<'_>) -> Result<Read, Cancelled> {
    let mut read = Read::default();
    let mut hashes: BTreeMap<u64, [u8; HASH]> = BTreeMap::new();
    let mut came = 0;
    for piece in come {
        match piece {
            Piece::Blocks { first, bytes } => {
                came += bytes.len() as u64;
                hashes.extend((first..).zip(bytes.chunks_exact(PAGE).map(hash)));
            }
            Piece::End { id, wanted, table } => {
                let is_right = |block: u64| {
                    let want = table.as_ref().and_then(|table| table.get(len_usize(block)));
                    want.is_some() && hashes.get(&block) == want
                };
                let blocks = wanted
                    .runs()
                    .iter()
                    .flat_map(|run| run.start().0..run.end().0);
                let bad = blocks.filter(|block| !is_right(*block));
                let bad: RangeSet = bad
                    .map(|block| BlockRange::with_len(BlockIndex(block), 1))
                    .collect();
                read.bytes += (wanted.len() - bad.len()) * PAGE_BYTES;
                if !bad.is_empty() {
                    read.bad.insert(id, bad);
                }
                hashes.clear();
            }
        }
        let done = came.min(total);
        if watch(Progress { done, total }) == ControlFlow::Break(()) {
            return Err(Cancelled);
        }
    }
    read.gap_bytes = came.saturating_sub(total);
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_joined_over_small_gaps() {
        let run = |start, end| BlockRange::new(BlockIndex(start), BlockIndex(end));
        let wanted: RangeSet = [run(0, 4), run(6, 8), run(20, 21)].into_iter().collect();
        assert_eq!(join(&wanted, 0), wanted.runs());
        assert_eq!(join(&wanted, 2), [run(0, 8), run(20, 21)]);
        assert_eq!(join(&wanted, 100), [run(0, 21)]);
    }
}
