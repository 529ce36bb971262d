//! Forks of this process that continue with a function of ours: `clone3(2)` or `fork(2)` without a program.
//!
//! A copy has one thread, whatever its parent had, and locks that other threads held stay locked for
//! ever in it. So only a process without other threads may be copied this way: then the copy may do
//! whatever its parent may.

#![expect(unsafe_code, reason = "neither std nor nix has a safe fork")]

use std::io;

use crate::child::{Birth, Started, clone_process, reset_signals};

/// Makes a process in the namespaces and the control group of `birth` that runs `child` and ends with
/// the number that it returns. It has copies of all descriptors, and signals arrive as a
/// program expects them. If `child` panics, it ends with 101.
///
/// # Errors
/// If this process has more than one thread, or the kernel refuses.
pub fn fork(birth: Birth<'_>, child: impl FnOnce() -> u8) -> io::Result<Started> {
    refuse_threads()?;
    clone_process(birth, || {
        reset_signals();
        end_with(child)
    })
}

/// Makes a process that goes on with `child` as this one would, and ends with the number that it returns: it handles, ignores and
/// blocks the same signals, and the C library has taken note of it, so that it may start threads and serve for as long as it
/// likes. It has copies of all descriptors. Returns its process id, which is its own until it is waited for. If `child` panics,
/// it ends with 101.
///
/// # Errors
/// If this process has more than one thread, or the kernel refuses.
pub fn divide(child: impl FnOnce() -> u8) -> io::Result<u32> {
    refuse_threads()?;
    // SAFETY: there is one thread, this one, so the copy is whole: no other one is missing in it, or holds a lock.
    match unsafe { libc::fork() } {
        0 => end_with(child),
        pid if pid < 0 => Err(io::Error::last_os_error()),
        pid => u32::try_from(pid).map_err(io::Error::other),
    }
}

fn refuse_threads() -> io::Result<()> {
    let threads = std::fs::read_dir("/proc/self/task")?.take(2).count();
    if threads != 1 {
        let problem = "a process with threads cannot be copied";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
    }
    Ok(())
}

/// Runs `child`, and ends this process.
fn end_with(child: impl FnOnce() -> u8) -> ! {
    let run = std::panic::AssertUnwindSafe(child);
    let code = std::panic::catch_unwind(run).unwrap_or(101);
    // SAFETY: takes no pointers, and runs nothing that the parent has registered for its own end.
    unsafe { libc::_exit(code.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_threads_is_refused() {
        // The harness has its own thread beside that of the test.
        let refused = [
            fork(Birth::default(), || 0).map(drop),
            divide(|| 0).map(drop),
        ];
        for refused in refused {
            assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
    }
}
