//! Numbers of the formats: sectors, and conversions that cannot truncate.

/// Bytes of a sector, the unit of everything in LSMT.
pub const SECTOR: u64 = 512;

/// Returns the number as a length in memory; what does not fit is larger than any slice.
pub(crate) fn size(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// Returns a length in memory as a number of the format.
pub(crate) fn wide(len: usize) -> u64 {
    len as u64
}

/// Returns the little-endian `u16` at an offset; zero beyond the end.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array_at(bytes, at))
}

/// Returns the little-endian `u32` at an offset; zero beyond the end.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array_at(bytes, at))
}

/// Returns the little-endian `u64` at an offset; zero beyond the end.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array_at(bytes, at))
}

/// Returns `N` bytes at an offset; zeros beyond the end.
pub(crate) fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    if let Some(found) = bytes.get(at..at.saturating_add(N)) {
        array.copy_from_slice(found);
    }
    array
}

/// Puts bytes at an offset of a buffer that has room for them.
pub(crate) fn put(bytes: &mut [u8], at: usize, what: &[u8]) {
    bytes[at..at + what.len()].copy_from_slice(what);
}
