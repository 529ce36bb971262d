//! The tables before the frames: which blocks of which layers are where, and the hashes that prove them.

use std::io;

use blake3::hazmat::ChainingValue;
use blocks::Digest;
use lsmt::ReadAt;

use super::{BLOCK_BYTES, PlacedPiece, START_DATA_BYTES_MAX, StartDataError};
use crate::ContentRoot;

const MAGIC: [u8; 8] = *b"YOLOBS\0\x01";
const HEADER_BYTES: usize = 64;
const CRC_AT: usize = 60;
const LAYER_BYTES: usize = 72;
const PIECE_BYTES: usize = 16;
const FRAME_BYTES: usize = 4;
const HASH_BYTES: usize = 32;

const LAYERS_MAX: u32 = 255;
pub(super) const PIECES_MAX: u32 = 1 << 18;
/// Twice as many as a tree of the longest layer needs between pieces that have many blocks each.
const HASHES_MAX: u32 = 1 << 20;

/// Blocks of a piece: 64 KiB, so that little is decompressed and hashed for one block.
pub(super) const PIECE_BLOCKS_MAX: u16 = 16;
/// Blocks of a frame: 256 KiB.
pub(super) const FRAME_BLOCKS_MAX: u32 = 64;
/// What a frame takes at most: 4 KiB more than its blocks, and more than Zstandard adds to what cannot be compressed. Each
/// thread that reads one has it in memory.
const FRAME_BYTES_MAX: u32 = FRAME_BLOCKS_MAX * 4096 + 4096;
/// The last block that a layer may have: its last byte has a number of 63 bits.
const CONTENT_BYTES_MAX: u64 = i64::MAX as u64;

/// The tables of the data of a start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tables {
    /// When the start was recorded, in seconds since 1970.
    pub(super) recorded_at: u64,
    pub(super) layers: Vec<TabledLayer>,
    /// In the order of the start.
    pub(super) pieces: Vec<Piece>,
    /// The stored length of each frame.
    pub(super) frames: Vec<u32>,
    /// Of each layer after the other.
    pub(super) hashes: Vec<ChainingValue>,
}

/// A layer of which something is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TabledLayer {
    /// Of its blob.
    pub(super) digest: Digest,
    /// Of its uncompressed content.
    pub(super) content: ContentRoot,
    /// Bytes of its uncompressed content.
    pub(super) len: u64,
}

/// Some blocks of a layer, a node of its tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// The layer's place in the table.
    pub(super) layer: u16,
    /// A power of two.
    pub(super) blocks: u16,
    pub(super) frame: u32,
    /// A multiple of the number of blocks.
    pub(super) first: u64,
}

impl Piece {
    /// Returns its bytes in a content of this length; `None` if its last block is past the end.
    fn range(&self, len: u64) -> Option<std::ops::Range<u64>> {
        let start = self.first.checked_mul(BLOCK_BYTES)?;
        let last = start.checked_add((u64::from(self.blocks) - 1) * BLOCK_BYTES)?;
        (last < len).then(|| start..len.min(last + BLOCK_BYTES))
    }
}

impl Tables {
    /// Returns how many bytes a piece has; the last one of a layer may be short.
    pub(super) fn len_of(&self, piece: &Piece) -> usize {
        let layer = self.layers.get(usize::from(piece.layer));
        let range = layer.and_then(|layer| piece.range(layer.len));
        range.map_or(0, |range| {
            usize::try_from(range.end - range.start).unwrap_or(0)
        })
    }

    /// Returns how many bytes the header and the tables have.
    pub(super) fn bytes(&self) -> usize {
        HEADER_BYTES
            + self.layers.len() * LAYER_BYTES
            + self.pieces.len() * PIECE_BYTES
            + self.frames.len() * FRAME_BYTES
            + self.hashes.len() * HASH_BYTES
    }

