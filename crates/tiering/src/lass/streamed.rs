//! Where layers go that are unpacked while they are being downloaded.

use std::cmp::Reverse;
use std::num::NonZeroUsize;
use std::time::Duration;

use super::download::spans;
use super::model::Outcome;
use super::pulls::{BLOBS_MAX, Placement, PullsFull};
use crate::Rate;

/// How much longer than the download the disk may take, as a divisor of the download's time: the
/// measured rates are not more exact than that.
pub(super) const TOLERANCE: u128 = 100;
/// Of so many layers, the largest, all choices are tried; of smaller ones that go to fast memory,
/// all larger ones do.
const CHOICES: u32 = 12;
/// Additions that a decision takes at most, some milliseconds: of pulls with very many layers
/// fewer choices are tried.
const WORK: usize = 1 << 24;

const NANOS_PER_SEC: u128 = 1_000_000_000;

/// A layer that is yet to be downloaded, or the rest of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arriving {
    /// Bytes of its archive.
    pub archive: u64,
    /// Bytes that they unpack to.
    pub unpacked: u64,
    /// Its placement, if that is decided: for a layer whose first file exists.
    pub placed: Option<Placement>,
}

/// The share of the network that this pull has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// Bytes that it brings in a second, of all layers together.
    pub rate: Rate,
    /// Layers that are downloaded at once.
    pub concurrent: NonZeroUsize,
}

/// The share of the disk that this pull has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disk {
    /// Bytes that it writes in a second.
    pub rate: Rate,
    /// Bytes that wait for it already, whosever they are.
    pub waiting: u64,
}

/// Where the layers of a pull go, and what that costs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Streamed {
    /// The place of each layer, in the order in which they were given.
    pub places: Vec<Placement>,
    /// The cost of these placements, if the estimates hold.
    pub outcome: Outcome,
}

/// Places layers that are unpacked while they are being downloaded, several at once: with as few
/// bytes on fast memory as possible such that the disk is done when the download is, or no more
/// than a hundredth of the download later.
///
/// `layers` are in the order in which their downloads begin; those that are being downloaded come
/// first. Fast memory has `room` bytes. If that is too little, the placement is the one in which the
/// disk is done soonest.
///
/// # The model
///
/// In the terms of the paper (the symbols are those of [`Stack`](super::Stack)): `T_D` is the time of
/// the download, and `α` the reciprocal of the disk's write rate. Equation 2 says that
/// nothing is left for the disk when the download ends, `T_Disk = 0` for `M ≤ K`, as what is below the
/// LDL "has been stored". That makes two assumptions, and both are modelled here:
///
/// - *The disk keeps up with the network.* Let `a(t)` be the bytes of all layers on the disk that have
///   been unpacked until `t`, and `W` what waited for the disk before. A disk that is never idle while
///   there is something to write is done
///
///   ```text
///   T_Disk = max(0, α·(W + a(T_D)) − T_D, max over s of α·(a(T_D) − a(s)) − (T_D − s))
///   ```
///
/// after the download: the time that remains for the data after some moment `s`. With a fast disk that
/// is 0, as in equation 2; with `s = T_D` no data has come after, and the other terms count when the disk
/// could not keep up since `s`. If no layer goes to the disk it is 0, whatever other processes write.
/// - *Layers are stored one after another, when they are complete.* These are not: each is unpacked as it
///   arrives, so `a` grows by `unpacked / archive` for each byte of a layer that the network brings. The
///   downloads at one time share the network equally, as for [`last_downloaded`](super::last_downloaded).
///   So the layers above the LDL, and the LDL itself, wait only for the disk, and there is no one
///   boundary: `T_NVM` is 0, and any layer may be the one that the disk has no time for.
///
/// The objective of the paper stays: the least `T_Total = T_D + T_Disk` (equation 1), and of these
/// placements the one with the least `U_Total` (equation 5), here the sum of the layers on fast memory.
/// The search tries all choices among the twelve largest layers, with all others on the disk;
/// and if the disk cannot even write those in time, it moves the largest of the others, too. Of many
/// layers in one pull, of which very many are downloaded at once, fewer are tried.
///
/// With enough room, a faster disk never has more bytes on fast memory.
///
/// # Errors
/// If there are more than 500 layers.
pub fn streamed(
    layers: &[Arriving],
    line: &Line,
    disk: &Disk,
    room: u64,
) -> Result<Streamed, PullsFull> {
    if layers.len() > BLOBS_MAX {
        return Err(PullsFull {
            what: "layers in a pull",
            most: BLOBS_MAX,
        });
    }
    let arrivals = Arrivals::new(layers, line);
    let bytes = |choice: &Vec<bool>| -> u128 {
        let chosen = layers.iter().zip(choice).filter(|(_, fast)| **fast);
        chosen.map(|(layer, _)| u128::from(layer.unpacked)).sum()
    };
    let mut choices = choices(layers, arrivals.work());
    // Sorted once and for all: which of them will do depends on the disk, their order does not.
    choices.sort_by_cached_key(bytes);
    // What was decided before may take more than all there is: then nothing is added.
    let least = choices.first().map_or(0, bytes);
    let most = u128::from(room).max(least);
    let tolerated = arrivals.download / TOLERANCE;
    let mut best: Option<(u128, Vec<bool>)> = None;
    for choice in choices {
        if bytes(&choice) > most {
            break;
        }
        let late = arrivals.storing(disk, &choice);
        if best.as_ref().is_none_or(|(least, _)| late < *least) {
            best = Some((late, choice));
        }
        if late <= tolerated {
            break;
        }
    }
    let (late, choice) = best.unwrap_or_default();
    Ok(Streamed {
        outcome: Outcome {
            download: time(arrivals.download),
            disk: time(late),
            fast: Duration::ZERO,
            fast_bytes: u64::try_from(bytes(&choice)).unwrap_or(u64::MAX),
        },
        places: choice.iter().map(place).collect(),
    })
}

