//! A process by a descriptor: its number may be given to another, its descriptor never is.

#![expect(unsafe_code, reason = "neither std nor nix opens these")]

use std::fs;
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

/// A kind of namespace that a process is in, and the request of linux/pidfd.h (Linux 6.11) that opens it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Namespace {
    /// Of mounts: `PIDFD_GET_MNT_NAMESPACE`, `_IO(0xff, 3)`.
    Mount = 0xff03,
    /// Of network devices: `PIDFD_GET_NET_NAMESPACE`.
    Network = 0xff04,
    /// Of users: `PIDFD_GET_USER_NAMESPACE`.
    User = 0xff09,
}

/// How often a process is looked at that has not ended: whether it is dead all the same.
const LOOK: Duration = Duration::from_millis(500);

/// `PF_EXITING` of the kernel's linux/sched.h: the thread runs no more of its program.
const PF_EXITING: u64 = 4;

impl PidFd {
    /// Opens the process with this id now.
    ///
    /// # Errors
    /// If there is none (`ESRCH`).
    pub fn open(pid: u32) -> io::Result<Self> {
        Self::open_as(pid, 0)
    }

    /// Opens the first thread of the process with this id now. It ends with the process,
    /// or a little before it. A first thread that is dead while others of its process are not is
    /// reported by Linux 6.9 to 6.14 only: see [`Self::is_exiting`].
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

