//! Traces: which reads of a container's start a recording saw, in overlaybd's format.

use crate::crc;
use crate::error::{LsmtError, Result, at_most, rule};
use crate::num::{put, size, u32_at, u64_at, wide};

const MAGIC: u32 = 0xc2ef_1820;
const HEADER_BYTES: usize = 24;
const RECORD_BYTES: usize = 24;
/// Bytes of the longest read: overlaybd's replay has a buffer of this size, and does not check.
pub const TRACE_READ_MAX: u64 = 1 << 20;
/// The maximum number of reads of a trace: our limit, 24 MiB of records.
pub const TRACE_RECORDS_MAX: u64 = 1 << 20;
/// Bytes of a record that is cut into reads: a cap of ours.
const RECORD_READ_MAX: u64 = TRACE_READ_MAX << 6;

/// The kind of a trace's checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TraceDialect {
    /// overlaybd's: CRC-32C without complement.
    #[default]
    Overlaybd,
    /// `AgentENV`'s: the standard CRC-32C.
    AgentEnv,
}

/// A read of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceRead {
    /// The layer, from the bottom.
    pub layer: u32,
    /// The first byte of the uncompressed blob.
    pub offset: u64,
    /// How many bytes, at most [`TRACE_READ_MAX`].
    pub len: u64,
}

/// A trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// The kind of its checksum.
    pub dialect: TraceDialect,
    /// The reads.
    pub reads: Vec<TraceRead>,
}

impl Trace {
    /// Decodes a file. Reads longer than [`TRACE_READ_MAX`] are split, and other records than
    /// reads are left out.
    ///
    /// # Errors
    ///
    /// Fails if it is not a trace, damaged, or breaks a rule of the format.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        if bytes.len() < HEADER_BYTES || u32_at(bytes, 0) != MAGIC {
            return Err(LsmtError::Magic { kind: "trace" });
        }
        let records = &bytes[HEADER_BYTES..];
        if u64_at(bytes, 8) != wide(records.len()) || !records.len().is_multiple_of(RECORD_BYTES) {
            return rule("trace", "its length is not what its header says");
        }
        at_most(
            "number of records",
            wide(records.len() / RECORD_BYTES),
            TRACE_RECORDS_MAX,
        )?;
        let found = u32_at(bytes, 16);
        let dialect = if found == crc::raw(0, records) {
            TraceDialect::Overlaybd
        } else if found == crc::standard(records) {
            TraceDialect::AgentEnv
        } else {
            let part = "trace";
            return Err(LsmtError::Checksum { part, at: 0 });
        };
        let mut reads = Vec::with_capacity(records.len() / RECORD_BYTES);
        for record in records.chunks_exact(RECORD_BYTES) {
            if record[0] == b'R' {
                push(&mut reads, record)?;
            }
        }
        Ok(Self { dialect, reads })
    }

    /// Encodes it; longer reads than [`TRACE_READ_MAX`] are cut into several.
    pub fn encode(&self) -> Vec<u8> {
        let mut records = Vec::with_capacity(self.reads.len() * RECORD_BYTES);
        for read in &self.reads {
            for (offset, len) in pieces(read.offset, read.len) {
                let mut record = [0; RECORD_BYTES];
                record[0] = b'R';
                put(&mut record, 4, &read.layer.to_le_bytes());
                put(&mut record, 8, &len.to_le_bytes());
                put(&mut record, 16, &offset.to_le_bytes());
                records.extend(record);
            }
        }
        let sum = match self.dialect {
            TraceDialect::Overlaybd => crc::raw(0, &records),
            TraceDialect::AgentEnv => crc::standard(&records),
        };
        let mut bytes = vec![0; HEADER_BYTES];
        put(&mut bytes, 0, &MAGIC.to_le_bytes());
        put(&mut bytes, 8, &wide(records.len()).to_le_bytes());
        put(&mut bytes, 16, &sum.to_le_bytes());
        bytes.extend(records);
        bytes
    }
}

/// Appends what a record says.
fn push(reads: &mut Vec<TraceRead>, record: &[u8]) -> Result<()> {
    let (layer, len, offset) = (u32_at(record, 4), u64_at(record, 8), u64_at(record, 16));
    if offset > i64::MAX.unsigned_abs() || offset.checked_add(len).is_none() {
        return rule("trace", "a read goes past the end of every file");
    }
    at_most("length of a read", len, RECORD_READ_MAX)?;
    let total = wide(reads.len()) + len.div_ceil(TRACE_READ_MAX);
    at_most("number of records", total, TRACE_RECORDS_MAX)?;
    reads.reserve(size(len.div_ceil(TRACE_READ_MAX)));
    reads.extend(pieces(offset, len).map(|(offset, len)| TraceRead { layer, offset, len }));
    Ok(())
}

fn pieces(offset: u64, len: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..len.div_ceil(TRACE_READ_MAX)).map(move |piece| {
        let skipped = piece * TRACE_READ_MAX;
        (
            offset.saturating_add(skipped),
            (len - skipped).min(TRACE_READ_MAX),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(dialect: TraceDialect, len: u64) -> Trace {
        let read = TraceRead {
            layer: 1,
            offset: 4096,
            len,
        };
        Trace {
            dialect,
            reads: vec![read],
        }
    }

    #[test]
    fn both_checksums_are_known_and_damage_is_found() {
        for dialect in [TraceDialect::Overlaybd, TraceDialect::AgentEnv] {
            let trace = trace(dialect, 7);
            let mut bytes = trace.encode();
            assert_eq!(Trace::decode(&bytes).unwrap(), trace);
            bytes[40] ^= 1;
            assert!(matches!(
                Trace::decode(&bytes),
                Err(LsmtError::Checksum { .. })
            ));
            bytes.pop();
            assert!(matches!(Trace::decode(&bytes), Err(LsmtError::Rule { .. })));
        }
    }

    #[test]
    fn a_read_of_a_mebibyte_and_a_byte_becomes_two() {
        let again = Trace::decode(&trace(TraceDialect::Overlaybd, (1 << 20) + 1).encode()).unwrap();
        let read = |offset, len| TraceRead {
            layer: 1,
            offset,
            len,
        };
        assert_eq!(
            again.reads,
            [read(4096, 1 << 20), read(4096 + (1 << 20), 1)]
        );
    }
}
