//! Making the data of a start, of its plan and the layers.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use blake3::Hasher;
use blocks::Digest;
use lsmt::ReadAt;

use super::format::{FRAME_BLOCKS_MAX, PIECE_BLOCKS_MAX, PIECES_MAX, Piece, TabledLayer, Tables};
use super::proof::disclose;
use super::{BLOCK_BYTES, START_DATA_BYTES_MAX, StartDataError};
use crate::ContentRoot;
use crate::content_root::{PIECE_BYTES, hash_range};
use crate::plan::StartPlan;

/// How well it is compressed: it is done once, and read by each machine.
const LEVEL: i32 = 19;

/// Most bytes of the frames: whatever tables are added, all of it is within its limit.
const FRAMES_BYTES_MAX: u64 = START_DATA_BYTES_MAX / 2;

/// A layer of an image.
#[derive(Clone)]
pub struct LayerContent {
    /// The digest of its blob.
    pub digest: Digest,
    /// The hash of its uncompressed content, as the image's manifest has it.
    pub content: ContentRoot,
    /// Its uncompressed content.
    pub reader: Arc<dyn ReadAt>,
}

impl fmt::Debug for LayerContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LayerContent")
            .field("digest", &self.digest)
            .field("content", &self.content)
            .finish_non_exhaustive()
    }
}

/// Makes the data of a start: what its plan names of these layers, in its order, as much as fits. `None` if it names
/// nothing of them.
///
/// # Errors
/// If a layer cannot be read, or is not what the manifest says.
pub fn make(plan: &StartPlan, layers: &[LayerContent]) -> Result<Option<Vec<u8>>, StartDataError> {
    let mut tables = Tables {
        recorded_at: plan.recorded_at,
        layers: layers.iter().map(tabled).collect::<Result<_, _>>()?,
        ..Tables::default()
    };
    let mut frames = Vec::new();
    let mut pieces = pieces_of(plan, &tables.layers);
    pieces.truncate(PIECES_MAX as usize);
    let mut rest = &pieces[..];
    while !rest.is_empty() {
        let (frame, others) = rest.split_at(fitting(rest));
        rest = others;
        let compressed = compressed(frame, &tables, layers)?;
        if (frames.len() + compressed.len()) as u64 > FRAMES_BYTES_MAX {
            break;
        }
        let number = u32::try_from(tables.frames.len()).unwrap_or(u32::MAX);
        let frame = frame.iter().map(|piece| Piece {
            frame: number,
            ..*piece
        });
        tables.pieces.extend(frame);
        let bytes = u32::try_from(compressed.len()).unwrap_or(u32::MAX);
        tables.frames.push(bytes);
        frames.extend(compressed);
    }
    let layers = keep_used(&mut tables, layers);
    if layers.is_empty() {
        return Ok(None);
    }
    let mut buffer = vec![0; PIECE_BYTES];
    for (layer, placed) in layers.iter().zip(tables.placed()?) {
        let ranges: Vec<_> = placed.into_iter().map(|(_, piece)| piece.range).collect();
        let len = size_of(layer)?;
        let mut read = |hasher: &mut Hasher, range| {
            let read = hash_range(&*layer.reader, range, hasher, &mut buffer);
            read.map_err(failed(layer))
        };
        let (hashes, root) = disclose(&ranges, len, &mut read)?;
        if root != layer.content {
            return Err(StartDataError::Content(layer.digest));
        }
        tables.hashes.extend(hashes);
    }
    let mut bytes = tables.encode();
    bytes.extend(frames);
    Ok(Some(bytes))
}

fn tabled(layer: &LayerContent) -> Result<TabledLayer, StartDataError> {
    Ok(TabledLayer {
        digest: layer.digest,
        content: layer.content,
        len: size_of(layer)?,
    })
}

/// Divides what the plan reads into pieces, each block once; the pieces are in no frame yet.
fn pieces_of(plan: &StartPlan, layers: &[TabledLayer]) -> Vec<Piece> {
    let digests: Vec<_> = layers.iter().map(|layer| Some(layer.digest)).collect();
    let mut seen = vec![HashSet::new(); layers.len()];
    let mut pieces = Vec::new();
    for read in plan.trace_of(&digests).reads {
        let Ok(number) = u16::try_from(read.layer) else {
            continue;
        };
        let layer = usize::from(number);
        let blocks = read.offset / BLOCK_BYTES..(read.offset + read.len).div_ceil(BLOCK_BYTES);
        let end = blocks.end.min(layers[layer].len.div_ceil(BLOCK_BYTES));
        let mut first = blocks.start;
        while first < end {
            let run = (first..end).take_while(|block| !seen[layer].contains(block));
            let run = u16::try_from(run.take(usize::from(PIECE_BLOCKS_MAX)).count());
            let Some(run) = run.ok().filter(|run| *run > 0) else {
                first += 1;
                continue;
            };
            let mut blocks = 1 << run.ilog2();
            while !first.is_multiple_of(u64::from(blocks)) {
                blocks /= 2;
            }
            let next = first + u64::from(blocks);
            seen[layer].extend(first..next);
            pieces.push(Piece {
                layer: number,
                blocks,
                frame: 0,
                first,
            });
            first = next;
        }
    }
    pieces
}

/// Returns how many of the first pieces fit into one frame.
fn fitting(pieces: &[Piece]) -> usize {
    let mut blocks = 0;
    let fits = |piece: &&Piece| {
        blocks += u32::from(piece.blocks);
        blocks <= FRAME_BLOCKS_MAX
    };
    pieces.iter().take_while(fits).count()
}

fn compressed(
    frame: &[Piece],
    tables: &Tables,
    layers: &[LayerContent],
) -> Result<Vec<u8>, StartDataError> {
    let mut bytes = Vec::new();
    for piece in frame {
        let layer = &layers[usize::from(piece.layer)];
        let start = bytes.len();
        bytes.resize(start + tables.len_of(piece), 0);
        let read = layer
            .reader
            .read_at(&mut bytes[start..], piece.first * BLOCK_BYTES);
        read.map_err(failed(layer))?;
    }
    let compressed = zstd::bulk::compress(&bytes, LEVEL);
    compressed.map_err(|source| StartDataError::Read {
        what: "what is to be compressed".to_owned(),
        source,
    })
}

/// Leaves out layers without pieces, and returns the others.
fn keep_used<'a>(tables: &mut Tables, layers: &'a [LayerContent]) -> Vec<&'a LayerContent> {
    let is_used = |number: usize| {
        let mut pieces = tables.pieces.iter();
        pieces.any(|piece| usize::from(piece.layer) == number)
    };
    let used: Vec<_> = (0..layers.len())
        .filter(|number| is_used(*number))
        .collect();
    for piece in &mut tables.pieces {
        let place = used
            .iter()
            .position(|number| *number == usize::from(piece.layer));
        piece.layer = place
            .and_then(|place| u16::try_from(place).ok())
            .unwrap_or(u16::MAX);
    }
    tables.layers = used.iter().map(|number| tables.layers[*number]).collect();
    used.into_iter().map(|number| &layers[number]).collect()
}

fn size_of(layer: &LayerContent) -> Result<u64, StartDataError> {
    layer.reader.size().map_err(failed(layer))
}

fn failed(layer: &LayerContent) -> impl FnOnce(std::io::Error) -> StartDataError {
    let what = format!("the layer {}", layer.digest.short());
    move |source| StartDataError::Read { what, source }
}
