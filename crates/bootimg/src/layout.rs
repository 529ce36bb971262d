//! Numbers and sizes: the alphabet of the format.

pub(crate) use blocks::{Input, is_zero};

/// A page: header, footer, block.
pub(crate) const PAGE: usize = blocks::BLOCK_SIZE;
/// A page, as a length in a file.
pub(crate) const PAGE_BYTES: u64 = 1 << blocks::BLOCK_SHIFT;
/// Bytes of a BLAKE3 hash.
pub(crate) const HASH: usize = 32;

/// Returns the hash of `bytes`.
pub(crate) fn hash(bytes: &[u8]) -> [u8; HASH] {
    *blake3::hash(bytes).as_bytes()
}

/// Returns the length of something in memory as a length in a file.
pub(crate) const fn len64(len: usize) -> u64 {
    len as u64 // usize is at most 64 bits wide wherever Rust runs
}

/// Returns a length in a file as a length in memory; one that cannot be is as good as endless.
pub(crate) fn len_usize(len: u64) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}
