//! META: docs/bootimg-format.md, section 5. And the description of an image.

use bincode::{Decode, Encode};
use blocks::{ContentId, SourceId};

use crate::header::Variant;
use crate::{FormatError, ImageId, codec};

const WHAT: &str = "description";

/// Most bytes of a label or of a command that are kept: a person reads them, and all of META
/// has to fit 64 KiB.
const TEXT_MAX: usize = 16 << 10;
/// Most runs whose times are kept one by one.
const RUNS_MAX: usize = 1024;

/// Where a recording came from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceInfo {
    /// What a person calls the source, such as `dir:/srv/root`.
    pub label: String,
    /// The source's id.
    pub id: SourceId,
    /// When it was recorded, in seconds since 1970.
    pub recorded_at: i64,
    /// The command that booted it.
    pub command: Vec<String>,
    /// Name and version of the program that recorded it.
    pub tool: String,
    /// Milliseconds from the start to readiness, run by run.
    pub ready_ms: Vec<u64>,
    /// How alike the runs were, in millionths (Jaccard index of their blocks).
    pub similarity_ppm: Option<u32>,
    /// Bytes of content in the whole source.
    pub source_bytes: u64,
}

/// The description of an image, in numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageInfo {
    /// Its id, the same in all variants.
    pub id: ImageId,
    /// How it keeps its data.
    pub variant: Variant,
    /// Its source.
    pub source: SourceInfo,
    /// How many recordings it was merged from.
    pub runs: u16,
    /// Milliseconds in a time bin.
    pub bin_ms: u32,
    /// Inodes of the source.
    pub inodes: u64,
    /// Files with content in the image.
    pub files: u64,
    /// Runs of blocks.
    pub extents: u64,
    /// Uses of metadata to repeat.
    pub touches: u64,
    /// Blocks of content that boots touch.
    pub blocks: u64,
    /// Those of them that are all zero, and take no space.
    pub zero_blocks: u64,
    /// Different blocks that are not zero: the size of the data.
    pub data_blocks: u64,
    /// Length of the image's file; of a thin image, without the segments.
    pub file_bytes: u64,
}

/// META as it is stored; the order of the fields is the format.
#[derive(Encode, Decode)]
struct Record {
    label: String,
    source: [u8; 32],
    recorded_at: i64,
    command: Vec<String>,
    tool: String,
    runs: u16,
    bin_ms: u32,
    ready_ms: Vec<u64>,
    similarity_ppm: Option<u32>,
    source_bytes: u64,
}

/// META, decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Meta {
    pub(crate) source: SourceInfo,
    pub(crate) runs: u16,
    pub(crate) bin_ms: u32,
}

pub(crate) fn encode(meta: &Meta) -> Result<Vec<u8>, FormatError> {
    let source = &meta.source;
    let record = Record {
        label: clipped(&source.label, TEXT_MAX),
        source: source.id.0.0,
        recorded_at: source.recorded_at,
        command: clipped_list(&source.command),
        tool: clipped(&source.tool, 256),
        runs: meta.runs,
        bin_ms: meta.bin_ms,
        ready_ms: source.ready_ms.iter().copied().take(RUNS_MAX).collect(),
        similarity_ppm: source.similarity_ppm,
        source_bytes: source.source_bytes,
    };
    codec::encode(WHAT, &record)
}

pub(crate) fn parse(bytes: &[u8]) -> Result<Meta, FormatError> {
    let record: Record = codec::decode(WHAT, bytes)?;
    Ok(Meta {
        source: SourceInfo {
            label: record.label,
            id: SourceId(ContentId(record.source)),
            recorded_at: record.recorded_at,
            command: record.command,
            tool: record.tool,
            ready_ms: record.ready_ms,
            similarity_ppm: record.similarity_ppm,
            source_bytes: record.source_bytes,
        },
        runs: record.runs,
        bin_ms: record.bin_ms,
    })
}

/// Returns the text, cut to at most `max` bytes at a character's end.
fn clipped(text: &str, max: usize) -> String {
    text[..text.floor_char_boundary(max)].to_owned()
}

/// Returns the words of a command until they are too long together; an ellipsis replaces the
/// rest. A recording of minutes is not lost for a long command.
fn clipped_list(words: &[String]) -> Vec<String> {
    let mut left = TEXT_MAX;
    let mut kept = Vec::new();
    for word in words {
        // Each word takes eight bytes for its length besides.
        let Some(rest) = left.checked_sub(word.len() + 8) else {
            kept.push("...".to_owned());
            break;
        };
        left = rest;
        kept.push(word.clone());
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_and_fit() {
        let meta = Meta {
            source: SourceInfo {
                label: "ä".repeat(20_000),
                command: vec!["word".to_owned(); 100_000],
                ready_ms: vec![7; 5000],
                ..SourceInfo::default()
            },
            runs: 3,
            bin_ms: 100,
        };
        let read = parse(&encode(&meta).unwrap()).unwrap();
        assert_eq!(read.source.label.len(), TEXT_MAX);
        assert_eq!(read.source.command.last().unwrap(), "...");
        assert_eq!(read.source.ready_ms.len(), RUNS_MAX);
    }

    #[test]
    fn hostile_lengths_are_refused_before_they_are_believed() {
        for byte in 0..=255 {
            assert!(parse(&[byte; 24]).is_err());
        }
    }
}
