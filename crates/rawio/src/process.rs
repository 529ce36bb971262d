//! Processes by descriptor: a number may be given to another process, a descriptor never is.

#![expect(
    unsafe_code,
    reason = "neither std nor nix has pidfd_open(2) and its family"
)]

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;

/// A process, whether it lives or not. Its descriptor becomes readable when it has ended.
#[derive(Debug)]
pub struct PidFd(OwnedFd);

impl PidFd {
    /// Opens the process that has this number now. Whoever is not its parent has to make sure
    /// that it is still the one that was meant.
    ///
    /// # Errors
    /// If there is none (`ESRCH`), or the kernel cannot (Linux before 5.3).
    pub fn open(pid: u32) -> io::Result<Self> {
        let pid = libc::pid_t::try_from(pid).map_err(|_| io::Error::from(Errno::ESRCH))?;
        // SAFETY: the call takes no pointers. Such descriptors are always closed on exec.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        let fd = RawFd::try_from(fd).map_err(io::Error::other)?;
        // SAFETY: the call gives a new descriptor, which nobody else owns.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Sends a signal. A process that has ended gets none, and that is fine.
    ///
    /// # Errors
    /// If the caller may not.
    pub fn kill(&self, signal: Signal) -> io::Result<()> {
        let no_info = std::ptr::null::<libc::siginfo_t>();
        // SAFETY: the pointer is NULL, which the call takes for "as kill(2) does".
        let result = unsafe {
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                self.0.as_raw_fd(),
                signal as libc::c_int,
                no_info,
                0,
            )
        };
        match (result, Errno::last()) {
            (0, _) | (_, Errno::ESRCH) => Ok(()),
            (_, errno) => Err(errno.into()),
        }
    }

    /// Waits until all of the process has ended, or `patience` has passed; returns whether it has
    /// ended. Its parent may not have asked for its result yet.
    ///
    /// # Errors
    /// As `poll(2)`.
    pub fn wait(&self, patience: Duration) -> io::Result<bool> {
        let mut waits = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        let patience = PollTimeout::try_from(patience).unwrap_or(PollTimeout::MAX);
        match poll(&mut waits, patience) {
            Ok(ended) => Ok(ended > 0),
            Err(Errno::EINTR) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl AsFd for PidFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_is_seen_to_end() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let process = PidFd::open(child.id()).unwrap();
        assert!(!process.wait(Duration::ZERO).unwrap());
        process.kill(Signal::SIGKILL).unwrap();
        while !process.wait(Duration::from_secs(60)).unwrap() {}
        // Ended, and not asked for its result: it still takes signals.
        process.kill(Signal::SIGTERM).unwrap();
        child.wait().unwrap();
        process.kill(Signal::SIGTERM).unwrap();
    }

    #[test]
    fn a_number_that_no_process_has_is_an_error() {
        assert!(PidFd::open(u32::MAX).is_err());
        assert!(PidFd::open(0).is_err());
    }
}
