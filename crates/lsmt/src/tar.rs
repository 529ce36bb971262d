//! The tar that registries see around a blob: one file, its length in a PAX header.

use crate::error::{Doing, LsmtError, Result, rule};
use crate::num::{array_at, put, size, wide};
use crate::storage::{ReadAt, Storage, Window};

const BLOCK: u64 = 512;
/// The offset of the blob behind a PAX header, its body and the file's own header.
pub const TAR_DATA_OFFSET: u64 = 3 * BLOCK;
/// What a PAX body of one block may have.
const PAX_BYTES_MAX: u64 = BLOCK;

/// Returns where the blob is in something that may be a tar around it.
///
/// # Errors
///
/// Fails if it is a tar, but not one with a blob as its first file.
pub fn blob_range(blob: &impl ReadAt) -> Result<std::ops::Range<u64>> {
    let blob_bytes = blob.size().doing("get the size of a blob")?;
    if blob_bytes < 2 * BLOCK {
        return Ok(0..blob_bytes);
    }
    let first = block(blob, 0)?;
    if !is_header(&first) {
        return Ok(0..blob_bytes);
    }
    let (start, len) = if first[156] == b'x' {
        if blob_bytes < TAR_DATA_OFFSET || number(&first[124..136])? > PAX_BYTES_MAX {
            return rule("tar around the blob", "its PAX header is not one block");
        }
        let named = pax_size(&block(blob, BLOCK)?)?;
        let header = block(blob, 2 * BLOCK)?;
        if !is_header(&header) {
            return rule("tar around the blob", "no file follows the PAX header");
        }
        (
            TAR_DATA_OFFSET,
            named.map_or_else(|| number(&header[124..136]), Ok)?,
        )
    } else {
        (BLOCK, number(&first[124..136])?)
    };
    match start.checked_add(len) {
        Some(end) if end <= blob_bytes => Ok(start..end),
        _ => rule("tar around the blob", "the blob goes past its end"),
    }
}

/// Returns the blob within something that may be a tar around it.
///
/// # Errors
///
/// As [`blob_range`].
pub fn unwrap_tar<R: ReadAt>(blob: R) -> Result<Window<R>> {
    let range = blob_range(&blob)?;
    Ok(Window::new(blob, range))
}

/// Writes the headers in front of a blob of `len` bytes at [`TAR_DATA_OFFSET`], and
/// the end of the tar; returns the length of the tar. The bytes are those of `overlaybd-commit -t`.
///
/// # Errors
///
/// Fails as the storage does.
pub fn wrap_tar(storage: &dyn Storage, len: u64) -> Result<u64> {
    let [before, behind] = tar_around(len);
    storage.write_at(&before, 0).doing("write a tar")?;
    let end = TAR_DATA_OFFSET + len;
    storage.write_at(&behind, end).doing("write a tar")?;
    Ok(end + wide(behind.len()))
}

/// Returns what such a tar has before and behind a blob of `len` bytes.
#[must_use]
pub fn tar_around(len: u64) -> [Vec<u8>; 2] {
    let record = pax_record(len);
    let mut pax = [0; 512];
    put(&mut pax, 0, b"overlaybd.pax");
    put(&mut pax, 124, format!("{:>11o} ", record.len()).as_bytes());
    seal(&mut pax, b'x');
    let mut file = [0; 512];
    put(&mut file, 0, b"overlaybd.commit");
    put(
        &mut file,
        100,
        b"100644 \0     0 \0     0 \0          0           0 ",
    );
    put(&mut file, 265, b"root");
    put(&mut file, 297, b"root");
    seal(&mut file, b'0');
    let mut body = [0; 512];
    put(&mut body, 0, record.as_bytes());
    let padding = len.next_multiple_of(BLOCK) - len + 2 * BLOCK;
    [[pax, body, file].concat(), vec![0; size(padding)]]
}

/// Returns the PAX record of a length, which begins with its own length.
fn pax_record(len: u64) -> String {
    let rest = format!(" size={len}\n");
    let digits = (1..9).find(|digits| (rest.len() + digits).to_string().len() == *digits);
    format!("{}{rest}", rest.len() + digits.unwrap_or(1))
}

fn seal(header: &mut [u8; 512], kind: u8) {
    header[156] = kind;
    put(header, 257, b"ustar\x0000");
    let sum = checksum(header);
    put(header, 148, format!("{sum:>6o} \0").as_bytes());
}

fn block(blob: &impl ReadAt, at: u64) -> Result<[u8; 512]> {
    let mut block = [0; 512];
    blob.read_at(&mut block, at)
        .doing("read a blob's first bytes")?;
    Ok(block)
}

fn checksum(header: &[u8; 512]) -> u64 {
    let sum = |bytes: &[u8]| bytes.iter().map(|&byte| u64::from(byte)).sum::<u64>();
    sum(&header[..148]) + 8 * u64::from(b' ') + sum(&header[156..])
}

fn is_header(block: &[u8; 512]) -> bool {
    array_at::<5>(block, 257) == *b"ustar"
        && number(&block[148..156]).is_ok_and(|sum| sum == checksum(block))
}

/// Parses an octal number between spaces and zeros.
fn number(field: &[u8]) -> Result<u64> {
    let digits = field.iter().skip_while(|&&byte| byte == b' ');
    let digits = digits.take_while(|&&byte| byte != b' ' && byte != 0);
    digits
        .into_iter()
        .try_fold(0_u64, |number, &digit| match digit {
            b'0'..=b'7' => Ok(number << 3 | u64::from(digit - b'0')),
            _ => Err(LsmtError::Rule {
                part: "tar around the blob",
                rule: "a number is not octal",
            }),
        })
}

/// Returns the size in the records of a PAX body.
fn pax_size(body: &[u8]) -> Result<Option<u64>> {
    let end = body.iter().position(|&byte| byte == 0);
    let text = std::str::from_utf8(&body[..end.unwrap_or(body.len())]).unwrap_or_default();
    let sizes = text.lines().filter_map(|line| line.split_once(" size="));
    sizes
        .map(|(_, size)| size.parse().ok())
        .next()
        .map_or(Ok(None), |size| match size {
            Some(size) => Ok(Some(size)),
            None => rule(
                "tar around the blob",
                "the size in its PAX header is no number",
            ),
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::MemoryStorage;

    #[test]
    fn what_is_wrapped_is_found() {
        for len in [0, 1, 511, 512, 99_999_u64] {
            let storage = MemoryStorage::new(vec![7; usize::try_from(1536 + len).unwrap()]);
            let whole = wrap_tar(&storage, len).unwrap();
            assert_eq!(whole, storage.size().unwrap());
            assert_eq!(blob_range(&storage).unwrap(), 1536..1536 + len);
        }
    }

    #[test]
    fn a_size_past_the_end_is_refused() {
        let storage = MemoryStorage::new(vec![0; 1536]);
        wrap_tar(&storage, 100).unwrap();
        storage.set_size(1600).unwrap();
        assert!(blob_range(&storage).is_err());
    }
}
