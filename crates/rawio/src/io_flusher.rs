//! Threads that the kernel waits for when it frees memory.

#![expect(unsafe_code, reason = "neither libc nor nix has PR_SET_IO_FLUSHER")]

use std::io;

const PR_SET_IO_FLUSHER: libc::c_int = 57;
const PR_GET_IO_FLUSHER: libc::c_int = 58;

/// Marks this thread, and all that it starts from now on, as ones by which memory is freed (Linux 5.6): what they
/// allocate waits for no pages to be written, since these may be written by them. Takes `CAP_SYS_RESOURCE`.
///
/// # Errors
/// If the kernel refuses.
pub fn mark() -> io::Result<()> {
    let (on, none): (libc::c_ulong, libc::c_ulong) = (1, 0);
    // SAFETY: the call takes no pointers.
    let result = unsafe { libc::prctl(PR_SET_IO_FLUSHER, on, none, none, none) };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns whether this thread is marked.
///
/// # Errors
/// If the kernel refuses.
pub fn is_marked() -> io::Result<bool> {
    let none: libc::c_ulong = 0;
    // SAFETY: the call takes no pointers.
    let result = unsafe { libc::prctl(PR_GET_IO_FLUSHER, none, none, none, none) };
    match result {
        0.. => Ok(result == 1),
        _ => Err(io::Error::last_os_error()),
    }
}
