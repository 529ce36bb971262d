//! A process that is started with a list of steps: `clone3(2)`, then the steps, then a
//! program.
//!
//! Actions between the start of a process and its program, such as entering a namespace
//! or dropping rights, run in a copy of a process that may have threads: no memory may be
//! allocated there and no lock taken. So the steps are data, prepared before, and only system calls are
//! made afterwards. A step that fails ends the new process, and [`Steps::start`] returns which it was.
//!
//! A process that waits for this one on its way is a copy of it. All others share its memory instead: see
//! [`Steps::start_sharing`].

#![expect(
    unsafe_code,
    reason = "neither std nor nix has clone3, nor code that is safe behind it"
)]

mod sharing;
mod steps;

pub use sharing::OnItsWay;
pub(crate) use steps::reset_signals;

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::Resource;

use crate::mount::Forbids;
use crate::pidfd::PidFd;

/// One instruction of a filter of system calls: a `struct sock_filter`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Instruction {
    /// Its operation code.
    pub code: u16,
    /// How many instructions are skipped if its condition holds.
    pub jump_true: u8,
    /// How many are skipped if it does not.
    pub jump_false: u8,
    /// Its operand.
    pub operand: u32,
}

/// A file system that the new process mounts for itself.
#[derive(Clone, Debug)]
pub struct OwnMount<'a> {
    /// Its type, such as `tmpfs`.
    pub fs_type: &'a CStr,
    /// Its parameters, as `mount(8)` has them behind `-o`.
    pub options: &'a CStr,
    /// What it forbids.
    pub forbids: Forbids,
    /// The directory that it covers.
    pub at: &'a CStr,
}

