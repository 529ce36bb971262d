//! Which process holds a lock, for errors.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};

use nix::sys::stat::{major, minor};

/// Most bytes of the system's list of locks that are read: some 20,000 locks.
const LIST_MAX: u64 = 1 << 20;
/// Most bytes of a process's number in a file.
const NUMBER_MAX: usize = 16;

/// Returns the process that holds the lock of a file. It is `None` if neither the system nor the file tells, as
/// for a process of another PID namespace.
pub(super) fn of(file: &File) -> Option<u32> {
    listed(file).or_else(|| written(file))
}

/// Returns what the system's list of locks says.
fn listed(file: &File) -> Option<u32> {
    let of = file.metadata().ok()?;
    let wanted = format!(
        "{:02x}:{:02x}:{}",
        major(of.dev()),
        minor(of.dev()),
        of.ino()
    );
    let mut list = String::new();
    let opened = fs::File::open("/proc/locks").ok()?;
    opened.take(LIST_MAX).read_to_string(&mut list).ok()?;
    list.lines().find_map(|line| holder_in(line, &wanted))
}

/// Returns the process of a line like `1: FLOCK  ADVISORY  WRITE 1234 fe:00:5678 0 EOF`. Those that wait have an
/// arrow after the number.
fn holder_in(line: &str, wanted: &str) -> Option<u32> {
    let fields: Vec<_> = line.split_ascii_whitespace().collect();
    match fields[..] {
        [_, "FLOCK", _, _, process, file, ..] if file == wanted => process.parse().ok(),
        _ => None,
    }
}

/// Returns what [`FileLock::sign`](super::FileLock::sign) has written.
fn written(file: &File) -> Option<u32> {
    let mut number = [0; NUMBER_MAX];
    let len = file.read_at(&mut number, 0).ok()?;
    let number = std::str::from_utf8(&number[..len]).ok()?;
    number.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn a_line_names_the_holder_and_not_who_waits() {
        let of = |line| holder_in(line, "fe:00:12");
        assert_eq!(of("1: FLOCK  ADVISORY  WRITE 34 fe:00:12 0 EOF"), Some(34));
        assert_eq!(of("1: FLOCK  ADVISORY  WRITE 34 fe:00:123 0 EOF"), None);
        assert_eq!(of("1: POSIX  ADVISORY  WRITE 34 fe:00:12 0 EOF"), None);
        assert_eq!(of("1: -> FLOCK  ADVISORY  WRITE 34 fe:00:12 0 EOF"), None);
        assert_eq!(of("1: FLOCK  ADVISORY  WRITE -1 fe:00:12 0 EOF"), None);
        assert_eq!(of(""), None);
    }

    #[test]
    fn a_file_names_its_holder_if_it_has_been_signed() -> io::Result<()> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("lock");
        for (text, process) in [
            ("", None),
            ("77", Some(77)),
            ("x", None),
            ("77\n", Some(77)),
        ] {
            fs::write(&path, text)?;
            assert_eq!(written(&File::open(&path)?), process, "{text:?}");
        }
        assert_eq!(written(&File::open(dir.path())?), None);
        Ok(())
    }
}
