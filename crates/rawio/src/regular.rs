//! Opening a file to read, at a place where somebody may have put something else.
//!
//! Opening a pipe waits for somebody who writes to it, which may be for ever; opening a device may do anything.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use nix::fcntl::OFlag;

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
    let mut flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    flags.set(OFlag::O_NOFOLLOW, links == Links::Refused);
    let mut options = File::options();
    let file = options.read(true).custom_flags(flags.bits()).open(path)?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    let why = "it is not a regular file";
    Err(io::Error::new(io::ErrorKind::InvalidInput, why))
}
