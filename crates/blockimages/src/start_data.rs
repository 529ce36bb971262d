//! The blocks that a start reads of layers, well compressed in one stream, by anybody who may push to the image's
//! repository (docs/block-start-format.md).
//!
//! It is a hint, as a plan is: each block is verified by the hash of its layer's whole content, which the image's own
//! manifest has, before it is used; what is not in it, or is wrong, is read from the layer.

mod content;
mod format;
mod frames;
pub(crate) mod kept;
mod make;
mod proof;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use blocks::Digest;
use thiserror::Error;

pub(crate) use content::StartedContent;
pub use make::{LayerContent, make};

use crate::ContentRoot;
use crate::cache::CachedBlob;
use crate::plan::BLOCK_BYTES;
use crate::reads::Reading;
use format::Tables;
use frames::{Frame, Frames};
use proof::{Verifier, prove};

/// The longest data of a start, as it is stored.
pub const START_DATA_BYTES_MAX: u64 = 256 << 20;

/// How long an opening waits for the tables: as long as for a plan.
const TABLES_PATIENCE: Duration = Duration::from_secs(5);

/// Data of a start, in the repository of the image that it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartDataRef {
    /// The digest of its blob.
    pub digest: Digest,
    /// The blob's bytes.
    pub size: u64,
}

/// Why bytes are no data of a start, or none can be made.
#[derive(Debug, Error)]
pub enum StartDataError {
    /// They do not begin as one.
    #[error("it is no data of a start, or of another version")]
    Magic,
    /// The tables differ from what was written.
    #[error("its tables are damaged: their checksum is another")]
    Damaged,
    /// They break a rule of the format.
    #[error("it breaks a rule: {0}")]
    Rule(&'static str),
    /// It cannot be read, or what it is made of.
    #[error("cannot read {what}")]
    Read {
        /// What.
        what: String,
        /// The cause.
        source: std::io::Error,
    },
    /// A layer is not what the image's manifest says.
    #[error("the content of the layer {} is not what the image's manifest says", .0.short())]
    Content(Digest),
}

/// The data of a start of one image, as far as it can be verified.
#[derive(Debug)]
pub(crate) struct StartData {
    frames: Frames,
    layers: Vec<(Digest, LayerPieces)>,
}

/// The blocks of one layer.
#[derive(Clone, Debug)]
pub(crate) struct LayerPieces {
    /// Bytes of its uncompressed content.
    len: u64,
    /// In ascending order, without overlaps.
    pieces: Arc<[PlacedPiece]>,
}

/// Some blocks of a layer, and where they are.
#[derive(Clone, Debug)]
struct PlacedPiece {
    /// Bytes of the layer's content.
    range: Range<u64>,
    frame: u32,
    /// Where it begins in the frame.
    at: u32,
}

/// The hash of a layer's content by the image's manifest, if that names it.
pub type Trusted<'a> = dyn Fn(&Digest) -> Option<ContentRoot> + 'a;

/// Verifies all data of a start that is of layers with a trusted content, and returns how many bytes of these it has.
///
/// # Errors
/// If it breaks a rule, or a block is not the layer's.
pub fn verify(bytes: &[u8], trusted: &Trusted<'_>) -> Result<u64, StartDataError> {
    let tables = Tables::of_all(bytes)?;
    let proven = Proven::of(&tables, trusted)?;
    let mut verified = 0;
    for frame in &proven.frames {
        let [start, end] = [frame.stored.start, frame.stored.end]
            .map(|at| usize::try_from(at).unwrap_or(usize::MAX));
        let stored = bytes.get(start..end).unwrap_or_default();
        let wrong = StartDataError::Rule("a block is not that of its layer");
        frame.decoded(stored).ok_or(wrong)?;
        verified += frame.verified_bytes();
    }
    Ok(verified)
}

/// What tables have of layers with a trusted content.
struct Proven {
    frames: Vec<Frame>,
    layers: Vec<(Digest, LayerPieces)>,
}

impl Proven {
    fn of(tables: &Tables, trusted: &Trusted<'_>) -> Result<Self, StartDataError> {
        let mut hashes = tables.hashes.iter().copied();
        let mut verifiers = vec![Verifier::Unknown; tables.pieces.len()];
        let mut layers = Vec::new();
        for (layer, placed) in tables.layers.iter().zip(tables.placed()?) {
            let (numbers, pieces): (Vec<_>, Vec<_>) = placed.into_iter().unzip();
            let ranges: Vec<_> = pieces.iter().map(|piece| piece.range.clone()).collect();
            // Of layers of other images, too: the hashes of the next one follow.
            let proven = prove(&ranges, layer.len, layer.content, &mut hashes)?;
            let is_trusted = trusted(&layer.digest) == Some(layer.content);
            let Some(proven) = proven.filter(|_| is_trusted) else {
                continue;
            };
            for (number, verifier) in numbers.into_iter().zip(proven) {
                verifiers[number] = verifier;
            }
            let pieces = LayerPieces {
                len: layer.len,
                pieces: pieces.into(),
            };
            layers.push((layer.digest, pieces));
        }
        if hashes.next().is_some() {
            return Err(StartDataError::Rule("it has too many hashes"));
        }
        Ok(Self {
            frames: Frame::of(tables, verifiers),
            layers,
        })
    }
}

impl StartData {
    /// Opens the data of a start of an image. Layers are left out whose content the image's manifest does not name, or names
    /// otherwise.
    ///
    /// # Errors
    /// If it cannot be read, breaks a rule, or is of no layer of the image.
    pub(crate) fn open(
        blob: Arc<CachedBlob>,
        trusted: &Trusted<'_>,
    ) -> Result<Self, StartDataError> {
        let tables = Self::tables(&blob)?;
        let proven = Proven::of(&tables, trusted)?;
        if proven.layers.is_empty() {
            return Err(StartDataError::Rule("it is of no layer of the image"));
        }
        Ok(Self {
            frames: Frames::new(blob, proven.frames),
            layers: proven.layers,
        })
    }

