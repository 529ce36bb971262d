//! Estimates the space that a layer will need, from its blob.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

/// How many times its size a layer unpacks to if the blob does not tell.
const RATIO: u64 = 4;
/// The most that deflate compresses.
const DEFLATE_MOST: u64 = 1032;

/// Returns the bytes of the archive in a layer's blob.
pub(crate) fn archive_bytes(blob: &File) -> u64 {
    let len = blob.metadata().map_or(0, |of| of.len());
    archive_len(blob, len)
}

/// Returns the bytes that the files of a layer will need, unless it has unusually many small ones:
/// a quarter more than its archive.
pub(crate) const fn room_for(archive: u64) -> u64 {
    archive.saturating_add(archive / 4)
}

/// Returns the bytes of the archive in a blob of this size, of which nothing else is known yet.
pub(crate) const fn archive_of(compressed: u64) -> u64 {
    compressed.saturating_mul(RATIO)
}

fn archive_len(blob: &File, len: u64) -> u64 {
    let mut magic = [0; 4];
    if blob.read_exact_at(&mut magic, 0).is_err() {
        return len;
    }
    match magic {
        [0x1f, 0x8b, ..] => gzip_len(blob, len).unwrap_or(archive_of(len)),
        [0x28, 0xb5, 0x2f, 0xfd] => archive_of(len),
        _ => len,
    }
}

/// Returns what the last bytes of a gzip file say, if that can be: they know only the last of
/// several parts, and only 32 bits of its length.
fn gzip_len(blob: &File, len: u64) -> Option<u64> {
    let mut last = [0; 4];
    blob.read_exact_at(&mut last, len.checked_sub(4)?).ok()?;
    let said = u64::from(u32::from_le_bytes(last));
    // What cannot be compressed grows a little.
    let least = len - len / 16;
    (least.saturating_sub(64)..=len.saturating_mul(DEFLATE_MOST))
        .contains(&said)
        .then_some(said)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn blob(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(bytes).unwrap();
        gzip.finish().unwrap()
    }

    #[test]
    fn a_gzip_file_tells_unless_it_has_parts() {
        let one = gzip(&[7; 100_000]);
        assert_eq!(archive_bytes(&blob(&one)), 100_000);
        assert_eq!(room_for(100_000), 125_000);
        let parts = [one, gzip(&[7; 10])].concat();
        let len = parts.len() as u64;
        assert_eq!(archive_bytes(&blob(&parts)), len * 4);
        assert_eq!(archive_bytes(&blob(&[1; 1000])), 1000, "not compressed");
        assert_eq!(archive_bytes(&blob(&[0x1f, 0x8b, 0, 0])), 16);
        assert_eq!(archive_bytes(&blob(&[])), 0);
        assert_eq!(room_for(u64::MAX), u64::MAX);
    }
}
