//! Plain reads: open, read a range, compare.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

use super::Scene;
use crate::Rng;
use crate::tally::Outcome;

/// The longest read: more than the kernel asks for at once.
const LONGEST: u64 = 300_000;

/// Reads a range of a file, often after the kernel was made to forget it.
pub(super) fn read_one(scene: &Scene, rng: &mut Rng) -> Outcome {
    let files = scene.truth.files();
    let (path, truth) = &files[rng.index(files.len())];
    let file = File::open(scene.root.join(path))?;
    if rng.once_in(2) {
        forget(&file)?;
        if let Some(below) = &scene.below {
            forget(&File::open(below.join(path))?)?;
        }
    }
    let offset = rng.index(truth.len() + 1);
    let len = usize::try_from(rng.below(LONGEST)).unwrap_or(0);
    let mut buffer = vec![0xEE; len];
    let read = read_to_end(&file, &mut buffer, offset as u64)?;
    let expected = &truth[offset..truth.len().min(offset + len)];
    Ok(compare(path, offset, &buffer[..read], expected))
}

/// Drops the clean pages of a file from the page cache.
fn forget(file: &File) -> io::Result<()> {
    posix_fadvise(file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
    Ok(())
}

fn read_to_end(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], offset + filled as u64)? {
            0 => break,
            read => filled += read,
        }
    }
    Ok(filled)
}

/// Says in words what differs, if anything does.
pub(super) fn compare(path: &Path, offset: usize, read: &[u8], truth: &[u8]) -> Option<String> {
    if read == truth {
        return None;
    }
    let same = read
        .iter()
        .zip(truth)
        .take_while(|(one, other)| one == other);
    let at = offset + same.count();
    let (read, truth) = (read.len(), truth.len());
    Some(format!(
        "{}: byte {at} differs ({read} bytes read, {truth} expected, from {offset})",
        path.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_wrong_byte_is_named() {
        let path = Path::new("f");
        assert_eq!(compare(path, 10, b"abc", b"abc"), None);
        let wrong = compare(path, 10, b"abX", b"abc").unwrap();
        assert!(wrong.contains("byte 12"), "{wrong}");
        let short = compare(path, 0, b"ab", b"abc").unwrap();
        assert!(short.contains("byte 2 "), "{short}");
    }
}
