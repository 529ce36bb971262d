//! Replacing the file behind a descriptor.

#![expect(
    unsafe_code,
    reason = "nix replaces only descriptors that the caller owns"
)]

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

/// Makes `place` refer to the file of `file`, from now on: `dup3(2)`. The number of `place` stays,
/// and so do all uses of it by its owner. It is closed on exec.
///
/// This exchanges a descriptor that another object owns privately, such as that of a
/// session. The former file of `place` is closed.
///
/// # Errors
/// As `dup3(2)`; `place` and `file` must not be the same descriptor.
pub fn replace(place: BorrowedFd<'_>, file: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: both descriptors are open for the length of this call. The owner of `place` goes on
    // to own an open descriptor of this number, and closes it once, as before.
    let result = unsafe { libc::dup3(file.as_raw_fd(), place.as_raw_fd(), libc::O_CLOEXEC) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Has all descriptors from `first` on be closed when a program is executed.
///
/// # Errors
/// As `close_range(2)`.
pub fn close_on_exec_from(first: u32) -> io::Result<()> {
    let flags = libc::CLOSE_RANGE_CLOEXEC;
    // SAFETY: takes no pointers; no descriptor is closed by this call.
    let done = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, flags) };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read as _, Seek as _, Write as _};
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn a_descriptor_leads_elsewhere_and_keeps_its_number() {
        let mut place = File::open("/dev/null").unwrap();
        let number = place.as_raw_fd();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"content").unwrap();
        replace(place.as_fd(), file.as_fd()).unwrap();
        place.rewind().unwrap();
        let mut text = String::new();
        place.read_to_string(&mut text).unwrap();
        assert_eq!((text.as_str(), place.as_raw_fd()), ("content", number));
    }

    #[test]
    fn a_descriptor_cannot_replace_itself() {
        let place = File::open("/dev/null").unwrap();
        let error = replace(place.as_fd(), place.as_fd()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
