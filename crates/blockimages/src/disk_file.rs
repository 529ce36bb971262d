//! Opening the files of an image: what is no file is refused, and not waited for.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;

use nix::fcntl::OFlag;

/// Opens a file, or a block device, for reading.
///
/// # Errors
/// As [`open_with`].
pub(crate) fn open(path: &Path) -> io::Result<File> {
    open_with(path, File::options().read(true))
}

/// The same, in the way that the options say.
///
/// # Errors
/// As open(2), and for pipes, sockets and other devices: who opens a pipe waits for its other end, for ever.
pub(crate) fn open_with(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    // No effect on files.
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let opened = options.custom_flags(flags.bits()).open(path)?;
    let kind = opened.metadata()?.file_type();
    if kind.is_file() || kind.is_dir() || kind.is_block_device() {
        return Ok(opened);
    }
    let why = "it is neither a file nor a block device";
    Err(io::Error::new(io::ErrorKind::InvalidInput, why))
}

#[cfg(test)]
mod tests {
    use blocks::DeviceAccess;

    use super::*;
    use crate::{ImageError, RawDevice};

    #[test]
    fn what_is_no_file_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let [pipe, plain] = ["pipe", "plain"].map(|name| dir.path().join(name));
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        std::fs::write(&plain, "data").unwrap();
        open(&plain).unwrap();
        let raw = RawDevice::open(&pipe, DeviceAccess::ReadOnly);
        assert!(matches!(raw, Err(ImageError::File { .. })), "{raw:?}");
        for path in [pipe.as_path(), Path::new("/dev/zero")] {
            let error = open(path).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{error}");
            let both = open_with(path, File::options().read(true).write(true));
            assert_eq!(both.unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
    }
}
