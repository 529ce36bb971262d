//! What starts of an image read, by the digests of its layers: it holds for every image that has one of these
//! (docs/block-plan-format.md).

mod shelf;

use std::ops::Range;

use blocks::Digest;
use lsmt::{TRACE_READ_MAX, TRACE_RECORDS_MAX, Trace, TraceDialect, TraceRead};
use thiserror::Error;

pub use shelf::{KeptPlan, PlanShelf, read_plan};

/// The bytes of a block.
pub(crate) const BLOCK_BYTES: u64 = 4096;

const MAGIC: [u8; 8] = *b"YOLOBP\0\x01";
const HEADER_BYTES: usize = 32;
const DIGEST_BYTES: usize = 32;
const READ_BYTES: usize = 16;
/// Where the header has the checksum of everything else.
const CRC_AT: Range<usize> = 24..28;
/// Blocks of a read: a MiB.
#[expect(clippy::cast_possible_truncation, reason = "256")]
const READ_BLOCKS_MAX: u32 = (TRACE_READ_MAX / BLOCK_BYTES) as u32;
/// The last block that a layer may have: its last byte has a number of 63 bits.
const BLOCK_MAX: u64 = i64::MAX as u64 / BLOCK_BYTES - READ_BLOCKS_MAX as u64;

/// The longest plan.
pub const PLAN_BYTES_MAX: u64 =
    (HEADER_BYTES + LAYERS_MAX * DIGEST_BYTES) as u64 + TRACE_RECORDS_MAX * READ_BYTES as u64;
/// Layers of a plan, as of a stack.
const LAYERS_MAX: usize = lsmt::LAYERS_MAX;

/// What a start reads of layers, in its order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StartPlan {
    /// When it was recorded, in seconds since 1970.
    pub recorded_at: u64,
    layers: Vec<Digest>,
    reads: Vec<PlannedRead>,
}

/// Some blocks of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PlannedRead {
    /// The layer's place in the plan.
    layer: u16,
    blocks: u32,
    first: u64,
}

/// Why bytes are no plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PlanError {
    /// They do not begin as one.
    #[error("it is no plan of a start, or of another version")]
    Magic,
    /// The bytes differ from what was written.
    #[error("it is damaged: its checksum is another")]
    Damaged,
    /// They break a rule of the format.
    #[error("it breaks a rule: {0}")]
    Rule(&'static str),
}

impl StartPlan {
    /// Makes the plan of a trace of an image with these layers, the lowest first. Reads of
    /// layers without a digest are left out.
    #[must_use]
    pub fn of_trace(trace: &Trace, layers: &[Option<Digest>], recorded_at: u64) -> Self {
        let mut plan = Self {
            recorded_at,
            ..Self::default()
        };
        for read in &trace.reads {
            let layer = usize::try_from(read.layer).ok();
            let Some(Some(digest)) = layer.and_then(|layer| layers.get(layer)) else {
                continue;
            };
            let blocks = read.offset / BLOCK_BYTES
                ..read.offset.saturating_add(read.len).div_ceil(BLOCK_BYTES);
            plan.push(*digest, blocks);
        }
        plan
    }

    /// Appends reads of a layer, as far as a plan has room for them.
    fn push(&mut self, digest: Digest, blocks: Range<u64>) {
        let known = self.layers.iter().position(|layer| *layer == digest);
        let layer = match known {
            Some(layer) => layer,
            None if self.layers.len() < LAYERS_MAX => {
                self.layers.push(digest);
                self.layers.len() - 1
            }
            None => return,
        };
        let Ok(layer) = u16::try_from(layer) else {
            return;
        };
        let mut first = blocks.start;
        while first < blocks.end && first <= BLOCK_MAX {
            if self.reads.len() as u64 >= TRACE_RECORDS_MAX {
                return;
            }
            let left = u32::try_from(blocks.end - first).unwrap_or(u32::MAX);
            let blocks = left.min(READ_BLOCKS_MAX);
            self.reads.push(PlannedRead {
                layer,
                blocks,
                first,
            });
            first += u64::from(blocks);
        }
    }

    /// Returns the layers of which something is read.
    #[must_use]
    pub fn layers(&self) -> &[Digest] {
        &self.layers
    }