    /// Opens the process at the other end of a connected unix socket: the one that connected, or
    /// that listens. It is that one even if it has ended since, and its id was reused.
    ///
    /// # Errors
    /// If it was reaped, or the kernel is older than 6.5 (`ENOPROTOOPT`).
    pub fn of_peer(socket: impl AsFd) -> io::Result<Self> {
        let mut fd: libc::c_int = -1;
        let mut len = libc::socklen_t::try_from(size_of::<libc::c_int>()).unwrap_or(0);
        // SAFETY: the value is as long as is said, and the kernel keeps no pointer.
        let got = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERPIDFD,
                (&raw mut fd).cast(),
                &raw mut len,
            )
        };
        match got {
            // SAFETY: the call has opened a descriptor, which nobody else owns.
            0 if fd >= 0 => Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) })),
            0 => Err(io::ErrorKind::InvalidData.into()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// If it has ended and was reaped (`ESRCH`), or may not be sent to.
    pub fn signal(&self, signal: nix::sys::signal::Signal) -> io::Result<()> {
        self.signal_number(signal as libc::c_int)
    }

    /// Sends it the signal of this number, which may be one of those that have no name.
    ///
    /// # Errors
    /// As [`Self::signal`]; or if there is no such signal (`EINVAL`).
    pub fn signal_number(&self, signal: i32) -> io::Result<()> {
        // SAFETY: a descriptor of ours, a signal's number, no information, no flags.
        let sent = unsafe {
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                self.0.as_raw_fd(),
                signal,
                std::ptr::null::<libc::siginfo_t>(),
                0,
            )
        };
        match sent {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Waits until its first thread runs no more: see [`Self::is_exiting`].
    ///
    /// # Errors
    /// If it cannot be polled, or `/proc` cannot be read.
    pub fn wait(&self) -> io::Result<()> {
        while !(self.ended_within(LOOK)? || self.is_exiting()?) {}
        Ok(())
    }

    /// Returns whether its first thread has ended. The process ends with it, or later: a killed
    /// process exists as long as one of its threads waits in the kernel for an event that
    /// no signal interrupts. There is nothing to poll for that: since Linux 6.15 the descriptor of a
    /// first thread becomes readable with that of the process, and not before.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub fn is_exiting(&self) -> io::Result<bool> {
        let Some(pid) = self.number()? else {
            return Ok(true);
        };
        let exiting = match fs::read_to_string(format!("/proc/{pid}/stat")) {
            Ok(stat) => flags(&stat).ok_or(io::ErrorKind::InvalidData)? & PF_EXITING != 0,
            // Reaped meanwhile, which its number tells, or hidden from us (hidepid), which is no
            // sign of death.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => false,
            Err(error) => return Err(error),
        };
        // The number was given to another only if it is not its own any more.
        Ok(exiting || self.number()? != Some(pid))
    }

    /// Returns its exit status, as `wait(2)` encodes it, once it was reaped, by any process. `None` before
    /// that, and always on kernels that do not store it (Linux before 6.15).
    ///
    /// # Errors
    /// If the descriptor is not one of a process.
    pub fn exit_status(&self) -> io::Result<Option<i32>> {
        /// `PIDFD_INFO_EXIT`, and the places of `mask` and `exit_code` in a `struct pidfd_info` of
        /// its first size (linux/pidfd.h), in words of 32 bits.
        const EXIT: u32 = 1 << 3;
        const MASK_AT: usize = 0;
        const EXIT_CODE_AT: usize = 15;
        /// `PIDFD_GET_INFO`: `_IOWR(0xff, 11, struct pidfd_info)`.
        const GET_INFO: u32 = 0xc040_ff0b;
        #[repr(align(8))]
        struct Info([u32; 16]);
        let mut info = Info([0; 16]);
        info.0[MASK_AT] = EXIT;
        // SAFETY: the structure is as long as the request says, and aligned as it; the kernel
        // keeps no pointer.
        let asked =
            unsafe { libc::ioctl(self.0.as_raw_fd(), GET_INFO as libc::Ioctl, &raw mut info) };
        match asked {
            0 => Ok((info.0[MASK_AT] & EXIT != 0).then(|| info.0[EXIT_CODE_AT].cast_signed())),
            _ => match Errno::last() {
                Errno::ENOTTY | Errno::EINVAL | Errno::ESRCH => Ok(None),
                errno => Err(errno.into()),
            },
        }
    }

    /// Opens a namespace that it is in. `None` if it has ended, or the kernel cannot (Linux before 6.11).
    ///
    /// # Errors
    /// If this process has no right to look at it.
    pub fn namespace(&self, kind: Namespace) -> io::Result<Option<OwnedFd>> {
        opened(self.as_fd(), kind as u32)
    }

    /// Returns its process id, or `None` if it was reaped.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub fn number(&self) -> io::Result<Option<u32>> {
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", self.0.as_raw_fd()))?;
        let number = info.lines().find_map(|line| line.strip_prefix("Pid:"));
        Ok(number.and_then(|number| number.trim().parse().ok()))
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

/// Opens the user namespace that a namespace belongs to: who has rights there has them in that, too.
///
/// # Errors
/// If it is none that this process may see (`EPERM`).
pub fn owner_of(namespace: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    /// `NS_GET_USERNS` of linux/nsfs.h: `_IO(0xb7, 1)`.
    const GET_OWNER: u32 = 0xb701;
    opened(namespace, GET_OWNER)
}

/// Asks for a descriptor by a request without a parameter.
fn opened(of: BorrowedFd<'_>, request: u32) -> io::Result<Option<OwnedFd>> {
    // SAFETY: the requests that come here take no parameter.
    let fd = unsafe { libc::ioctl(of.as_raw_fd(), request as libc::Ioctl, 0) };
    match fd {
        // SAFETY: the kernel has opened it, with close-on-exec, and nobody else owns it.
        0.. => Ok(Some(unsafe { OwnedFd::from_raw_fd(fd) })),
        _ => match Errno::last() {
            Errno::ENOTTY | Errno::EINVAL | Errno::ESRCH => Ok(None),
            errno => Err(errno.into()),
        },
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

/// The kernel's flags of a thread, in a line of `/proc/PID/stat`.
fn flags(stat: &str) -> Option<u64> {
    // Behind the name, which may have anything in it, they are the seventh.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(6)?.parse().ok()
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
        assert!(!process.is_exiting().unwrap());
        assert!(!thread.ended_within(Duration::ZERO).unwrap());
        process.signal(Signal::SIGKILL).unwrap();
        assert!(thread.ended_within(Duration::from_secs(60)).unwrap());
        assert!(process.ended_within(Duration::from_secs(60)).unwrap());
        assert!(process.is_exiting().unwrap());
        child.wait().unwrap();
        assert!(process.is_exiting().unwrap());
        let error = process.signal(Signal::SIGKILL).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ESRCH));
    }

    #[test]
    fn tells_when_only_the_first_thread_has_ended() {
        extern "C" fn stay(_: *mut libc::c_void) -> *mut libc::c_void {
            loop {
                // SAFETY: it waits for a signal.
                unsafe { libc::pause() };
            }
        }
        // SAFETY: the child makes calls into the kernel only.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let mut thread = 0;
            // SAFETY: it starts a thread and ends this one, alone.
            unsafe {
                libc::pthread_create(
                    &raw mut thread,
                    std::ptr::null(),
                    stay,
                    std::ptr::null_mut(),
                );
                libc::syscall(libc::SYS_exit, 0);
            }
        }
        let process = PidFd::open(u32::try_from(child).unwrap()).unwrap();
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        while !process.is_exiting().unwrap() {
            assert!(std::time::Instant::now() < deadline, "it goes on");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!process.ended_within(Duration::ZERO).unwrap());
        process.signal(Signal::SIGKILL).unwrap();
        assert!(process.ended_within(Duration::from_secs(60)).unwrap());
        nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(child), None).unwrap();
    }

    #[test]
    fn namespaces_are_opened_and_have_an_owner() {
        use std::os::unix::fs::MetadataExt as _;
        let inode = |fd: OwnedFd| fs::File::from(fd).metadata().unwrap().ino();
        let own = |name| fs::metadata(format!("/proc/self/ns/{name}")).unwrap().ino();
        let this = PidFd::open(std::process::id()).unwrap();
        let kinds = [
            (Namespace::Mount, "mnt"),
            (Namespace::Network, "net"),
            (Namespace::User, "user"),
        ];
        for (kind, name) in kinds {
            // Linux before 6.11 opens none.
            let Some(namespace) = this.namespace(kind).unwrap() else {
                continue;
            };
            if kind == Namespace::Network {
                let owner = owner_of(namespace.as_fd()).unwrap().unwrap();
                assert_eq!(inode(owner), own("user"));
            }
            assert_eq!(inode(namespace), own(name));
        }
        assert!(
            owner_of(fs::File::open("/dev/null").unwrap().as_fd())
                .unwrap()
                .is_none()
        );
    }

    #[test]
    fn flags_are_found_behind_any_name() {
        let stat = "20309 (a) b) Z 17635 20309 17635 0 -1 4228364 1801 0 0";
        assert_eq!(flags(stat), Some(4_228_364));
        assert_eq!(flags("20309 (a"), None);
    }

    #[test]
    fn the_status_of_a_reaped_process_is_kept_where_the_kernel_keeps_it() {
        let mut child = Command::new("sh").args(["-c", "exit 7"]).spawn().unwrap();
        let process = PidFd::open(child.id()).unwrap();
        assert_eq!(process.exit_status().unwrap(), None);
        child.wait().unwrap();
        let status = process.exit_status().unwrap();
        let release = nix::sys::utsname::uname().unwrap();
        let release = release.release().to_string_lossy().into_owned();
        let mut numbers = release
            .split(['.', '-'])
            .map(|part| part.parse().unwrap_or(0));
        let version: (u32, u32) = (numbers.next().unwrap(), numbers.next().unwrap());
        if version >= (6, 15) {
            assert_eq!(status, Some(7 << 8));
        } else {
            assert_eq!(status, None);
        }
    }

    #[test]
    fn who_connected_is_known_to_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let ours = std::os::unix::net::UnixStream::connect(&path).unwrap();
        let peer = PidFd::of_peer(&listener.accept().unwrap().0).unwrap();
        assert_eq!(peer.number().unwrap(), Some(std::process::id()));
        assert!(!peer.ended_within(Duration::ZERO).unwrap());
        drop(ours);
    }

    #[test]
    fn what_is_not_there_cannot_be_opened() {
        assert!(PidFd::open(u32::MAX / 2).is_err());
    }
}