    /// Encodes header and tables.
    pub(super) fn encode(&self) -> Vec<u8> {
        let count = |len: usize| u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes();
        let mut bytes = MAGIC.to_vec();
        bytes.extend(count(self.layers.len()));
        bytes.extend(count(self.pieces.len()));
        bytes.extend(count(self.frames.len()));
        bytes.extend(count(self.hashes.len()));
        bytes.extend(self.recorded_at.to_le_bytes());
        bytes.resize(HEADER_BYTES, 0);
        for layer in &self.layers {
            bytes.extend(layer.digest.0);
            bytes.extend(layer.content.0);
            bytes.extend(layer.len.to_le_bytes());
        }
        for piece in &self.pieces {
            bytes.extend(piece.layer.to_le_bytes());
            bytes.extend(piece.blocks.to_le_bytes());
            bytes.extend(piece.frame.to_le_bytes());
            bytes.extend(piece.first.to_le_bytes());
        }
        for frame in &self.frames {
            bytes.extend(frame.to_le_bytes());
        }
        for hash in &self.hashes {
            bytes.extend(hash);
        }
        let sum = checksum(&bytes);
        bytes[CRC_AT..HEADER_BYTES].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Reads the tables of a blob.
    ///
    /// # Errors
    /// If they cannot be read, or break a rule.
    pub(super) fn read(blob: &dyn ReadAt) -> Result<Self, StartDataError> {
        let failed = |source: io::Error| StartDataError::Read {
            what: "the data of a start".to_owned(),
            source,
        };
        let size = blob.size().map_err(failed)?;
        if size < HEADER_BYTES as u64 || size > START_DATA_BYTES_MAX {
            return Err(StartDataError::Rule("it is too short or too long"));
        }
        let mut bytes = vec![0; HEADER_BYTES];
        blob.read_at(&mut bytes, 0).map_err(failed)?;
        let counts = Counts::decode(&bytes)?;
        let len = counts.bytes();
        if len as u64 > size {
            return Err(StartDataError::Rule("its tables are longer than it is"));
        }
        bytes.resize(len, 0);
        let tables = &mut bytes[HEADER_BYTES..];
        blob.read_at(tables, HEADER_BYTES as u64).map_err(failed)?;
        let tables = Self::decode(&bytes)?;
        tables.check_length(size)?;
        Ok(tables)
    }

    /// Decodes the tables of all bytes.
    ///
    /// # Errors
    /// If they break a rule.
    pub(super) fn of_all(bytes: &[u8]) -> Result<Self, StartDataError> {
        let len = Counts::decode(bytes)?.bytes();
        let tables = bytes.get(..len);
        let tables = tables.ok_or(StartDataError::Rule("its tables are longer than it is"))?;
        let tables = Self::decode(tables)?;
        tables.check_length(bytes.len() as u64)?;
        Ok(tables)
    }

    fn check_length(&self, bytes: u64) -> Result<(), StartDataError> {
        let frames: u64 = self.frames.iter().copied().map(u64::from).sum();
        match self.bytes() as u64 + frames == bytes {
            true => Ok(()),
            false => Err(StartDataError::Rule("its length is not that of its frames")),
        }
    }

    /// Decodes header and tables.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, StartDataError> {
        let counts = Counts::decode(bytes)?;
        if bytes.len() != counts.bytes() {
            return Err(StartDataError::Rule("its tables have another length"));
        }
        let sum = bytes
            .get(CRC_AT..HEADER_BYTES)
            .and_then(<[u8]>::first_chunk);
        if sum.copied().map(u32::from_le_bytes) != Some(checksum(bytes)) {
            return Err(StartDataError::Damaged);
        }
        let mut rest = &bytes[HEADER_BYTES..];
        let layers = take::<LAYER_BYTES>(&mut rest, counts.layers);
        let pieces = take::<PIECE_BYTES>(&mut rest, counts.pieces);
        let frames = take::<FRAME_BYTES>(&mut rest, counts.frames);
        let hashes = take::<HASH_BYTES>(&mut rest, counts.hashes);
        let tables = Self {
            recorded_at: u64_at(bytes, 24),
            layers: layers.iter().map(TabledLayer::decode).collect(),
            pieces: pieces.iter().map(Piece::decode).collect(),
            frames: frames.iter().copied().map(u32::from_le_bytes).collect(),
            hashes: hashes.to_vec(),
        };
        tables.check()?;
        Ok(tables)
    }

