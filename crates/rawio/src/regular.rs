//! Opening a regular file, at a place where somebody may have put something else.
//!
//! Opening a pipe waits for somebody who has its other end, which may be for ever; opening a device may do anything.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use nix::fcntl::{FcntlArg, OFlag, fcntl};

/// What a symbolic link at the path is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// Another name of the file.
    Followed,
    /// Refused: others may write to the directory.
    Refused,
}

/// Opens a regular file to read.
///
/// # Errors
/// If it cannot be opened, or is something else: [`io::ErrorKind::InvalidInput`].
pub fn open(path: &Path, links: Links) -> io::Result<File> {
    open_with(path, links, File::options().read(true))
}

/// Opens a regular file to read and write, and creates it if `create` says so and it is missing.
///
/// # Errors
/// As [`open`].
pub fn open_to_write(path: &Path, links: Links, create: bool) -> io::Result<File> {
    let mut options = File::options();
    let options = options.read(true).write(true).create(create);
    open_with(path, links, options.truncate(false))
}

/// Reads a regular file of at most `max` bytes.
///
/// # Errors
/// As [`open`], and if it has more: [`io::ErrorKind::FileTooLarge`].
pub fn read(path: &Path, links: Links, max: u64) -> io::Result<Vec<u8>> {
    let file = open(path, links)?;
    let mut bytes = Vec::new();
    file.take(max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max {
        let why = format!("it is longer than {max} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    Ok(bytes)
}

/// Creates an empty file to write, in the place of a file, a link or a pipe that may be there: neither is followed, nor waited
/// for.
///
/// # Errors
/// If what is there cannot be removed, such as a directory, or no file can be created.
pub fn create_anew(path: &Path) -> io::Result<File> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    File::options().write(true).create_new(true).open(path)
}

fn open_with(path: &Path, links: Links, options: &mut OpenOptions) -> io::Result<File> {
    let mut flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    flags.set(OFlag::O_NOFOLLOW, links == Links::Refused);
    let file = options.custom_flags(flags.bits()).open(path)?;
    if file.metadata()?.is_file() {
        // Not to stay: reads by io_uring may end with `EAGAIN` on such a descriptor.
        let now = OFlag::from_bits_retain(fcntl(&file, FcntlArg::F_GETFL)?);
        fcntl(&file, FcntlArg::F_SETFL(now - OFlag::O_NONBLOCK))?;
        return Ok(file);
    }
    let why = "it is not a regular file";
    Err(io::Error::new(io::ErrorKind::InvalidInput, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    #[test]
    fn pipes_and_devices_are_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        mkfifo(&pipe, Mode::S_IRWXU).unwrap();
        for path in [&*pipe, Path::new("/dev/zero")] {
            let refused = [
                open(path, Links::Followed).map(drop),
                open_to_write(path, Links::Followed, true).map(drop),
                read(path, Links::Followed, 10).map(drop),
            ];
            for refused in refused {
                let kind = refused.unwrap_err().kind();
                assert_eq!(kind, io::ErrorKind::InvalidInput, "{}", path.display());
            }
        }
    }

    #[test]
    fn no_more_is_read_than_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "four").unwrap();
        assert_eq!(read(&path, Links::Refused, 4).unwrap(), b"four");
        let file = open(&path, Links::Refused).unwrap();
        let flags = OFlag::from_bits_retain(fcntl(&file, FcntlArg::F_GETFL).unwrap());
        assert!(!flags.contains(OFlag::O_NONBLOCK), "reads wait as usual");
        let refused = read(&path, Links::Refused, 3).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::FileTooLarge);
    }

    #[test]
    fn what_is_there_is_kept_and_what_is_not_is_made_if_asked() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        assert!(open_to_write(&path, Links::Refused, false).is_err());
        open_to_write(&path, Links::Refused, true).unwrap();
        std::fs::write(&path, "kept").unwrap();
        open_to_write(&path, Links::Refused, true).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"kept");
    }

    #[test]
    fn what_is_in_the_place_of_a_new_file_goes() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("file"), dir.path().join("other"));
        std::fs::write(&other, "other").unwrap();
        let put: [&dyn Fn(); 4] = [
            &|| {},
            &|| std::fs::write(&path, "before").unwrap(),
            &|| mkfifo(&path, Mode::S_IRWXU).unwrap(),
            &|| std::os::unix::fs::symlink(&other, &path).unwrap(),
        ];
        for put in put {
            put();
            let mut file = create_anew(&path).unwrap();
            std::io::Write::write_all(&mut file, b"new").unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), b"new");
            std::fs::remove_file(&path).unwrap();
        }
        assert_eq!(std::fs::read(other).unwrap(), b"other");
    }
}