    /// Returns how many bytes are read, uncompressed.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let blocks = self.reads.iter().map(|read| u64::from(read.blocks));
        blocks.sum::<u64>() * BLOCK_BYTES
    }

    /// Returns whether nothing is read.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.reads.is_empty()
    }

    /// Returns the reads of an image with these layers, the lowest first; reads of other layers are left
    /// out.
    #[must_use]
    pub fn trace_of(&self, layers: &[Option<Digest>]) -> Trace {
        let places: Vec<_> = self
            .layers
            .iter()
            .map(|digest| layers.iter().position(|layer| *layer == Some(*digest)))
            .collect();
        let read = |read: &PlannedRead| {
            let place = places.get(usize::from(read.layer)).copied().flatten()?;
            Some(TraceRead {
                layer: u32::try_from(place).ok()?,
                offset: read.first * BLOCK_BYTES,
                len: u64::from(read.blocks) * BLOCK_BYTES,
            })
        };
        Trace {
            dialect: TraceDialect::Overlaybd,
            reads: self.reads.iter().filter_map(read).collect(),
        }
    }

    /// Leaves out what is read of other layers than these.
    #[must_use]
    pub fn restricted_to(&self, layers: &[Digest]) -> Self {
        let mut restricted = Self {
            recorded_at: self.recorded_at,
            ..Self::default()
        };
        for read in &self.reads {
            let layer = self.layers.get(usize::from(read.layer));
            if let Some(digest) = layer.filter(|digest| layers.contains(digest)) {
                restricted.push(*digest, read.first..read.first + u64::from(read.blocks));
            }
        }
        restricted
    }

    /// Appends what `other` reads of layers that this one reads nothing of.
    pub fn add(&mut self, other: &Self) {
        let own = self.layers.len();
        for read in &other.reads {
            let Some(digest) = other.layers.get(usize::from(read.layer)) else {
                continue;
            };
            if !self.layers[..own].contains(digest) {
                self.push(*digest, read.first..read.first + u64::from(read.blocks));
            }
        }
    }

    /// Encodes the plan.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let count = |len: usize| u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes();
        let mut bytes = MAGIC.to_vec();
        bytes.extend(count(self.layers.len()));
        bytes.extend(count(self.reads.len()));
        bytes.extend(self.recorded_at.to_le_bytes());
        bytes.extend([0; 8]);
        for layer in &self.layers {
            bytes.extend(layer.0);
        }
        for read in &self.reads {
            bytes.extend(read.layer.to_le_bytes());
            bytes.extend([0; 2]);
            bytes.extend(read.blocks.to_le_bytes());
            bytes.extend(read.first.to_le_bytes());
        }
        let sum = checksum(&bytes);
        bytes[CRC_AT].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Decodes a plan.
    ///
    /// # Errors
    /// If it is not a plan, damaged, or breaks a rule of the format.
    pub fn decode(bytes: &[u8]) -> Result<Self, PlanError> {
        let (header, rest) = bytes
            .split_first_chunk::<HEADER_BYTES>()
            .ok_or(PlanError::Magic)?;
        let (layers, reads) = counts(header)?;
        let digests = layers * DIGEST_BYTES as u64;
        if rest.len() as u64 != digests + reads * READ_BYTES as u64 {
            return Err(PlanError::Rule("its length is not what its header says"));
        }
        if checksum(bytes) != u32::from_le_bytes([header[24], header[25], header[26], header[27]]) {
            return Err(PlanError::Damaged);
        }
        let at = usize::try_from(digests).map_err(|_| PlanError::Magic)?;
        let (digests, reads) = rest.split_at(at);
        let digests = digests.as_chunks::<DIGEST_BYTES>().0;
        let layers: Vec<_> = digests.iter().copied().map(Digest).collect();
        let twice = |at: usize| layers[..at].contains(&layers[at]);
        if (0..layers.len()).any(twice) {
            return Err(PlanError::Rule("it has a layer twice"));
        }
        let reads = reads.as_chunks::<READ_BYTES>().0;
        let reads = reads
            .iter()
            .map(|read| PlannedRead::decode(read, layers.len()));
        let reads = reads.collect::<Option<_>>();
        Ok(Self {
            recorded_at: recorded_at(header),
            reads: reads.ok_or(PlanError::Rule("a read is of no layer, or of no blocks"))?,
            layers,
        })
    }
}

impl PlannedRead {
    fn decode(bytes: &[u8; READ_BYTES], layers: usize) -> Option<Self> {
        let [a, b, 0, 0, rest @ ..] = *bytes else {
            return None;
        };
        let mut first = [0; 8];
        first.copy_from_slice(&rest[4..]);
        let read = Self {
            layer: u16::from_le_bytes([a, b]),
            blocks: u32::from_le_bytes([rest[0], rest[1], rest[2], rest[3]]),
            first: u64::from_le_bytes(first),
        };
        let known = usize::from(read.layer) < layers;
        let bounded = (1..=READ_BLOCKS_MAX).contains(&read.blocks) && read.first <= BLOCK_MAX;
        (known && bounded).then_some(read)
    }
}

/// What the beginning of a file says of a plan, which is not verified yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlanHead {
    pub(crate) recorded_at: u64,
    pub(crate) layers: Vec<Digest>,
}

impl PlanHead {
    /// The most bytes that it has.
    pub(crate) const BYTES_MAX: usize = HEADER_BYTES + LAYERS_MAX * DIGEST_BYTES;

    /// Decodes the first bytes of a file.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, PlanError> {
        let (header, rest) = bytes
            .split_first_chunk::<HEADER_BYTES>()
            .ok_or(PlanError::Magic)?;
        let layers = usize::try_from(counts(header)?.0).map_err(|_| PlanError::Magic)?;
        let digests = rest.as_chunks::<DIGEST_BYTES>().0;
        let digests = digests.get(..layers).ok_or(PlanError::Damaged)?;
        Ok(Self {
            recorded_at: recorded_at(header),
            layers: digests.iter().copied().map(Digest).collect(),
        })
    }
}