    fn check(&self) -> Result<(), StartDataError> {
        let twice = |at: usize| {
            let (before, this) = (&self.layers[..at], &self.layers[at]);
            before.iter().any(|layer| layer.digest == this.digest)
        };
        if (0..self.layers.len()).any(twice) {
            return Err(StartDataError::Rule("it has a layer twice"));
        }
        let mut frame = (0, 0);
        for piece in &self.pieces {
            let layer = self.layers.get(usize::from(piece.layer));
            let layer = layer.ok_or(StartDataError::Rule("a piece is of no layer"))?;
            let aligned = piece.blocks.is_power_of_two()
                && piece.blocks <= PIECE_BLOCKS_MAX
                && piece.first.is_multiple_of(u64::from(piece.blocks));
            if !aligned || layer.len > CONTENT_BYTES_MAX || piece.range(layer.len).is_none() {
                return Err(StartDataError::Rule(
                    "a piece is not aligned, or past the end",
                ));
            }
            // All frames have pieces, in their order.
            frame = match piece.frame.checked_sub(frame.0) {
                Some(0) => (frame.0, frame.1 + u32::from(piece.blocks)),
                Some(1) if frame.1 > 0 => (piece.frame, u32::from(piece.blocks)),
                _ => return Err(StartDataError::Rule("a piece is in another frame")),
            };
            if frame.1 > FRAME_BLOCKS_MAX {
                return Err(StartDataError::Rule("a frame has too many blocks"));
            }
        }
        let frames = match self.pieces.is_empty() {
            true => 0,
            false => frame.0 as usize + 1,
        };
        if self.frames.iter().any(|bytes| *bytes > FRAME_BYTES_MAX) {
            return Err(StartDataError::Rule("a frame takes more than its blocks"));
        }
        match frames == self.frames.len() {
            true => Ok(()),
            false => Err(StartDataError::Rule("a frame has no pieces")),
        }
    }

    /// Returns each layer's pieces in ascending order, with their numbers.
    ///
    /// # Errors
    /// If pieces of a layer overlap, or it has none.
    pub(super) fn placed(&self) -> Result<Vec<Vec<(usize, PlacedPiece)>>, StartDataError> {
        let mut placed = vec![Vec::new(); self.layers.len()];
        let (mut frame, mut at) = (0, 0);
        for (number, piece) in self.pieces.iter().enumerate() {
            if piece.frame != frame {
                (frame, at) = (piece.frame, 0);
            }
            let layer = usize::from(piece.layer);
            let range = piece.range(self.layers[layer].len);
            let range = range.ok_or(StartDataError::Rule("a piece is past the end"))?;
            let bytes = u32::try_from(range.end - range.start);
            let bytes = bytes.map_err(|_| StartDataError::Rule("a piece is too long"))?;
            placed[layer].push((number, PlacedPiece { range, frame, at }));
            at += bytes;
        }
        for pieces in &mut placed {
            pieces.sort_unstable_by_key(|(_, piece)| piece.range.start);
            let overlaps =
                |pair: &[(usize, PlacedPiece)]| pair[0].1.range.end > pair[1].1.range.start;
            if pieces.is_empty() || pieces.windows(2).any(overlaps) {
                return Err(StartDataError::Rule(
                    "a layer has no pieces, or a block twice",
                ));
            }
        }
        Ok(placed)
    }
}

/// How many of each there are.
#[derive(Clone, Copy, Debug)]
struct Counts {
    layers: usize,
    pieces: usize,
    frames: usize,
    hashes: usize,
}

impl Counts {
    fn decode(bytes: &[u8]) -> Result<Self, StartDataError> {
        if bytes.len() < HEADER_BYTES || !bytes.starts_with(&MAGIC) {
            return Err(StartDataError::Magic);
        }
        let most = [LAYERS_MAX, PIECES_MAX, PIECES_MAX, HASHES_MAX];
        let mut counts = [0; 4];
        for (number, (count, most)) in counts.iter_mut().zip(most).enumerate() {
            let at = 8 + 4 * number;
            let found =
                u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
            if found > most {
                return Err(StartDataError::Rule(
                    "it has too many layers, pieces or hashes",
                ));
            }
            *count = found as usize;
        }
        if bytes[32..CRC_AT].iter().any(|byte| *byte != 0) {
            return Err(StartDataError::Rule("what is reserved is not zero"));
        }
        let [layers, pieces, frames, hashes] = counts;
        Ok(Self {
            layers,
            pieces,
            frames,
            hashes,
        })
    }

    const fn bytes(&self) -> usize {
        HEADER_BYTES
            + self.layers * LAYER_BYTES
            + self.pieces * PIECE_BYTES
            + self.frames * FRAME_BYTES
            + self.hashes * HASH_BYTES
    }
}

impl TabledLayer {
    fn decode(bytes: &[u8; LAYER_BYTES]) -> Self {
        let [mut digest, mut content] = [[0; 32]; 2];
        digest.copy_from_slice(&bytes[..32]);
        content.copy_from_slice(&bytes[32..64]);
        Self {
            digest: Digest(digest),
            content: ContentRoot(content),
            len: u64_at(bytes, 64),
        }
    }
}

impl Piece {
    fn decode(bytes: &[u8; PIECE_BYTES]) -> Self {
        Self {
            layer: u16::from_le_bytes([bytes[0], bytes[1]]),
            blocks: u16::from_le_bytes([bytes[2], bytes[3]]),
            frame: u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
            first: u64_at(bytes, 8),
        }
    }
}

