//! The steps of a new process: system calls, and nothing else.
//!
//! The process is a copy of one that may have had threads, whose locks are never released; or it shares the memory of one.
//! Nothing here allocates, formats or panics, and nothing is written to but what was made for this process.

use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd as _, RawFd};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{Instruction, OwnMount, Step};

/// The report of a failure: the index of the step and the error number.
pub(super) const REPORT_BYTES: usize = 8;

/// Where a process reports a failure to.
#[derive(Clone, Copy)]
pub(super) enum Tell<'a> {
    /// A pipe, which is closed when the program runs.
    Pipe(RawFd),
    /// The memory that it shares: see [`read_failure`].
    Memory(&'a AtomicU64),
}

/// Pointers to strings as `execve(2)` takes them, made before the process.
pub(super) struct Pointers {
    arguments: Vec<*const libc::c_char>,
    variables: Vec<*const libc::c_char>,
    /// Room to move descriptors out of the way.
    descriptors: Vec<RawFd>,
}

impl Pointers {
    pub(super) fn of(steps: &[Step<'_>]) -> Self {
        let list = |strings: &[CString]| {
            let pointers = strings.iter().map(|string| string.as_ptr());
            pointers.chain([null()]).collect()
        };
        let mut pointers = Self {
            arguments: vec![null()],
            variables: vec![null()],
            descriptors: Vec::new(),
        };
        for step in steps {
            match step {
                Step::Execute(_, arguments, variables) => {
                    pointers.arguments = list(arguments);
                    pointers.variables = list(variables);
                }
                Step::Descriptors(fds) => {
                    pointers.descriptors = fds.iter().map(|fd| fd.as_raw_fd()).collect();
                }
                _ => {}
            }
        }
        pointers
    }
}

/// How long a process waits for a byte.
const AWAIT_MILLIS: i32 = 30_000;

/// Decodes a report.
pub(super) fn read_report(report: [u8; REPORT_BYTES]) -> (usize, i32) {
    let [a, b, c, d, e, f, g, h] = report;
    let index = u32::from_le_bytes([a, b, c, d]);
    let errno = i32::from_le_bytes([e, f, g, h]);
    (usize::try_from(index).unwrap_or(usize::MAX), errno)
}

/// Reads what a process has written to the memory that it shares; `None` if no step failed.
pub(super) fn read_failure(failure: u64) -> Option<(usize, i32)> {
    let [a, b, c, d, e, f, g, h] = failure.to_le_bytes();
    // Counted from 1 there.
    let index = u32::from_le_bytes([a, b, c, d]).checked_sub(1)?;
    let errno = i32::from_le_bytes([e, f, g, h]);
    Some((usize::try_from(index).unwrap_or(usize::MAX), errno))
}

/// Runs the steps. If one fails, reports it through `tell` and ends.
pub(super) fn carry_out(steps: &[Step<'_>], pointers: &mut Pointers, mut tell: Tell<'_>) -> ! {
    reset_signals();
    let mut index: u32 = 0;
    for step in steps {
        if carry_out_one(step, pointers, &mut tell).is_none() {
            break;
        }
        index = index.wrapping_add(1);
    }
    let [e, f, g, h] = last_errno().to_le_bytes();
    match tell {
        Tell::Pipe(pipe) => {
            let [a, b, c, d] = index.to_le_bytes();
            let report: [u8; REPORT_BYTES] = [a, b, c, d, e, f, g, h];
            // SAFETY: the buffer is on the stack.
            unsafe { libc::write(pipe, report.as_ptr().cast(), report.len()) };
        }
        Tell::Memory(failure) => {
            let [a, b, c, d] = index.wrapping_add(1).to_le_bytes();
            failure.store(u64::from_le_bytes([a, b, c, d, e, f, g, h]), Relaxed);
        }
    }
    // SAFETY: takes no pointers, and runs nothing of the parent's.
    unsafe { libc::_exit(127) }
}

/// Runs steps that do not replace the process's program or descriptors.
pub(super) fn take(steps: &[Step<'_>]) -> std::io::Result<()> {
    let mut pointers = Pointers::of(&[]);
    for step in steps {
        let taken = carry_out_one(step, &mut pointers, &mut Tell::Pipe(-1));
        taken.ok_or_else(std::io::Error::last_os_error)?;
    }
    Ok(())
}

/// The number of the last error, without the type that may allocate.
fn last_errno() -> i32 {
    nix::errno::Errno::last_raw()
}

/// What a parent may ignore, and its programs would ignore with it: shells start programs in the background
/// without Ctrl-C, `nohup` without the end of the terminal, and Rust without broken pipes.
const OFTEN_IGNORED: &[libc::c_int] = &[
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGPIPE,
    libc::SIGTERM,
    libc::SIGCHLD,
    libc::SIGTSTP,
    libc::SIGTTIN,
    libc::SIGTTOU,
    libc::SIGUSR1,
    libc::SIGUSR2,
];

/// Has signals arrive as a program expects them, whatever the parent blocks or ignores.
pub(crate) fn reset_signals() {
    // SAFETY: the set is on the stack, and zeros are a set.
    unsafe {
        let mut none = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, null_mut());
        for signal in OFTEN_IGNORED {
            libc::signal(*signal, libc::SIG_DFL);
        }
    }
}

/// Returns nothing if the call failed; errno says why.
fn done<T: Into<i64>>(result: T) -> Option<()> {
    (result.into() >= 0).then_some(())
}

fn carry_out_one(step: &Step<'_>, pointers: &mut Pointers, tell: &mut Tell<'_>) -> Option<()> {
    match step {
        Step::JoinCgroup(procs) => {
            // SAFETY: writes a constant; `0` is who writes.
            done(unsafe { libc::write(procs.as_raw_fd(), c"0".as_ptr().cast(), 1) } as i64)
        }
        Step::AwaitByte(pipe) => await_byte(pipe.as_raw_fd()),
        Step::Enter(namespace, kind) => {
            // SAFETY: takes no pointers.
            done(unsafe { libc::setns(namespace.as_raw_fd(), *kind) })
        }
        Step::Attach(mount, at) => attach(mount.as_raw_fd(), at),
        Step::Mount(mount) => make_mount(mount),
        Step::HostName(name) => {
            // SAFETY: the name is as long as is said.
            done(unsafe { libc::sethostname(name.as_ptr(), name.count_bytes()) })
        }
        // SAFETY: takes nothing.
        Step::NewSession => done(unsafe { libc::setsid() }),
        // SAFETY: the path ends with a NUL.
        Step::ChangeDir(path) => done(unsafe { libc::chdir(path.as_ptr()) }),
        Step::Limit(resource, value) => {
            let resource = *resource as libc::c_int; // C libraries differ in its type, the kernel's call does not
            let limit = libc::rlimit64 {
                rlim_cur: *value,
                rlim_max: *value,
            };
            // SAFETY: the limit is on the stack and only read.
            done(unsafe { libc::syscall(libc::SYS_prlimit64, 0, resource, &raw const limit, 0) })
        }
        Step::EmptyBoundingSet => empty_bounding_set(),
        Step::Become { uid, gid } => become_user(*uid, *gid),
        Step::ClearCapabilities => clear_capabilities(),
        Step::NoNewPrivileges => no_new_privileges(),
        Step::Restrict(ruleset) => {
            let fd = ruleset.as_raw_fd();
            // SAFETY: takes no pointers.
            done(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, fd, 0) })
        }
        Step::Filter(program) => filter(program),
        Step::Descriptors(_) => place(&mut pointers.descriptors, tell),
        Step::Execute(path, _, _) => {
            let (arguments, variables) = (pointers.arguments.as_ptr(), pointers.variables.as_ptr());
            // SAFETY: path and strings end with NULs, the lists with NULL; all were made before.
            done(unsafe { libc::execve(path.as_ptr(), arguments, variables) })
        }
    }
}