/// Returns the numbers of layers and reads, which are bounded.
fn counts(header: &[u8; HEADER_BYTES]) -> Result<(u64, u64), PlanError> {
    if !header.starts_with(&MAGIC) {
        return Err(PlanError::Magic);
    }
    let (layers, reads) = (number(header, 8), number(header, 12));
    if layers > LAYERS_MAX as u64 || reads > TRACE_RECORDS_MAX {
        return Err(PlanError::Rule("it has too many layers or reads"));
    }
    Ok((layers, reads))
}

fn recorded_at(header: &[u8; HEADER_BYTES]) -> u64 {
    let mut stamp = [0; 8];
    stamp.copy_from_slice(&header[16..24]);
    u64::from_le_bytes(stamp)
}

fn number(header: &[u8; HEADER_BYTES], at: usize) -> u64 {
    let bytes = [header[at], header[at + 1], header[at + 2], header[at + 3]];
    u64::from(u32::from_le_bytes(bytes))
}

/// Returns the CRC-32C of all bytes but those of the checksum itself.
fn checksum(bytes: &[u8]) -> u32 {
    let sum = crc32c::crc32c(&bytes[..CRC_AT.start]);
    crc32c::crc32c_append(sum, &bytes[CRC_AT.end..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(reads: &[(u32, u64, u64)]) -> Trace {
        let read = |&(layer, offset, len)| TraceRead { layer, offset, len };
        Trace {
            dialect: TraceDialect::Overlaybd,
            reads: reads.iter().map(read).collect(),
        }
    }

    fn digest(number: u8) -> Digest {
        Digest([number; 32])
    }

    #[test]
    fn a_plan_holds_for_images_that_share_layers() {
        let layers = [Some(digest(1)), None, Some(digest(3))];
        let reads = [
            (2, 4096, 8192),
            (1, 0, 4096),
            (0, 5000, 1),
            (9, 0, 1),
            (2, 0, 4096),
        ];
        let plan = StartPlan::of_trace(&trace(&reads), &layers, 7);
        assert_eq!(plan.layers(), [digest(3), digest(1)]);
        assert_eq!(plan.bytes(), 16_384);
        // Another image has the upper one of these lower down, and nothing else in common.
        let there = plan.trace_of(&[Some(digest(8)), Some(digest(3))]);
        assert_eq!(there, trace(&[(1, 4096, 8192), (1, 0, 4096)]));
        let own = plan.trace_of(&layers);
        assert_eq!(
            own,
            trace(&[(2, 4096, 8192), (0, 4096, 4096), (2, 0, 4096)])
        );
        let mut both = StartPlan::of_trace(&trace(&[(0, 0, 1)]), &[Some(digest(8))], 1);
        both.add(&plan);
        both.add(&plan);
        assert_eq!(both.layers(), [digest(8), digest(3), digest(1)]);
        assert_eq!(both.bytes(), 20_480);
    }

    #[test]
    fn what_is_encoded_comes_back_and_damage_is_found() {
        let layers = [Some(digest(1)), Some(digest(2))];
        let reads = [(0, 0, 3 << 20), (1, 1 << 40, 1)];
        let plan = StartPlan::of_trace(&trace(&reads), &layers, u64::MAX);
        let bytes = plan.encode();
        assert_eq!(StartPlan::decode(&bytes), Ok(plan));
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(StartPlan::decode(&damaged).is_err(), "byte {at}");
        }
        assert!(StartPlan::decode(&bytes[..bytes.len() - 1]).is_err());
    }

    #[test]
    fn the_kept_one_of_version_1_is_read() {
        let layers = [Some(digest(0xab)), Some(digest(0xcd))];
        let reads = [(1, 0, 4096), (0, 1 << 20, 8192)];
        let plan = StartPlan::of_trace(&trace(&reads), &layers, 1_700_000_000);
        let kept = include_bytes!("../tests/fixtures/plan-1.bplan");
        assert_eq!(StartPlan::decode(kept), Ok(plan.clone()));
        assert_eq!(plan.encode(), kept);
    }

    #[test]
    fn what_breaks_a_rule_is_refused() {
        let layers = [Some(digest(1)), Some(digest(2))];
        let plan = StartPlan::of_trace(&trace(&[(0, 0, 1), (1, 0, 1)]), &layers, 0);
        let forged = |change: &dyn Fn(&mut StartPlan)| {
            let mut plan = plan.clone();
            change(&mut plan);
            StartPlan::decode(&plan.encode())
        };
        assert!(forged(&|_| {}).is_ok());
        let rules: [&dyn Fn(&mut StartPlan); 5] = [
            &|plan| plan.layers[1] = digest(1),
            &|plan| plan.reads[0].layer = 2,
            &|plan| plan.reads[0].blocks = 0,
            &|plan| plan.reads[0].blocks = READ_BLOCKS_MAX + 1,
            &|plan| plan.reads[0].first = BLOCK_MAX + 1,
        ];
        for rule in rules {
            assert!(matches!(forged(rule), Err(PlanError::Rule(_))));
        }
    }
}