/// A step of a new process before it executes its program.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Step<'a> {
    /// Moves itself into the control group whose `cgroup.procs` is open for writing.
    JoinCgroup(BorrowedFd<'a>),
    /// Waits for a byte; the end of the pipe without one is an error.
    AwaitByte(BorrowedFd<'a>),
    /// Enters a namespace, or with the descriptor of a process the namespaces named by `CLONE_*`.
    Enter(BorrowedFd<'a>, i32),
    /// Puts a detached mount over a directory.
    Attach(BorrowedFd<'a>, &'a CStr),
    /// Mounts a file system.
    Mount(OwnMount<'a>),
    /// Sets the host name of its UTS namespace.
    HostName(&'a CStr),
    /// Starts a session of its own.
    NewSession,
    /// Changes its directory.
    ChangeDir(&'a CStr),
    /// Bounds a resource softly and firmly.
    Limit(Resource, u64),
    /// Removes all capabilities from the bounding set: no program restores one.
    EmptyBoundingSet,
    /// Leaves all groups and becomes a user with one group. A user that is not root has no
    /// capabilities afterwards.
    Become {
        /// The user.
        uid: u32,
        /// The group.
        gid: u32,
    },
    /// Clears all of its sets of capabilities.
    ClearCapabilities,
    /// Gains no privileges from a program that it executes.
    NoNewPrivileges,
    /// Restricts itself by a Landlock ruleset.
    Restrict(BorrowedFd<'a>),
    /// Filters its system calls.
    Filter(&'a [Instruction]),
    /// Makes these descriptors its 0, 1, 2 and so on, and closes all others. Later steps cannot
    /// use them.
    Descriptors(&'a [BorrowedFd<'a>]),
    /// Executes a program: a path, arguments and variables. This comes last.
    Execute(&'a CStr, &'a [CString], &'a [CString]),
}

/// Where a process is born.
#[derive(Clone, Copy, Debug, Default)]
pub struct Birth<'a> {
    /// New namespaces, as `CLONE_NEW*`.
    pub namespaces: u64,
    /// The directory of the control group of version 2 that it is born in.
    pub cgroup: Option<BorrowedFd<'a>>,
}

/// A process that runs its program.
#[derive(Debug)]
pub struct Started {
    /// Its process id.
    pub pid: u32,
    /// Its descriptor.
    pub process: PidFd,
}

/// Why there is no new process.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// It could not be born, or not be watched.
    #[error("a process cannot be made")]
    Birth(#[source] io::Error),
    /// One of its steps failed.
    #[error("step {index} of a new process failed")]
    Step {
        /// Its index, from 0.
        index: usize,
        /// The cause.
        source: io::Error,
    },
    /// It did not come to its program in time, and was killed.
    #[error("a new process did not reach its program within {0:?}")]
    Late(Duration),
}

/// What a new process will do.
#[derive(Clone, Copy, Debug)]
pub struct Steps<'a>(pub &'a [Step<'a>]);

impl Steps<'_> {
    /// Starts a process, and returns when it executes its program. `born` is called with its process id
    /// at once, and may do what the process waits for.
    ///
    /// # Errors
    /// If it cannot be started, or one of its steps fails, or takes longer than `patience`: then no
    /// process is left.
    pub fn start(
        &self,
        birth: Birth<'_>,
        patience: Duration,
        born: impl FnOnce(u32) -> io::Result<()>,
    ) -> Result<Started, StartError> {
        let (told, tell) = Told::pipe().map_err(birth_error)?;
        let started = self.clone_to(birth, tell.as_fd()).map_err(birth_error)?;
        drop(tell);
        born(started.pid)
            .map_err(birth_error)
            .inspect_err(|_| end(&started.process))?;
        told.arrived(&started.process, patience)?;
        Ok(started)
    }

    /// Starts a process and returns its process id at once; it tells by the other end of `tell` when it executes
    /// its program: see [`Told`]. It is a child that nobody has reaped, so the id is its own.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn begin(&self, birth: Birth<'_>, tell: BorrowedFd<'_>) -> Result<u32, StartError> {
        let started = self.clone_to(birth, tell).map_err(birth_error)?;
        Ok(started.pid)
    }

    fn clone_to(&self, birth: Birth<'_>, tell: BorrowedFd<'_>) -> io::Result<Started> {
        let mut pointers = steps::Pointers::of(self.0);
        clone_process(birth, || {
            steps::carry_out(self.0, &mut pointers, steps::Tell::Pipe(tell.as_raw_fd()))
        })
    }
}

/// The end of a pipe by which a new process tells that it executes its program, or which step has failed.
#[derive(Debug)]
pub struct Told(File);

impl Told {
    /// Makes the pipe. The other end is for [`Steps::begin`], and must not stay open here.
    ///
    /// # Errors
    /// As `pipe2(2)`.
    pub fn pipe() -> io::Result<(Self, OwnedFd)> {
        let (read, tell) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
        Ok((Self(File::from(read)), tell))
    }

    /// Waits until the process executes its program.
    ///
    /// # Errors
    /// If one of its steps fails, or takes longer than `patience`: then the process is killed and reaped.
    pub fn arrived(self, process: &PidFd, patience: Duration) -> Result<(), StartError> {
        told(self.0, patience).inspect_err(|_| end(process))
    }
}

/// Runs steps on the calling thread. Rights that it drops are missing in its children, too.
///
/// # Errors
/// If one fails; those before it were done. Steps that replace its descriptors or its program are
/// refused.
pub fn take_own_steps(list: &[Step<'_>]) -> io::Result<()> {
    let is_own = |step: &Step<'_>| !matches!(step, Step::Descriptors(_) | Step::Execute(..));
    if !list.iter().all(is_own) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    steps::take(list)
}

fn birth_error(error: io::Error) -> StartError {
    StartError::Birth(error)
}

/// Waits for the end of the pipe, which is the program's start, or for a failure.
fn told(mut pipe: File, patience: Duration) -> Result<(), StartError> {
    let timeout = PollTimeout::try_from(patience).unwrap_or(PollTimeout::MAX);
    let mut fds = [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)];
    loop {
        match poll(&mut fds, timeout) {
            Ok(0) => return Err(StartError::Late(patience)),
            Ok(_) => break,
            Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => return Err(birth_error(errno.into())),
        }
    }
    let mut report = [0; steps::REPORT_BYTES];
    match pipe.read(&mut report).map_err(birth_error)? {
        0 => Ok(()),
        _ => {
            let (index, errno) = steps::read_report(report);
            Err(StartError::Step {
                index,
                source: io::Error::from_raw_os_error(errno),
            })
        }
    }
}

/// Kills a process that did not come to its program, and reaps it.
fn end(process: &PidFd) {
    use nix::sys::wait::{Id, WaitPidFlag, waitid};
    let _gone = process.signal(nix::sys::signal::Signal::SIGKILL);
    let _reaped = waitid(Id::PIDFd(process.as_fd()), WaitPidFlag::WEXITED);
}

/// `CLONE_CLEAR_SIGHAND` and `CLONE_INTO_CGROUP` of linux/sched.h.
const CLEAR_SIGNAL_HANDLERS: u64 = 0x1_0000_0000;
const INTO_CGROUP: u64 = 0x2_0000_0000;

/// Makes a process that runs `child`, which makes system calls only.
pub(crate) fn clone_process(birth: Birth<'_>, child: impl FnOnce()) -> io::Result<Started> {
    let mut pidfd: RawFd = -1;
    // SAFETY: a `clone_args` of zeros asks for nothing.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags =
        birth.namespaces | libc::CLONE_PIDFD.cast_unsigned() as u64 | CLEAR_SIGNAL_HANDLERS;
    args.pidfd = (&raw mut pidfd).addr() as u64;
    args.exit_signal = libc::SIGCHLD.cast_unsigned().into();
    if let Some(cgroup) = birth.cgroup {
        args.flags |= INTO_CGROUP;
        args.cgroup = u64::try_from(cgroup.as_raw_fd()).map_err(io::Error::other)?;
    }
    // SAFETY: the arguments are a whole structure of the size given. No memory is shared and no
    // stack named, so the child goes on in a copy of this one. It runs `child`, which only makes
    // system calls on data that was made before, or is of a process with one thread.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw mut args, size_of_val(&args)) };
    match pid {
        0 => {
            child();
            // SAFETY: takes no pointers, and runs nothing of the parent's.
            unsafe { libc::_exit(127) }
        }
        pid if pid < 0 => Err(io::Error::last_os_error()),
        pid => Ok(Started {
            pid: u32::try_from(pid).map_err(io::Error::other)?,
            // SAFETY: the kernel has opened the descriptor, and nobody else owns it.
            process: PidFd::from(unsafe { OwnedFd::from_raw_fd(pidfd) }),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};

    const PATIENCE: Duration = Duration::from_secs(60);

    fn code(started: &Started) -> i32 {
        match waitid(Id::PIDFd(started.process.as_fd()), WaitPidFlag::WEXITED).unwrap() {
            WaitStatus::Exited(_, code) => code,
            other => panic!("{other:?}"),
        }
    }

    fn shell(script: &CStr, descriptors: &[BorrowedFd<'_>]) -> Result<Started, StartError> {
        let arguments = [c"sh", c"-c", script].map(CStr::to_owned);
        let variables = [c"KEPT=yes".to_owned()];
        let steps = [
            Step::NewSession,
            Step::Limit(Resource::RLIMIT_CORE, 0),
            Step::NoNewPrivileges,
            Step::ChangeDir(c"/"),
            Step::Descriptors(descriptors),
            Step::Execute(c"/bin/sh", &arguments, &variables),
        ];
        Steps(&steps).start(Birth::default(), PATIENCE, |_| Ok(()))
    }

    #[test]
    fn steps_are_taken_in_order_and_then_the_program_runs() {
        let null = File::open("/dev/null").unwrap();
        let (mut read, write) = io::pipe().unwrap();
        let given = [null.as_fd(), write.as_fd(), write.as_fd()];
        let script = c"test $KEPT = yes && grep -q 'NoNewPrivs:.1' /proc/$$/status && pwd || exit 3
            for fd in 3 4 5 6 7 8 9; do test -e /proc/$$/fd/$fd && exit $fd; done; exit 0";
        let started = shell(script, &given).unwrap();
        drop(write);
        assert_eq!(code(&started), 0);
        let mut said = String::new();
        read.read_to_string(&mut said).unwrap();
        assert_eq!(said, "/\n");
    }

    #[test]
    fn descriptors_come_to_their_places_from_any_order() {
        let files: Vec<File> = (0..40).map(|_| File::open("/dev/null").unwrap()).collect();
        let (mut read, write) = io::pipe().unwrap();
        let mut given: Vec<_> = files.iter().rev().map(AsFd::as_fd).collect();
        given[1] = write.as_fd();
        let script = c"test -e /proc/$$/fd/39 && ! test -e /proc/$$/fd/41 && echo $$";
        let started = shell(script, &given).unwrap();
        drop(write);
        assert_eq!(code(&started), 0);
        let mut said = String::new();
        read.read_to_string(&mut said).unwrap();
        assert_eq!(said.trim(), started.pid.to_string());
    }

    #[test]
    fn a_process_that_was_begun_tells_when_it_arrives_or_why_not() {
        for (dir, failed) in [(c"/", None), (c"/nowhere", Some(0))] {
            let steps = [
                Step::ChangeDir(dir),
                Step::Execute(c"/bin/true", &[c"true".to_owned()], &[]),
            ];
            let (told, tell) = Told::pipe().unwrap();
            let pid = Steps(&steps).begin(Birth::default(), tell.as_fd()).unwrap();
            drop(tell);
            let process = PidFd::open(pid).unwrap();
            match (told.arrived(&process, PATIENCE), failed) {
                (Ok(()), None) => assert_eq!(code(&Started { pid, process }), 0),
                (Err(StartError::Step { index, .. }), Some(failed)) => {
                    assert_eq!(index, failed);
                    assert!(PidFd::open(pid).is_err());
                }
                (other, _) => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn a_step_that_fails_is_named_and_leaves_no_process() {
        let steps = [
            Step::NewSession,
            Step::ChangeDir(c"/nowhere/at/all"),
            Step::Execute(c"/bin/true", &[], &[]),
        ];
        let mut number = 0;
        let started = Steps(&steps).start(Birth::default(), PATIENCE, |pid| {
            number = pid;
            Ok(())
        });
        let Err(StartError::Step { index: 1, source }) = started else {
            panic!("{started:?}");
        };
        assert_eq!(source.raw_os_error(), Some(libc::ENOENT));
        assert!(PidFd::open(number).is_err());
    }

    #[test]
    fn a_process_that_waits_too_long_is_killed() {
        let (read, _write) = io::pipe().unwrap();
        let steps = [Step::AwaitByte(read.as_fd())];
        let mut number = 0;
        let started = Steps(&steps).start(Birth::default(), Duration::from_millis(10), |pid| {
            number = pid;
            Ok(())
        });
        assert!(matches!(started, Err(StartError::Late(_))), "{started:?}");
        assert!(PidFd::open(number).is_err());
    }
}
