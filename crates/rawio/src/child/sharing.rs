//! A process that shares the memory of who starts it until it executes its program: `clone3(2)` as `vfork(2)`.
//!
//! A copy of a process begins with a copy of its tables of pages, and both copies fault for each page that they write to
//! afterwards. Of a program that has a thousand sandboxes these take longer than all else of a start. Here nothing is copied: the
//! thread that starts the process waits in the kernel until the program runs, and the process runs the steps on a
//! stack of its own, in a part of the thread's.
//!
//! What keeps the memory whole: the steps make system calls on data that was made before, and allocate and lock nothing.
//! No handler of a signal runs in the process, since the kernel clears them. The kernel does not choose such a process
//! where a group's memory ends (`in_vfork` of mm/oom_kill.c), which would end all that share it. What it does take from the
//! whole program: as one of its processes becomes another user, the kernel leaves no core file of that memory, and lets no
//! other user look at it (`commit_creds` of kernel/cred.c).

use std::ffi::c_void;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

use super::steps::{Pointers, Tell, carry_out, read_failure};
use super::{Birth, CLEAR_SIGNAL_HANDLERS, INTO_CGROUP, StartError, Step, Steps, birth_error};

/// The stack of the new process. The steps take some 3 KiB of it in a build without optimization.
const STACK_BYTES: usize = 32 << 10;

#[repr(align(16))]
struct Stack(
    #[expect(dead_code, reason = "the new process uses it")] [MaybeUninit<u8>; STACK_BYTES],
);

/// A process that a thread is starting, for other threads: the one that starts it waits in the kernel.
#[derive(Debug, Default)]
pub struct OnItsWay {
    /// 0 before it is born, and once its program runs.
    pid: AtomicI32,
    /// Held by who uses the number, and by who gives it up: it is nobody else's meanwhile.
    known: Mutex<()>,
}

impl OnItsWay {
    /// Kills the process if it is on its way to its program: then [`Steps::start_sharing`] returns.
    pub fn kill(&self) {
        let _known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let pid = self.pid.load(Relaxed);
        if pid > 0 {
            let _gone = nix::sys::signal::kill(Pid::from_raw(pid), nix::sys::signal::SIGKILL);
        }
    }

    fn is_there(&self) {
        let _known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        self.pid.store(0, Relaxed);
    }
}

/// What the new process runs, in the memory of who waits for it.
struct Task<'a> {
    steps: &'a [Step<'a>],
    pointers: Pointers,
    failure: &'a AtomicU64,
}

impl Steps<'_> {
    /// Starts a process that shares this program's memory until it executes its program, and returns its process id
    /// then. The calling thread waits without a deadline: another one can end the process through `way`.
    ///
    /// It is a child that nobody has reaped, so the id is its own. One that was killed on its way is returned, too.
    ///
    /// # Errors
    /// If it cannot be started, or one of its steps fails: then no process is left.
    pub fn start_sharing(&self, birth: Birth<'_>, way: &OnItsWay) -> Result<u32, StartError> {
        let failure = AtomicU64::new(0);
        let mut task = Task {
            steps: self.0,
            pointers: Pointers::of(self.0),
            failure: &failure,
        };
        let born = clone_sharing(birth, way, &mut task);
        way.is_there();
        let pid = born.map_err(birth_error)?;
        match read_failure(failure.load(Relaxed)) {
            None => Ok(pid.cast_unsigned()),
            Some((index, errno)) => {
                let _reaped = waitid(Id::Pid(Pid::from_raw(pid)), WaitPidFlag::WEXITED);
                Err(StartError::Step {
                    index,
                    source: io::Error::from_raw_os_error(errno),
                })
            }
        }
    }
}

/// The new process: it never returns to what its starter has on its stack.
extern "C" fn run(task: *mut c_void) -> ! {
    // SAFETY: the task is the one of `clone_sharing`, whose thread waits for this process, and so it is used here only.
    let task = unsafe { &mut *task.cast::<Task<'_>>() };
    carry_out(task.steps, &mut task.pointers, Tell::Memory(task.failure))
}

/// Starts the process, and waits until it shares no memory with this one any more.
fn clone_sharing(birth: Birth<'_>, way: &OnItsWay, task: &mut Task<'_>) -> io::Result<i32> {
    let mut stack = MaybeUninit::<Stack>::uninit();
    // SAFETY: a `clone_args` of zeros asks for nothing.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    let sharing = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PARENT_SETTID;
    args.flags = birth.namespaces | u64::from(sharing.cast_unsigned()) | CLEAR_SIGNAL_HANDLERS;
    // The kernel writes it before the process runs.
    args.parent_tid = way.pid.as_ptr().addr() as u64;
    args.exit_signal = libc::SIGCHLD.cast_unsigned().into();
    args.stack = stack.as_mut_ptr().addr() as u64;
    args.stack_size = size_of::<Stack>() as u64;
    if let Some(cgroup) = birth.cgroup {
        args.flags |= INTO_CGROUP;
        args.cgroup = u64::try_from(cgroup.as_raw_fd()).map_err(io::Error::other)?;
    }
    let task: *mut Task<'_> = task;
    // SAFETY: the arguments name a stack and a number that outlive this call, which returns only when the new process
    // has left this memory. Until then `run` uses the task, and nothing else does.
    let result = unsafe { clone3_calling(&args, run, task.cast()) };
    match i32::try_from(result) {
        Ok(pid) if pid > 0 => Ok(pid),
        Ok(errno) => Err(io::Error::from_raw_os_error(errno.wrapping_neg())),
        Err(error) => Err(io::Error::other(error)),
    }
}

/// `clone3(2)` where the new process calls a function, on the stack that the arguments name. Returns the process id, or
/// the negative number of an error.
///
/// # Safety
/// The stack is the new process's alone, and what it shares with this one stays as the function needs it.
#[cfg(target_arch = "x86_64")]
unsafe fn clone3_calling(
    args: &libc::clone_args,
    run: extern "C" fn(*mut c_void) -> !,
    with: *mut c_void,
) -> i64 {
    let result: i64;
    // SAFETY: the kernel keeps all registers but those named. The new process has a stack that ends at a multiple of 16,
    // as the call of a function wants it, and comes to none of the instructions behind.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, {with}",
            "call {run}",
            "ud2",
            "2:",
            run = in(reg) run,
            with = in(reg) with,
            inlateout("rax") libc::SYS_clone3 => result,
            in("rdi") args,
            in("rsi") size_of::<libc::clone_args>(),
            out("rcx") _,
            out("r11") _,
        );
    }
    result
}

