//! Descriptors that a process passes to a program it starts, as `sd_listen_fds(3)` describes it:
//! they are 3, 4, 5 and so on, and `LISTEN_PID` is the process that they are for.

#![expect(
    unsafe_code,
    reason = "a number becomes a descriptor, and LISTEN_PID is known only after fork"
)]

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use nix::fcntl::OFlag;
use nix::unistd::pipe2;

/// The first descriptor that is handed over.
const FIRST: RawFd = 3;

/// `LISTEN_PID=` and room for a number and the NUL behind it.
const PID_VARIABLE: &[u8] = b"LISTEN_PID=";
const PID_ROOM: usize = 11;

static TAKEN: AtomicBool = AtomicBool::new(false);

/// Takes the `count` descriptors that this program was started with. Once: a second call fails.
///
/// # Errors
/// If they were taken before, or one of them is not open or was opened by this program itself:
/// std opens files with close-on-exec, and inherited ones do not have it.
pub fn take(count: usize) -> io::Result<Vec<OwnedFd>> {
    if TAKEN.swap(true, SeqCst) {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    let end = RawFd::try_from(count)
        .ok()
        .and_then(|count| FIRST.checked_add(count))
        .ok_or(io::ErrorKind::InvalidInput)?;
    for fd in FIRST..end {
        // SAFETY: asks about a number, whatever it is.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
        if flags < 0 {
            return Err(io::Error::last_os_error());
        }
        if flags & libc::FD_CLOEXEC != 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
    }
    let owned = (FIRST..end).map(|fd| {
        // SAFETY: `fd` is open; it outlived an exec, so no object of this program owns it; and
        // this code runs once.
        let owned = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: sets a flag of a descriptor that is ours now.
        match unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } {
            0 => Ok(owned),
            _ => Err(io::Error::last_os_error()),
        }
    });
    owned.collect()
}

/// Starts `program` in a session of its own with `descriptors` as its 3, 4, 5 and so on, and
/// sets `LISTEN_FDS`, `LISTEN_FDNAMES` and `LISTEN_PID` besides `variables`.
/// Signals are unblocked, whatever this process blocks. Returns its process id.
///
/// # Errors
/// If there is no memory, no descriptor left, or the program cannot be run; there is no new
/// process then.
pub fn start(
    program: &Path,
    arguments: &[OsString],
    variables: impl IntoIterator<Item = (OsString, OsString)>,
    descriptors: &[BorrowedFd<'_>],
    names: &str,
) -> io::Result<u32> {
    let path = CString::new(program.as_os_str().as_bytes())?;
    let mut arguments = Block::new(
        [program.as_os_str()]
            .into_iter()
            .chain(arguments.iter().map(OsString::as_os_str))
            .map(|argument| argument.as_bytes().to_vec()),
    )?;
    let count = descriptors.len().to_string();
    let ours = [("LISTEN_FDS", count.as_str()), ("LISTEN_FDNAMES", names)];
    let mut pid_variable = PID_VARIABLE.to_vec();
    // Digits take their places in the child; until then the value is empty.
    pid_variable.resize(PID_VARIABLE.len() + PID_ROOM, 0);
    let mut variables = Block::new(
        variables
            .into_iter()
            .filter(|(name, _)| !is_ours(name))
            .chain(ours.map(|(name, value)| (name.into(), value.into())))
            .map(|(name, value)| [name.into_vec(), value.into_vec()].join(&b'=')),
    )?;
    variables.push_room(pid_variable);

    let (mut failed, tell) = {
        let (read, write) = pipe2(OFlag::O_CLOEXEC)?;
        (File::from(read), write)
    };
    let mut plan = Plan {
        sources: descriptors.iter().map(AsRawFd::as_raw_fd).collect(),
        tell: tell.as_raw_fd(),
        path: path.as_ptr(),
        arguments: arguments.pointers(),
        variables: variables.pointers(),
        pid_digits: variables.room(PID_VARIABLE.len()),
    };
    // SAFETY: the child only calls what is safe after fork in a process with threads: it makes no
    // allocation, takes no lock, and ends in execve or _exit.
    let pid = match unsafe { libc::fork() } {
        0 => plan.carry_out(),
        pid if pid < 0 => return Err(io::Error::last_os_error()),
        pid => pid,
    };
    drop(tell);
    let mut errno = Vec::new();
    failed.read_to_end(&mut errno)?;
    if let Ok(errno) = <[u8; 4]>::try_from(errno) {
        nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(pid), None)?;
        return Err(io::Error::from_raw_os_error(i32::from_le_bytes(errno)));
    }
    u32::try_from(pid).map_err(io::Error::other)
}

fn is_ours(name: &OsStr) -> bool {
    ["LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PID"]
        .iter()
        .any(|ours| name == *ours)
}

/// Strings for `execve(2)`, and the list of where they are.
struct Block {
    strings: Vec<Vec<u8>>,
    pointers: Vec<*const libc::c_char>,
}

impl Block {
    fn new(strings: impl Iterator<Item = Vec<u8>>) -> io::Result<Self> {
        let strings = strings
            .map(|string| Ok(CString::new(string)?.into_bytes_with_nul()))
            .collect::<io::Result<_>>()?;
        Ok(Self {
            strings,
            pointers: Vec::new(),
        })
    }

    /// Adds a string that ends with NULs, to be written over.
    fn push_room(&mut self, string: Vec<u8>) {
        self.strings.push(string);
    }