/// Takes a table with so many rows of `N` bytes; the caller has compared the length.
fn take<'a, const N: usize>(rest: &mut &'a [u8], rows: usize) -> &'a [[u8; N]] {
    let (table, others) = rest.split_at(rows * N);
    *rest = others;
    table.as_chunks().0
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(number)
}

/// Returns the CRC-32C of all bytes but those of the checksum itself.
fn checksum(bytes: &[u8]) -> u32 {
    let sum = crc32c::crc32c(&bytes[..CRC_AT]);
    crc32c::crc32c_append(sum, &bytes[HEADER_BYTES..])
}

#[cfg(test)]
mod tests {
    use lsmt::{MemoryStorage, Storage as _};

    use super::*;

    fn tables() -> Tables {
        let layer = |number: u8, len| TabledLayer {
            digest: Digest([number; 32]),
            content: ContentRoot([number + 1; 32]),
            len,
        };
        let piece = |layer, blocks, frame, first| Piece {
            layer,
            blocks,
            frame,
            first,
        };
        Tables {
            recorded_at: 1_700_000_000,
            layers: vec![layer(1, 100_000), layer(9, 5000)],
            pieces: vec![
                piece(0, 16, 0, 0),
                piece(1, 2, 0, 0),
                piece(0, 1, 1, 24),
                piece(0, 2, 1, 18),
            ],
            frames: vec![1000, 3],
            hashes: vec![[3; 32]; 5],
        }
    }

    #[test]
    fn what_is_encoded_comes_back_and_damage_is_found() {
        let bytes = tables().encode();
        assert_eq!(bytes.len(), tables().bytes());
        assert_eq!(Tables::decode(&bytes).unwrap(), tables());
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(Tables::decode(&damaged).is_err(), "byte {at}");
        }
        Tables::decode(&bytes[..bytes.len() - 1]).unwrap_err();
        Tables::decode(&bytes[..20]).unwrap_err();
        // Its blob has the frames, too.
        let blob = |more: usize| {
            let storage = MemoryStorage::default();
            let mut bytes = bytes.clone();
            bytes.resize(bytes.len() + more, 0);
            storage.write_at(&bytes, 0).unwrap();
            storage
        };
        assert_eq!(Tables::read(&blob(1003)).unwrap(), tables());
        Tables::read(&blob(1004)).unwrap_err();
        Tables::read(&blob(0)).unwrap_err();
    }

    #[test]
    fn pieces_are_in_their_frames_and_layers() {
        let placed = tables().placed().unwrap();
        let of = |layer: usize| {
            let pieces = placed[layer].iter();
            let pieces =
                pieces.map(|(number, piece)| (*number, piece.range.clone(), piece.frame, piece.at));
            pieces.collect::<Vec<_>>()
        };
        assert_eq!(
            of(0),
            [
                (0, 0..65_536, 0, 0),
                (3, 73_728..81_920, 1, 1696),
                (2, 98_304..100_000, 1, 0)
            ]
        );
        assert_eq!(of(1), [(1, 0..5000, 0, 65_536)]);
    }

    #[test]
    fn what_breaks_a_rule_is_refused() {
        let rules: [&dyn Fn(&mut Tables); 12] = [
            &|tables| tables.layers[1].digest = Digest([1; 32]),
            &|tables| tables.layers[0].len = u64::MAX,
            &|tables| tables.layers[0].len = 98_304,
            &|tables| tables.pieces[0].layer = 2,
            &|tables| tables.pieces[0].blocks = 0,
            &|tables| tables.pieces[0].blocks = 32,
            &|tables| tables.pieces[1].blocks = 3,
            &|tables| tables.pieces[1].first = 1,
            &|tables| tables.pieces[0].first = u64::MAX - 15,
            &|tables| tables.pieces[0].frame = 1,
            &|tables| tables.pieces[3].frame = 3,
            &|tables| tables.frames.push(1),
        ];
        for (number, rule) in rules.iter().enumerate() {
            let mut forged = tables();
            rule(&mut forged);
            let refused = Tables::decode(&forged.encode());
            assert!(matches!(refused, Err(StartDataError::Rule(_))), "{number}");
        }
        let mut overlapping = tables();
        overlapping.pieces[3].first = 2;
        overlapping.placed().unwrap_err();
        let mut without = tables();
        without.pieces[1].layer = 0;
        without.pieces[1].first = 20;
        without.placed().unwrap_err();
    }
}