/// As the one for the other processor.
///
/// # Safety
/// The same.
#[cfg(target_arch = "aarch64")]
unsafe fn clone3_calling(
    args: &libc::clone_args,
    run: extern "C" fn(*mut c_void) -> !,
    with: *mut c_void,
) -> i64 {
    let result: i64;
    // SAFETY: as for the other processor.
    unsafe {
        std::arch::asm!(
            "svc #0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "mov x30, xzr",
            "mov x0, {with}",
            "blr {run}",
            "brk #1",
            "2:",
            run = in(reg) run,
            with = in(reg) with,
            in("x8") libc::SYS_clone3,
            inlateout("x0") args => result,
            in("x1") size_of::<libc::clone_args>(),
        );
    }
    result
}

#[cfg(test)]
mod tests {
    use std::ffi::{CStr, CString};
    use std::fs::File;
    use std::io::Read as _;
    use std::os::fd::AsFd as _;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use nix::sys::wait::WaitStatus;

    use super::*;

    fn status(pid: u32) -> WaitStatus {
        let pid = Pid::from_raw(pid.cast_signed());
        waitid(Id::Pid(pid), WaitPidFlag::WEXITED).unwrap()
    }

    fn strings<const N: usize>(all: [&CStr; N]) -> Vec<CString> {
        all.map(CStr::to_owned).to_vec()
    }

    #[test]
    fn the_steps_are_taken_and_then_the_program_runs() {
        let null = File::open("/dev/null").unwrap();
        let (mut read, write) = io::pipe().unwrap();
        let given = [null.as_fd(), write.as_fd(), write.as_fd()];
        let script = c"test -e /proc/$$/fd/3 && exit 3; kill -TERM $$; echo not reached";
        let arguments = strings([
            c"sh",
            c"-c",
            c"echo $KEPT $$; exec sh -c \"$1\"",
            c"sh",
            script,
        ]);
        let variables = strings([c"KEPT=yes"]);
        let steps = [
            Step::NewSession,
            Step::ChangeDir(c"/"),
            Step::Descriptors(&given),
            Step::Execute(c"/bin/sh", &arguments, &variables),
        ];
        let way = OnItsWay::default();
        let pid = Steps(&steps).start_sharing(Birth::default(), &way).unwrap();
        // It is there: nothing is to be ended any more.
        way.kill();
        drop(write);
        let ended = status(pid);
        let mut said = String::new();
        read.read_to_string(&mut said).unwrap();
        assert_eq!(said, format!("yes {pid}\n"));
        assert!(
            matches!(ended, WaitStatus::Signaled(_, nix::sys::signal::SIGTERM, _)),
            "{ended:?}"
        );
    }

    #[test]
    fn a_step_that_fails_is_named_and_leaves_no_process() {
        let arguments = strings([c"true"]);
        for (steps, failed) in [
            (
                [
                    Step::ChangeDir(c"/nowhere"),
                    Step::Execute(c"/bin/true", &arguments, &[]),
                ],
                0,
            ),
            (
                [
                    Step::ChangeDir(c"/"),
                    Step::Execute(c"/nowhere", &arguments, &[]),
                ],
                1,
            ),
        ] {
            let way = OnItsWay::default();
            let started = Steps(&steps).start_sharing(Birth::default(), &way);
            let Err(StartError::Step { index, source }) = started else {
                panic!("{started:?}");
            };
            assert_eq!((index, source.raw_os_error()), (failed, Some(libc::ENOENT)));
        }
        // No directory of a control group.
        let null = File::open("/dev/null").unwrap();
        let birth = Birth {
            cgroup: Some(null.as_fd()),
            ..Birth::default()
        };
        let steps = [Step::Execute(c"/bin/true", &arguments, &[])];
        let started = Steps(&steps).start_sharing(birth, &OnItsWay::default());
        assert!(matches!(started, Err(StartError::Birth(_))), "{started:?}");
    }

    #[test]
    fn a_process_that_takes_too_long_can_be_ended_by_another_thread() {
        let (read, _write) = io::pipe().unwrap();
        let way = Arc::new(OnItsWay::default());
        let theirs = Arc::clone(&way);
        let thread = std::thread::spawn(move || {
            let steps = [Step::AwaitByte(read.as_fd())];
            Steps(&steps).start_sharing(Birth::default(), &theirs)
        });
        let deadline = Instant::now() + Duration::from_secs(20);
        while !thread.is_finished() {
            assert!(Instant::now() < deadline, "it is still on its way");
            way.kill();
            std::thread::yield_now();
        }
        let pid = thread.join().unwrap().unwrap();
        let ended = status(pid);
        assert!(
            matches!(ended, WaitStatus::Signaled(_, nix::sys::signal::SIGKILL, _)),
            "{ended:?}"
        );
    }
}
