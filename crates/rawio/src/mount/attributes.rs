//! What a mount is made to be after it was made.

#![expect(unsafe_code, reason = "neither std nor nix has these calls")]

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use super::{DetachedMount, Forbids, owned};

/// Which mounts a change is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// This mount only.
    One,
    /// This one and all that lie on it.
    All,
}

/// The propagation of a mount that was copied from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    /// None.
    Private,
    /// Mounts and unmounts below the original appear in it, and not the other way round.
    Slave,
}

/// When the access times of files are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessTimes {
    /// If they are older than the file or a day.
    Relative,
    /// Never.
    Never,
    /// Always.
    Strict,
}

impl DetachedMount {
    /// Returns a copy of the mount that `file` is open on, which may be a single file; with the mounts on
    /// it if `scope` includes them. Its propagation is that of the original.
    ///
    /// # Errors
    /// If `file` is in another mount namespace.
    pub fn copy_tree_of(file: BorrowedFd<'_>, scope: Scope) -> io::Result<Self> {
        let clone = libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC;
        let flags = clone | libc::AT_EMPTY_PATH.cast_unsigned() | recursive(scope);
        // SAFETY: the path is NUL-terminated and outlives the call.
        let fd =
            unsafe { libc::syscall(libc::SYS_open_tree, file.as_raw_fd(), c"".as_ptr(), flags) };
        // SAFETY: open_tree gives a new descriptor, which nobody else owns.
        unsafe { owned(fd) }.map(Self)
    }

    /// Changes the propagation of mounts.
    ///
    /// # Errors
    /// If the process lacks the right.
    pub fn propagate(&self, how: Propagation, scope: Scope) -> io::Result<()> {
        let propagation = match how {
            Propagation::Private => libc::MS_PRIVATE,
            Propagation::Slave => libc::MS_SLAVE,
        };
        self.change_attributes(0, 0, propagation, scope)
    }

    /// Sets some restrictions, and clears others, on this mount alone.
    ///
    /// # Errors
    /// If the process lacks the right.
    pub fn set(&self, forbids: Forbids, permits: Forbids) -> io::Result<()> {
        self.change_attributes(forbids.bits(), permits.bits(), 0, Scope::One)
    }

    /// Sets when access times are updated.
    ///
    /// # Errors
    /// If the process lacks the right.
    pub fn keep_access_times(&self, when: AccessTimes) -> io::Result<()> {
        let set = match when {
            AccessTimes::Relative => libc::MOUNT_ATTR_RELATIME,
            AccessTimes::Never => libc::MOUNT_ATTR_NOATIME,
            AccessTimes::Strict => libc::MOUNT_ATTR_STRICTATIME,
        };
        self.change_attributes(set, libc::MOUNT_ATTR__ATIME, 0, Scope::One)
    }

    fn change_attributes(&self, set: u64, clear: u64, how: u64, scope: Scope) -> io::Result<()> {
        let attr = libc::mount_attr {
            attr_set: set,
            attr_clr: clear,
            propagation: how,
            userns_fd: 0,
        };
        let flags = libc::AT_EMPTY_PATH.cast_unsigned() | recursive(scope);
        // SAFETY: the path is NUL-terminated, and the structure as long as is said and only read.
        let result = unsafe {
            libc::syscall(
                libc::SYS_mount_setattr,
                self.0.as_raw_fd(),
                c"".as_ptr(),
                flags,
                &raw const attr,
                size_of_val(&attr),
            )
        };
        match result {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

const fn recursive(scope: Scope) -> libc::c_uint {
    match scope {
        Scope::One => 0,
        Scope::All => libc::AT_RECURSIVE.cast_unsigned(),
    }
}
