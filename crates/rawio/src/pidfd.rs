//! A process by a descriptor: its number may be given to another, its descriptor never is.

#![expect(unsafe_code, reason = "neither std nor nix opens these")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// A process, or its first thread. It polls as readable when that has ended, reaped or not.
#[derive(Debug)]
pub struct PidFd(OwnedFd);

/// `PIDFD_THREAD` of linux/pidfd.h (Linux 6.9), which libc does not have yet.
const PIDFD_THREAD: libc::c_int = libc::O_EXCL;

impl PidFd {
    /// Opens the process that has this number now.
    ///
    /// # Errors
    /// If there is none (`ESRCH`).
    pub fn open(pid: u32) -> io::Result<Self> {
        Self::open_as(pid, 0)
    }

    /// Opens the first thread of the process that has this number now. It ends with the process,
    /// or before it: a process that is killed is not gone as long as one of its threads waits in
    /// the kernel for something that no signal ends. Before Linux 6.9 it is the process.
    ///
    /// # Errors
    /// If there is none (`ESRCH`).
    pub fn open_first_thread(pid: u32) -> io::Result<Self> {
        match Self::open_as(pid, PIDFD_THREAD) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Self::open(pid),
            opened => opened,
        }
    }

    fn open_as(pid: u32, flags: libc::c_int) -> io::Result<Self> {
        // SAFETY: the call takes no pointers.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, flags) };
        match i32::try_from(fd) {
            // SAFETY: pidfd_open gives a new descriptor, which nobody else owns.
            Ok(fd) if fd >= 0 => Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) })),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// If it has ended and was reaped (`ESRCH`), or may not be sent to.
    pub fn signal(&self, signal: nix::sys::signal::Signal) -> io::Result<()> {
        // SAFETY: a descriptor of ours, a signal's number, no information, no flags.
        let sent = unsafe {
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                self.0.as_raw_fd(),
                signal as libc::c_int,
                std::ptr::null::<libc::siginfo_t>(),
                0,
            )
        };
        match sent {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    /// If it cannot be polled.
    pub fn wait(&self) -> io::Result<()> {
        loop {
            let mut fds = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
            match poll(&mut fds, PollTimeout::NONE) {
                Ok(0) | Err(Errno::EINTR) => (),
                Ok(_) => return Ok(()),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Waits until it has ended. Returns whether it has by the time `patience` has passed.
    ///
    /// # Errors
    /// If it cannot be polled.
    pub fn ended_within(&self, patience: Duration) -> io::Result<bool> {
        let deadline = std::time::Instant::now() + patience;
        loop {
            let left = deadline.saturating_duration_since(std::time::Instant::now());
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            let mut fds = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
            match poll(&mut fds, timeout) {
                Ok(0) if left.is_zero() => return Ok(false),
                // What polls counts in milliseconds: the rest of one may be left.
                Ok(0) | Err(Errno::EINTR) => (),
                Ok(_) => return Ok(true),
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl From<OwnedFd> for PidFd {
    /// Takes what another process opened and handed over.
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

impl From<PidFd> for OwnedFd {
    fn from(PidFd(fd): PidFd) -> Self {
        fd
    }
}

impl AsFd for PidFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::signal::Signal;
    use std::process::{Command, Stdio};

    #[test]
    fn tells_when_a_process_ends() {
        let mut child = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let process = PidFd::open(child.id()).unwrap();
        let thread = PidFd::open_first_thread(child.id()).unwrap();
        assert!(!process.ended_within(Duration::ZERO).unwrap());
        assert!(!thread.ended_within(Duration::ZERO).unwrap());
        process.signal(Signal::SIGKILL).unwrap();
        assert!(thread.ended_within(Duration::from_secs(60)).unwrap());
        assert!(process.ended_within(Duration::from_secs(60)).unwrap());
        child.wait().unwrap();
        let error = process.signal(Signal::SIGKILL).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ESRCH));
    }

    #[test]
    fn what_is_not_there_cannot_be_opened() {
        assert!(PidFd::open(u32::MAX / 2).is_err());
    }
}
