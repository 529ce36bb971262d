//! Descriptors as entries of a table: replacing one, closing many, and a table of one thread alone.

#![expect(
    unsafe_code,
    reason = "nix replaces only descriptors that the caller owns"
)]

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};

use nix::sched::{CloneFlags, unshare};
use nix::sys::resource::{Resource, getrlimit};

/// Makes `place` refer to the file of `file`, from now on: `dup3(2)`. The number of `place` stays,
/// and so do all uses of it by its owner. It is closed on exec.
///
/// This exchanges a descriptor that another object owns privately, such as that of a
/// session. The former file of `place` is closed.
///
/// # Errors
/// As `dup3(2)`; `place` and `file` must not be the same descriptor.
pub fn replace(place: BorrowedFd<'_>, file: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: both descriptors are open for the length of this call. The owner of `place` goes on
    // to own an open descriptor of this number, and closes it once, as before.
    let result = unsafe { libc::dup3(file.as_raw_fd(), place.as_raw_fd(), libc::O_CLOEXEC) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Has all descriptors from `first` on be closed when a program is executed.
///
/// # Errors
/// As `close_range(2)`.
pub fn close_on_exec_from(first: u32) -> io::Result<()> {
    // SAFETY: no descriptor is closed by this call.
    unsafe { close_range(first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) }
}

/// Gives the calling thread a table of descriptors that it shares with no other thread. It has the standard streams and
/// `keep`, which is returned as it is there. A process that this thread starts has copies of these, however many
/// descriptors its process has.
///
/// From now on the numbers of the process's other descriptors mean nothing to this thread, or other files: it must not
/// use nor drop what owns one.
///
/// # Errors
/// If the kernel refuses, or `keep` is a standard stream; then the thread must end.
pub fn own_table(keep: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    const FIRST: RawFd = 3;
    let number = keep.as_raw_fd();
    if number < FIRST {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    unshare(CloneFlags::CLONE_FILES)?;
    let (first, kept) = (FIRST.cast_unsigned(), number.cast_unsigned());
    // SAFETY: the table is this thread's own by now: what others own is open in the table that they use.
    unsafe {
        if kept > first {
            close_range(first, kept.wrapping_sub(1), 0)?;
        }
        close_range(kept.wrapping_add(1), u32::MAX, 0)?;
        // It was copied open, and nobody owns the copy.
        Ok(OwnedFd::from_raw_fd(number))
    }
}

/// Has the table of descriptors be large enough for `count` of them, or for as many as the process may have. `any` is a
/// descriptor.
///
/// The kernel doubles a table that is full. Where several threads share it, all that open something wait meanwhile, until
/// no processor looks at the one before: milliseconds.
///
/// # Errors
/// As `fcntl(2)`, or if `count` is 0.
pub fn make_room(any: BorrowedFd<'_>, count: u32) -> io::Result<()> {
    let (limit, _) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let most = limit.min(count.into());
    let last = most
        .checked_sub(1)
        .and_then(|last| RawFd::try_from(last).ok());
    let last = last.ok_or(io::ErrorKind::InvalidInput)?;
    // SAFETY: it takes no pointers, and closes nothing.
    let copy = unsafe { libc::fcntl(any.as_raw_fd(), libc::F_DUPFD_CLOEXEC, last) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // The table stays as large when it is closed.
    // SAFETY: it was just made, and nobody else owns it.
    drop(unsafe { OwnedFd::from_raw_fd(copy) });
    Ok(())
}

/// # Safety
/// As for closing each of the descriptors, unless `flags` say otherwise.
unsafe fn close_range(first: u32, last: u32, flags: u32) -> io::Result<()> {
    // SAFETY: takes no pointers; the rest is the caller's to see to.
    match unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read as _, Seek as _, Write as _};
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn a_descriptor_leads_elsewhere_and_keeps_its_number() {
        let mut place = File::open("/dev/null").unwrap();
        let number = place.as_raw_fd();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"content").unwrap();
        replace(place.as_fd(), file.as_fd()).unwrap();
        place.rewind().unwrap();
        let mut text = String::new();
        place.read_to_string(&mut text).unwrap();
        assert_eq!((text.as_str(), place.as_raw_fd()), ("content", number));
    }

    #[test]
    fn a_thread_has_its_own_table_with_what_it_keeps_alone() {
        let (mut read, write) = io::pipe().unwrap();
        let other = File::open("/dev/null").unwrap();
        let keep = write.as_fd().try_clone_to_owned().unwrap();
        let numbers: Vec<String> = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let mut kept = File::from(own_table(keep.as_fd()).unwrap());
                kept.write_all(b"kept").unwrap();
                let open = std::fs::read_dir("/proc/thread-self/fd").unwrap();
                open.map(|entry| entry.unwrap().file_name().into_string().unwrap())
                    .collect()
            });
            thread.join().unwrap()
        });
        // Its own, the directory that it read, and the standard streams.
        assert!(numbers.len() <= 5, "{numbers:?}");
        assert!(numbers.contains(&keep.as_raw_fd().to_string()));
        drop((keep, write));
        // Its copy was closed, and those of others were not.
        let mut said = String::new();
        read.read_to_string(&mut said).unwrap();
        assert_eq!(said, "kept");
        other.metadata().unwrap();
        assert!(own_table(io::stdin().as_fd()).is_err());
    }

    #[test]
    fn a_descriptor_cannot_replace_itself() {
        let place = File::open("/dev/null").unwrap();
        let error = replace(place.as_fd(), place.as_fd()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
