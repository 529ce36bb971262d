//! Data of a start, encoded as the document of the format says, or not.

use std::ops::Range;

use blake3::Hasher;
use blake3::hazmat::HasherExt as _;

pub(crate) const BLOCK: u64 = 4096;
/// Blocks of the device.
pub(crate) const BLOCKS: u64 = 200;

/// A table, as the document has it.
#[derive(Clone)]
pub(crate) struct Forged {
    /// Digest of the blob, hash of the content, its bytes.
    pub(crate) layers: Vec<([u8; 32], [u8; 32], u64)>,
    /// Layer, blocks, frame, first block.
    pub(crate) pieces: Vec<(u16, u16, u32, u64)>,
    pub(crate) frames: Vec<Vec<u8>>,
    pub(crate) hashes: Vec<[u8; 32]>,
    /// What the header says there is more of than there is: layers, pieces, frames, hashes.
    pub(crate) more: [u32; 4],
    pub(crate) reserved: u8,
}

impl Forged {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = b"YOLOBS\0\x01".to_vec();
        let counts = [
            self.layers.len(),
            self.pieces.len(),
            self.frames.len(),
            self.hashes.len(),
        ];
        for (count, more) in counts.iter().zip(self.more) {
            bytes.extend((*count as u32).wrapping_add(more).to_le_bytes());
        }
        bytes.extend(1_700_000_000_u64.to_le_bytes());
        bytes.resize(64, 0);
        bytes[40] = self.reserved;
        for (digest, root, len) in &self.layers {
            bytes.extend([&digest[..], &root[..], &len.to_le_bytes()].concat());
        }
        for (layer, blocks, frame, first) in &self.pieces {
            bytes.extend(layer.to_le_bytes());
            bytes.extend(blocks.to_le_bytes());
            bytes.extend(frame.to_le_bytes());
            bytes.extend(first.to_le_bytes());
        }
        for frame in &self.frames {
            bytes.extend((frame.len() as u32).to_le_bytes());
        }
        bytes.extend(self.hashes.concat());
        let sum = crc32c::crc32c_append(crc32c::crc32c(&bytes[..60]), &bytes[64..]);
        bytes[60..64].copy_from_slice(&sum.to_le_bytes());
        bytes.extend(self.frames.concat());
        bytes
    }

    pub(crate) fn with(&self, change: impl FnOnce(&mut Self)) -> Self {
        let mut changed = self.clone();
        change(&mut changed);
        changed
    }
}

/// Adds the hashes of the nodes from the root on, as the document says.
pub(crate) fn disclose(
    content: &[u8],
    of: Range<u64>,
    pieces: &[Range<u64>],
    hashes: &mut Vec<[u8; 32]>,
) {
    let begins = |piece: &&Range<u64>| of.contains(&piece.start);
    let is_root = of == (0..content.len() as u64);
    if !is_root && (pieces.contains(&of) || pieces.iter().find(begins).is_none()) {
        let mut hasher = Hasher::new();
        hasher.set_input_offset(of.start);
        hasher.update(&content[of.start as usize..of.end as usize]);
        hashes.push(hasher.finalize_non_root());
        return;
    }
    let chunks = (of.end - of.start).div_ceil(1024);
    let middle = of.start + 1024 * (chunks.next_power_of_two() / 2);
    disclose(content, of.start..middle, pieces, hashes);
    disclose(content, middle..of.end, pieces, hashes);
}
