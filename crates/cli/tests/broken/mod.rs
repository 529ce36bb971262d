//! A process that is broken into: its own next instructions are exchanged for an attacker's, which make
//! one system call with whatever the process has, and end it with what came of that.

#![allow(
    clippy::allow_attributes,
    reason = "what is unused differs from test to test"
)]
#![allow(dead_code, reason = "each test uses its own part of it")]

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Child, ExitStatus};

use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use lab::until;

/// What the attacker does, at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    /// Makes a file.
    Make,
    /// Opens one for reading.
    Read,
    /// Executes a program.
    Execute,
    /// Mounts something.
    Mount,
    /// Makes a socket to call whoever has a name on this machine.
    Call,
    /// Lets everybody read a file.
    Open,
    /// Lets everybody write to a file that is open; the path is not looked at.
    Widen,
    /// Makes a ring, of whose requests no filter knows; the path is not looked at.
    Ring,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Came {
    Done,
    /// The number of the error.
    Failed(i32),
    /// The process was killed over it.
    Killed(i32),
}

/// Permissions or Landlock said no.
pub(crate) const DENIED: Came = Came::Failed(libc::EACCES);
/// There is no such call, says the list of system calls.
pub(crate) const UNKNOWN: Came = Came::Failed(libc::ENOSYS);
/// The list of system calls said no.
pub(crate) const KILLED: Came = Came::Killed(libc::SIGSYS);

/// The status of a process, as the kernel shows it.
pub(crate) fn status(process: &Child) -> String {
    fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap_or_default()
}

/// Waits until a process is confined.
pub(crate) fn until_confined(process: &Child) {
    until("the process to be confined", || {
        status(process).contains("\nSeccomp:\t2\n")
    });
}

/// How often to break into another process when one broke. It happens to one of many.
const ATTEMPTS: usize = 10;

/// Breaks into processes that `start` starts until one does as it is told, and returns what came of that.
///
/// A thread that was in the middle of the instructions that are exchanged goes on in the middle of one of the
/// attacker's. What it does then is nobody's order: no system call, allowed or not, ends a process so.
pub(crate) fn one_does(mut start: impl FnMut() -> Child, deed: Deed, path: &Path) -> Came {
    let mut attempts = (0..ATTEMPTS).map(|_| does(start(), deed, path));
    let came = attempts.find(|came| !BROKE.contains(came));
    came.expect("one process of ten to do as it is told")
}

/// How a process ends that executes half an instruction.
const BROKE: [Came; 4] = [
    Came::Killed(libc::SIGILL),
    Came::Killed(libc::SIGSEGV),
    Came::Killed(libc::SIGBUS),
    Came::Killed(libc::SIGTRAP),
];

/// Breaks into a process, has it do something, and returns what came of that.
fn does(mut process: Child, deed: Deed, path: &Path) -> Came {
    let pid = Pid::from_raw(process.id().cast_signed());
    kill(pid, Signal::SIGSTOP).unwrap();
    until("the process to stop", || {
        status(&process).contains("\nState:\tT")
    });
    // "number arguments stack next", "-1 stack next": where it goes on, or after the call that it makes
    // again, which is two bytes before.
    let at = fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap();
    let next = at.split_whitespace().last().unwrap();
    let next = u64::from_str_radix(next.trim_start_matches("0x"), 16).unwrap();
    let memory = File::options()
        .write(true)
        .open(format!("/proc/{pid}/mem"))
        .unwrap();
    let code = code(deed, path.as_os_str());
    let is_calling = !at.starts_with("-1");
    match is_calling {
        true => {
            let nothing = &[0x66, 0x90]; // xchg ax, ax
            let code = [&nothing[..], &code].concat();
            memory.write_all_at(&code, next - 2).unwrap();
        }
        false => memory.write_all_at(&code, next).unwrap(),
    }
    kill(pid, Signal::SIGCONT).unwrap();
    came(process.wait().unwrap())
}

fn came(status: ExitStatus) -> Came {
    use std::os::unix::process::ExitStatusExt as _;
    match (status.code(), status.signal()) {
        (Some(code @ 1..128), _) => Came::Failed(code),
        (Some(_), _) => Came::Done,
        (None, signal) => Came::Killed(signal.unwrap_or_default()),
    }
}

/// Machine code: makes the call, and ends the process with the error's number. What a call returns that
/// succeeds, a descriptor, is beyond 127 as a code.
fn code(deed: Deed, path: &OsStr) -> Vec<u8> {
    let (number, flags) = match deed {
        Deed::Make => (libc::SYS_openat, libc::O_WRONLY | libc::O_CREAT),
        Deed::Read => (libc::SYS_openat, libc::O_RDONLY),
        Deed::Execute => (libc::SYS_execveat, 0),
        Deed::Mount => (libc::SYS_mount, 0),
        Deed::Call => (libc::SYS_socket, 0),
        Deed::Open => (libc::SYS_fchmodat, 0o644),
        Deed::Widen => (libc::SYS_fchmod, 0),
        Deed::Ring => (libc::SYS_io_uring_setup, 0),
    };
    // Of standard input, which is open in every process.
    let mode: &[u8] = match deed {
        Deed::Widen => &[0xbe, 0xb6, 0x01, 0, 0], // mov esi, 0666
        _ => &[],
    };
    let first = match deed {
        Deed::Call => libc::AF_UNIX,
        Deed::Ring => 1, // request at a time
        Deed::Widen => 0,
        _ => libc::AT_FDCWD,
    };
    let number = i32::try_from(number).unwrap().to_le_bytes();
    let exit = i32::try_from(libc::SYS_exit_group).unwrap().to_le_bytes();
    let after: &[&[u8]] = &[
        mode,
        &[0x48, 0xc7, 0xc7], // mov rdi, first
        &first.to_le_bytes(),
        &[0xba], // mov edx, flags
        &flags.to_le_bytes(),
        &[0x41, 0xba], // mov r10d, mode; of a program, its environment, which it may lack
        &match deed {
            Deed::Make | Deed::Read => 0o600_u32,
            _ => 0,
        }
        .to_le_bytes(),
        &[0x4d, 0x31, 0xc0], // xor r8, r8
        &[0xb8],             // mov eax, number
        &number,
        &[0x0f, 0x05], // syscall
        &[0x89, 0xc7], // mov edi, eax
        &[0xf7, 0xdf], // neg edi
        &[0xb8],       // mov eax, exit_group
        &exit,
        &[0x0f, 0x05], // syscall
    ];
    let after = after.concat();
    let mut code = vec![0x48, 0x8d, 0x35]; // lea rsi, [rip + what lies behind the code]
    code.extend(i32::try_from(after.len()).unwrap().to_le_bytes());
    code.extend(after);
    code.extend(path.as_bytes());
    code.push(0);
    code
}
