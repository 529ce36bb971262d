//! Work that waits for everybody else's.

#![expect(unsafe_code, reason = "nix has no calls for priorities")]

use std::io;

/// Who: one thread, the one that asks if its number is 0 (`IOPRIO_WHO_PROCESS`).
const WHO_THREAD: libc::c_int = 1;
/// The class that is served when no other request is pending, in the upper bits.
const CLASS_IDLE: libc::c_int = 3 << 13;

/// Gives the calling thread's I/O idle priority, where the disk's scheduler supports
/// priorities.
///
/// # Errors
/// As `ioprio_set(2)`.
pub fn idle_io() -> io::Result<()> {
    // SAFETY: the call takes three numbers and no memory of ours.
    let result = unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_THREAD, 0, CLASS_IDLE) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Gives the calling thread the lowest of the usual priorities: where others want a processor, it has a hundredth of theirs.
///
/// # Errors
/// As `setpriority(2)`.
pub fn idle_processor() -> io::Result<()> {
    const LOWEST: libc::c_int = 19;
    // SAFETY: the call takes three numbers and no memory of ours.
    let result = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, LOWEST) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_becomes_idle_and_others_stay_as_they_were() {
        let of_this_thread = || {
            // SAFETY: the call takes two numbers and no memory of ours.
            unsafe { libc::syscall(libc::SYS_ioprio_get, WHO_THREAD, 0) }
        };
        let before = of_this_thread();
        let inner = std::thread::spawn(move || {
            idle_io().unwrap();
            of_this_thread()
        });
        assert_eq!(inner.join().unwrap() >> 13, 3);
        assert_eq!(of_this_thread(), before);
    }

    #[test]
    fn a_thread_gives_up_its_processor_and_others_do_not() {
        let of_this_thread = || {
            // SAFETY: the call takes two numbers and no memory of ours.
            unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
        };
        let before = of_this_thread();
        let inner = std::thread::spawn(move || {
            idle_processor().unwrap();
            of_this_thread()
        });
        assert_eq!(inner.join().unwrap(), 19);
        assert_eq!(of_this_thread(), before);
    }
}