    /// Where the last string is, from `offset` on.
    fn room(&mut self, offset: usize) -> *mut u8 {
        let last = self.strings.last_mut();
        last.map_or(std::ptr::null_mut(), |last| last[offset..].as_mut_ptr())
    }

    fn pointers(&mut self) -> *const *const libc::c_char {
        self.pointers = self
            .strings
            .iter_mut()
            .map(|string| string.as_mut_ptr().cast_const().cast())
            .chain([std::ptr::null()])
            .collect();
        self.pointers.as_ptr()
    }
}

/// What the child does between fork and exec, with everything that needs memory made before.
struct Plan {
    sources: Vec<RawFd>,
    tell: RawFd,
    path: *const libc::c_char,
    arguments: *const *const libc::c_char,
    variables: *const *const libc::c_char,
    pid_digits: *mut u8,
}

impl Plan {
    fn carry_out(&mut self) -> ! {
        self.try_to();
        let errno = io::Error::last_os_error().raw_os_error().unwrap_or(0);
        let bytes = errno.to_le_bytes();
        // SAFETY: the descriptor is the child's copy of the pipe, the buffer is on the stack, and
        // _exit runs nothing of the parent's.
        unsafe {
            libc::write(self.tell, bytes.as_ptr().cast(), bytes.len());
            libc::_exit(127);
        }
    }

    /// Comes back only if something failed; errno says why.
    fn try_to(&mut self) {
        let Ok(count) = RawFd::try_from(self.sources.len()) else {
            return;
        };
        let end = FIRST + count;
        // First everything away from where descriptors will be put, then to its place.
        for fd in self.sources.iter_mut().chain([&mut self.tell]) {
            if *fd < end {
                // SAFETY: makes another descriptor for an open one, in the child only.
                let moved = unsafe { libc::fcntl(*fd, libc::F_DUPFD_CLOEXEC, end) };
                if moved < 0 {
                    return;
                }
                *fd = moved;
            }
        }
        for (place, fd) in (FIRST..end).zip(&self.sources) {
            // SAFETY: what was open at `place` was the parent's; the child has no use for it.
            if unsafe { libc::dup2(*fd, place) } < 0 {
                return;
            }
        }
        self.write_pid();
        // SAFETY: the signal set lives on the stack; the strings and their lists were made before
        // fork and end as execve wants it.
        unsafe {
            let mut none = std::mem::zeroed::<libc::sigset_t>();
            libc::sigemptyset(&raw mut none);
            libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
            libc::signal(libc::SIGPIPE, libc::SIG_DFL);
            libc::setsid();
            libc::execve(self.path, self.arguments, self.variables);
        }
    }

    /// Writes this process's number into its `LISTEN_PID`.
    fn write_pid(&mut self) {
        // SAFETY: takes nothing.
        let mut rest = unsafe { libc::getpid() }.unsigned_abs();
        let mut digits = [0_u8; PID_ROOM - 1];
        let mut start = digits.len();
        while rest > 0 && start > 0 {
            start -= 1;
            digits[start] = b'0' + u8::try_from(rest % 10).unwrap_or(0);
            rest /= 10;
        }
        let digits = &digits[start..];
        // SAFETY: there is room for PID_ROOM bytes, and the digits are at most one fewer; the
        // string is the child's own copy.
        unsafe { std::ptr::copy_nonoverlapping(digits.as_ptr(), self.pid_digits, digits.len()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::Pid;
    use std::os::fd::AsFd as _;

    fn run(script: &str, descriptors: &[BorrowedFd<'_>], names: &str) -> WaitStatus {
        let arguments = ["-c".into(), script.into()];
        let variables = [
            ("LISTEN_PID".into(), "1".into()),
            ("KEPT".into(), "yes".into()),
        ];
        let pid = start(
            Path::new("/bin/sh"),
            &arguments,
            variables,
            descriptors,
            names,
        )
        .unwrap();
        let pid = Pid::from_raw(i32::try_from(pid).unwrap());
        waitpid(pid, None).unwrap()
    }

    fn code(status: WaitStatus) -> i32 {
        match status {
            WaitStatus::Exited(_, code) => code,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_program_gets_its_descriptors_in_order_and_is_told_that_they_are_its_own() {
        let (read_a, write_a) = io::pipe().unwrap();
        let (read_b, write_b) = io::pipe().unwrap();
        // In another order than they were opened in.
        let given = [write_b.as_fd(), write_a.as_fd()];
        let script = r#"test "$LISTEN_PID" = $$ && test "$KEPT" = yes || exit 1
            test "$LISTEN_FDS $LISTEN_FDNAMES" = "2 b:a" || exit 2
            printf b >&3; printf a >&4"#;
        assert_eq!(code(run(script, &given, "b:a")), 0);
        drop((write_a, write_b));
        for (mut pipe, text) in [(read_a, "a"), (read_b, "b")] {
            let mut read = String::new();
            pipe.read_to_string(&mut read).unwrap();
            assert_eq!(read, text);
        }
    }

    #[test]
    fn nothing_else_is_inherited() {
        let (_read, write) = io::pipe().unwrap();
        // A shell keeps descriptors of its own only from 10 on, and none without a terminal.
        let script =
            "for fd in 3 4 5 6 7 8 9; do test -e /proc/$$/fd/$fd && exit $fd; done; exit 0";
        assert_eq!(code(run(script, &[], "")), 0);
        drop(write);
    }

    #[test]
    fn a_program_that_cannot_run_is_an_error_and_no_process() {
        let missing = Path::new("/nowhere/at/all");
        let error = start(missing, &[], [], &[], "").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
