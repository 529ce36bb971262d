//! Terminals without names: a master leads to its other side, wherever its file system is mounted.

#![expect(unsafe_code, reason = "neither std nor nix has these requests")]

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};

/// Unlocks the other side of a master, and opens it. No path is looked up, so it cannot be
/// replaced.
///
/// # Errors
/// If `master` is not a terminal master.
pub fn open_other_side(master: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let unlocked: libc::c_int = 0;
    // SAFETY: reads the number, which is on the stack.
    checked(unsafe {
        libc::ioctl(
            master.as_raw_fd(),
            libc::TIOCSPTLCK as libc::Ioctl,
            &raw const unlocked,
        )
    })?;
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: takes no pointers.
    let fd: RawFd = checked(unsafe {
        libc::ioctl(master.as_raw_fd(), libc::TIOCGPTPEER as libc::Ioctl, flags)
    })?;
    // SAFETY: the kernel has opened the descriptor, and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Has the calling process, which leads a session without one, be controlled by a terminal.
///
/// # Errors
/// If it leads no session, or the terminal has one.
pub fn control_by(terminal: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: takes no pointers.
    checked(unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSCTTY as libc::Ioctl, 0) })
        .map(drop)
}

/// Sets the window size of a terminal.
///
/// # Errors
/// If it is not a terminal.
pub fn set_size(terminal: BorrowedFd<'_>, rows: u16, columns: u16) -> io::Result<()> {
    let size = libc::winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: reads the structure, which is on the stack.
    checked(unsafe {
        libc::ioctl(
            terminal.as_raw_fd(),
            libc::TIOCSWINSZ as libc::Ioctl,
            &raw const size,
        )
    })
    .map(drop)
}

fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    match result {
        result if result >= 0 => Ok(result),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read as _, Write as _};
    use std::os::fd::AsFd as _;

    #[test]
    fn what_is_written_to_the_other_side_comes_out_of_the_master() {
        let mut master = File::options()
            .read(true)
            .write(true)
            .open("/dev/ptmx")
            .unwrap();
        let mut other = File::from(open_other_side(master.as_fd()).unwrap());
        set_size(other.as_fd(), 24, 80).unwrap();
        other.write_all(b"hello\n").unwrap();
        let mut said = [0; 5];
        master.read_exact(&mut said).unwrap();
        assert_eq!(&said, b"hello");
        assert!(open_other_side(File::open("/dev/null").unwrap().as_fd()).is_err());
    }
}