fn no_new_privileges() -> Option<()> {
    // SAFETY: takes no pointers.
    done(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })
}

fn await_byte(pipe: RawFd) -> Option<()> {
    let mut byte = 0_u8;
    let mut poll = libc::pollfd {
        fd: pipe,
        events: libc::POLLIN,
        revents: 0,
    };
    loop {
        // SAFETY: one entry. This process has a copy of the pipe's other end, too, so who was to
        // write is not missed if it is gone, but by the time.
        match unsafe { libc::poll(&raw mut poll, 1, AWAIT_MILLIS) } {
            1 => {}
            0 => {
                nix::errno::Errno::ETIMEDOUT.set();
                return None;
            }
            _ if last_errno() == libc::EINTR => continue,
            _ => return None,
        }
        // SAFETY: room for the one byte.
        match unsafe { libc::read(pipe, (&raw mut byte).cast(), 1) } {
            1 => return Some(()),
            0 => {
                nix::errno::Errno::EPIPE.set();
                return None;
            }
            _ if last_errno() == libc::EINTR => {}
            _ => return None,
        }
    }
}

fn attach(mount: RawFd, at: &CStr) -> Option<()> {
    let flags = libc::MOVE_MOUNT_F_EMPTY_PATH;
    // SAFETY: both paths end with NULs.
    done(unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            mount,
            c"".as_ptr(),
            libc::AT_FDCWD,
            at.as_ptr(),
            flags,
        )
    })
}

