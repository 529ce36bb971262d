//! The keys that a process inherits.

#![expect(unsafe_code, reason = "neither std nor nix has keyctl")]

use std::ffi::CStr;
use std::io;

/// Leaves the session's keys, which children inherit, for a new and empty keyring of this name.
///
/// # Errors
/// If the kernel refuses, or has no keys (`ENOSYS`).
pub fn join_new_session(name: &CStr) -> io::Result<()> {
    const JOIN_SESSION_KEYRING: libc::c_int = 1;
    // SAFETY: the name ends with a NUL, and the kernel copies it.
    let joined = unsafe { libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, name.as_ptr()) };
    match joined {
        serial if serial >= 0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