    /// Reads the tables, if they come soon: the image can be opened without.
    fn tables(blob: &CachedBlob) -> Result<Tables, StartDataError> {
        let _hint = Reading::of_hint(TABLES_PATIENCE, blob.read_deadline());
        let tables = Tables::read(blob);
        if !matches!(tables, Ok(_) | Err(StartDataError::Read { .. })) {
            // Whoever is at fault, the next who opens it asks for it again.
            blob.forget(&(0..u64::MAX));
        }
        tables
    }

    /// Returns whether all of it that is of the image is in the cache, and right.
    pub(crate) fn is_right(&self) -> bool {
        self.frames.are_right()
    }

    /// Returns what it has of a layer, if it has its end, by which the length is verified.
    pub(crate) fn of_layer(&self, digest: &str) -> Option<LayerPieces> {
        let mut layers = self.layers.iter();
        let found = layers.find(|(known, _)| known.to_string() == digest);
        let (_, pieces) = found?;
        let last = pieces.pieces.last()?;
        (last.range.end == pieces.len).then(|| pieces.clone())
    }
}

impl LayerPieces {
    /// Returns how many bytes the layer's content has.
    pub(crate) const fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether all bytes of a range are in pieces; those after the content's end count as if they were.
    pub(crate) fn has(&self, range: &Range<u64>) -> bool {
        let end = range.end.min(self.len);
        let mut at = range.start;
        for piece in self.within(&(at..end)) {
            if piece.range.start > at {
                return false;
            }
            at = piece.range.end;
        }
        at >= end
    }

    /// Returns the pieces that have bytes of a range, in ascending order.
    fn within(&self, range: &Range<u64>) -> &[PlacedPiece] {
        let first = self
            .pieces
            .partition_point(|piece| piece.range.end <= range.start);
        let within = &self.pieces[first..];
        &within[..within.partition_point(|piece| piece.range.start < range.end)]
    }
}