/// One call, where the newer ones take seven.
fn make_mount(mount: &OwnMount<'_>) -> Option<()> {
    let kind = mount.fs_type.as_ptr();
    // The same bits as those of mount_setattr(2).
    let flags = mount.forbids.bits();
    let options = mount.options.as_ptr().cast();
    // SAFETY: all strings end with NULs, and are only read.
    done(unsafe { libc::mount(kind, mount.at.as_ptr(), kind, flags, options) })
}

fn empty_bounding_set() -> Option<()> {
    // The kernel refuses the first number that it has no capability for.
    for capability in 0..64 {
        // SAFETY: takes no pointers.
        if unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) } < 0 {
            return (last_errno() == libc::EINVAL).then_some(());
        }
    }
    Some(())
}

/// By system calls: libc's functions of these names would have other threads do the same.
fn become_user(uid: u32, gid: u32) -> Option<()> {
    // SAFETY: the list of groups is empty; the others take no pointers.
    unsafe {
        done(libc::syscall(libc::SYS_setgroups, 0, null::<u32>()))?;
        done(libc::syscall(libc::SYS_setresgid, gid, gid, gid))?;
        done(libc::syscall(libc::SYS_setresuid, uid, uid, uid))
    }
}

fn clear_capabilities() -> Option<()> {
    /// `_LINUX_CAPABILITY_VERSION_3`, and the header and data of `capset(2)`.
    const VERSION: u32 = 0x2008_0522;
    let header = [VERSION, 0];
    let data = [0_u32; 6];
    // SAFETY: both are as long as this version says, and only read.
    unsafe {
        let ambient = libc::PR_CAP_AMBIENT_CLEAR_ALL;
        done(libc::prctl(libc::PR_CAP_AMBIENT, ambient, 0, 0, 0))?;
        done(libc::syscall(
            libc::SYS_capset,
            header.as_ptr(),
            data.as_ptr(),
        ))
    }
}

fn filter(program: &[Instruction]) -> Option<()> {
    let program = libc::sock_fprog {
        len: u16::try_from(program.len()).ok()?,
        filter: program.as_ptr().cast::<libc::sock_filter>().cast_mut(),
    };
    let mode = libc::SECCOMP_SET_MODE_FILTER;
    // SAFETY: an `Instruction` is laid out as a `sock_filter`, there are as many as is said, and
    // the kernel copies them.
    done(unsafe { libc::syscall(libc::SYS_seccomp, mode, 0, &raw const program) })
}

/// Puts descriptors to their places, the pipe for failures behind them, and closes all others.
fn place(descriptors: &mut [RawFd], tell: &mut Tell<'_>) -> Option<()> {
    let end = RawFd::try_from(descriptors.len()).ok()?;
    let pipe = match tell {
        Tell::Pipe(pipe) => Some(pipe),
        Tell::Memory(_) => None,
    };
    // First everything away from where others will be put. The new numbers are beyond `end`.
    for fd in descriptors.iter_mut().chain(pipe) {
        if *fd <= end {
            // SAFETY: makes another descriptor for an open one.
            let moved = unsafe { libc::fcntl(*fd, libc::F_DUPFD_CLOEXEC, end.wrapping_add(1)) };
            done(moved)?;
            *fd = moved;
        }
    }
    for (number, fd) in (0..end).zip(&*descriptors) {
        // SAFETY: what was open at `number` was a copy of the parent's.
        done(unsafe { libc::dup2(*fd, number) })?;
    }
    let mut rest = end;
    if let Tell::Pipe(pipe) = tell {
        // SAFETY: as above.
        done(unsafe { libc::dup3(*pipe, end, libc::O_CLOEXEC) })?;
        *pipe = end;
        rest = end.wrapping_add(1);
    }
    // SAFETY: takes no pointers; what is closed is this process's copy.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, rest.cast_unsigned(), u32::MAX, 0) };
    done(closed)
}
