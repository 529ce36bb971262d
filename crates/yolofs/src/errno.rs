//! The one place where errors become error numbers.

use blocks::{SourceError, SourceErrorKind};
use fuser::Errno;

use crate::FsError;

/// Returns the error number that describes an error best.
pub(crate) fn errno(error: &FsError) -> Errno {
    match error {
        FsError::Source(error) => source_errno(error),
        // What the kernel asks for was dropped by it and by us, or never was.
        FsError::UnknownNode(_) => Errno::ESTALE,
        FsError::NameTooLong => Errno::ENAMETOOLONG,
        FsError::NoAttribute => Errno::ENODATA,
        FsError::TooSmall => Errno::ERANGE,
        FsError::BeyondEnd => Errno::ENXIO,
        FsError::TooLarge => Errno::EFBIG,
        FsError::Unsupported => Errno::EOPNOTSUPP,
        FsError::ReadOnly => Errno::EROFS,
        FsError::NotADirectory => Errno::ENOTDIR,
        FsError::Invalid => Errno::EINVAL,
        FsError::Space(_) | FsError::Panicked => Errno::EIO,
    }
}

fn source_errno(error: &SourceError) -> Errno {
    match error.kind() {
        SourceErrorKind::NotFound => Errno::ENOENT,
        // The file changed at every look: the reader may try again, we do not.
        SourceErrorKind::Stale { .. } => Errno::ESTALE,
        SourceErrorKind::TimedOut => Errno::ETIMEDOUT,
        // A disk that fails says EIO itself; other causes (ENOMEM, EMFILE) are passed on.
        SourceErrorKind::Io => error.raw_os_error().map_or(Errno::EIO, Errno::from_i32),
        // The kinds may grow; until they are told apart here, they are failures.
        _ => Errno::EIO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn a_source_that_fails_keeps_its_own_number() {
        let no_memory = io::Error::from_raw_os_error(nix::libc::ENOMEM);
        let error = FsError::Source(SourceError::from_io("reading", no_memory));
        assert_eq!(errno(&error).code(), nix::libc::ENOMEM);
        let plain = FsError::Source(SourceError::new(SourceErrorKind::Io, "reading"));
        assert_eq!(errno(&plain).code(), nix::libc::EIO);
    }
}