fn place(fast: &bool) -> Placement {
    match fast {
        true => Placement::Fast,
        false => Placement::Slow,
    }
}

fn time(nanos: u128) -> Duration {
    let secs = u64::try_from(nanos / NANOS_PER_SEC);
    let rest = u32::try_from(nanos % NANOS_PER_SEC);
    match (secs, rest) {
        (Ok(secs), Ok(rest)) => Duration::new(secs, rest),
        _ => Duration::MAX,
    }
}

/// Returns which layers may go to fast memory together, each choice as a flag for each layer: the
/// same ones however fast the disk is.
fn choices(layers: &[Arriving], work: usize) -> Vec<Vec<bool>> {
    let decided = |layer: &Arriving| layer.placed == Some(Placement::Fast);
    let mut choice: Vec<bool> = layers.iter().map(decided).collect();
    let is_free = |at: &usize| layers[*at].placed.is_none() && layers[*at].unpacked > 0;
    let mut free: Vec<usize> = (0..layers.len()).filter(is_free).collect();
    free.sort_by_key(|at| Reverse(layers[*at].unpacked));
    let affordable = (WORK / work.max(1)).max(1).ilog2().min(CHOICES);
    let tried = free.len().min(usize::try_from(affordable).unwrap_or(0));
    let (large, small) = free.split_at(tried);
    let mut choices = Vec::new();
    for set in 0..1u32 << large.len() {
        for (bit, at) in large.iter().enumerate() {
            choice[*at] = set & (1 << bit) != 0;
        }
        choices.push(choice.clone());
    }
    // The last one has all of the large layers.
    for at in small {
        choice[*at] = true;
        choices.push(choice.clone());
    }
    choices
}

/// What the network brings when.
struct Arrivals {
    steps: Vec<Step>,
    /// Its duration in nanoseconds.
    download: u128,
}

/// A time in which the same layers are being downloaded.
struct Step {
    nanos: u128,
    /// Layers, and bytes that are unpacked of them.
    bytes: Vec<(usize, u128)>,
}

impl Arrivals {
    fn new(layers: &[Arriving], line: &Line) -> Self {
        // Who has nothing to download has something to unpack, perhaps, so it takes a moment.
        let sizes: Vec<u64> = layers.iter().map(|layer| layer.archive.max(1)).collect();
        let spans = spans(&sizes, line.concurrent);
        let mut cuts: Vec<u128> = spans.iter().flat_map(|(from, to)| [*from, *to]).collect();
        cuts.sort_unstable();
        cuts.dedup();
        let step = |cut: &[u128]| {
            let (from, to) = (cut[0], cut[1]);
            let running = spans.iter().enumerate();
            let running = running.filter(|(_, span)| span.0 <= from && to <= span.1);
            let bytes: Vec<_> = running
                .map(|(at, span)| {
                    // In whole bytes until each moment, so that all of them come in the end.
                    let unpacked = |until: u128| {
                        u128::from(layers[at].unpacked) * (until - span.0) / u128::from(sizes[at])
                    };
                    (at, unpacked(to) - unpacked(from))
                })
                .collect();
            // Each of them got as many bytes as the time is long.
            let brought = (to - from) * bytes.len() as u128;
            let rate = u128::from(line.rate.bytes_per_second());
            Step {
                nanos: (brought * NANOS_PER_SEC).div_ceil(rate),
                bytes,
            }
        };
        let steps: Vec<Step> = cuts.windows(2).map(step).collect();
        Self {
            download: steps.iter().map(|step| step.nanos).sum(),
            steps,
        }
    }

    /// Returns how many additions it takes to try one choice.
    fn work(&self) -> usize {
        let additions = self.steps.iter().map(|step| step.bytes.len() + 1);
        additions.sum()
    }

    /// Returns how many nanoseconds the disk takes after the download, for what is not on fast memory.
    fn storing(&self, disk: &Disk, fast: &[bool]) -> u128 {
        let alpha = |bytes: u128| bytes * NANOS_PER_SEC / u128::from(disk.rate.bytes_per_second());
        let mut left = alpha(u128::from(disk.waiting));
        let mut has_ours = false;
        for step in &self.steps {
            let to_disk = step.bytes.iter().filter(|(at, _)| !fast[*at]);
            let came: u128 = to_disk.map(|(_, bytes)| bytes).sum();
            has_ours |= came > 0;
            left = (left + alpha(came)).saturating_sub(step.nanos);
        }
        // What is written in turn is done once all before it is, and nothing of ours came after.
        if has_ours { left } else { 0 }
    }
}
