//! Handles of files, by which a file is opened without a name: what overlays and NFS servers keep.

#![expect(
    unsafe_code,
    reason = "no safe wrapper that we depend on has handles of files"
)]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Most bytes in a handle (Linux's MAX_HANDLE_SZ).
const LIMIT: usize = 128;

/// `struct file_handle`, with room for any.
#[repr(C)]
#[derive(Clone, Copy)]
struct Raw {
    len: u32,
    kind: i32,
    bytes: [u8; LIMIT],
}

/// The handle of a file. It means something to the file system that gave it, and to no other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handle {
    kind: i32,
    bytes: Vec<u8>,
}

impl Handle {
    /// Returns the handle of a file; a symbolic link is not followed.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the file system has none that could be opened, or whatever else
    /// `name_to_handle_at(2)` gives.
    pub fn of(path: &Path) -> io::Result<Self> {
        let path = CString::new(path.as_os_str().as_bytes())?;
        let mut raw = Raw {
            len: u32::try_from(LIMIT).unwrap_or(u32::MAX),
            kind: 0,
            bytes: [0; LIMIT],
        };
        let mut mount_id: libc::c_int = 0;
        // SAFETY: `path` ends in a NUL; `raw` is laid out like a `struct file_handle` with room
        // for as many bytes as its length says, and the kernel writes to nothing but that and
        // `mount_id`. All three live through the call.
        let result = unsafe {
            libc::syscall(
                libc::SYS_name_to_handle_at,
                libc::AT_FDCWD,
                path.as_ptr(),
                &raw mut raw,
                &raw mut mount_id,
                0,
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        let len = usize::try_from(raw.len).unwrap_or(LIMIT).min(LIMIT);
        Ok(Self {
            kind: raw.kind,
            bytes: raw.bytes[..len].to_vec(),
        })
    }

    /// Opens the file to be read, on the file system on which `mount` is open. Needs the capability
    /// to pass by permissions.
    ///
    /// # Errors
    /// `ESTALE` if the handle is that of no file any more, or whatever else `open_by_handle_at(2)`
    /// gives.
    pub fn open(&self, mount: impl AsFd) -> io::Result<OwnedFd> {
        let mut raw = Raw {
            len: u32::try_from(self.bytes.len()).unwrap_or(u32::MAX),
            kind: self.kind,
            bytes: [0; LIMIT],
        };
        raw.bytes[..self.bytes.len()].copy_from_slice(&self.bytes);
        // SAFETY: `raw` is laid out like a `struct file_handle`, of which the kernel reads as many
        // bytes as the length says; `Handle::of` made it no longer than `LIMIT`. It lives through
        // the call, and the descriptor is borrowed and open.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_open_by_handle_at,
                mount.as_fd().as_raw_fd(),
                &raw mut raw,
                libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK,
            )
        };
        match i32::try_from(fd) {
            // SAFETY: the kernel just returned this descriptor, so nobody else owns it.
            Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
