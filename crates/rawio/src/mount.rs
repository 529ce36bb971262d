//! The mount calls that work on descriptors (Linux 5.2): `fsopen(2)` and its family.
//!
//! A mount is made in three steps. A [`MountContext`] collects the parameters; [`MountContext::mount`]
//! returns a [`DetachedMount`], which no path leads to; [`attach`](DetachedMount::attach) attaches it
//! to a place. A detached mount ends when its descriptor is closed, so an error between
//! the steps leaves nothing behind.

#![expect(unsafe_code, reason = "neither std nor nix has these calls")]

mod attributes;

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

pub use attributes::{AccessTimes, Propagation, Scope};

/// What takes from the files of a mount the power to be more than files.
const UNPRIVILEGED: u64 = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;

/// The restrictions of a mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forbids(u64);

impl Forbids {
    /// No restriction.
    pub const NOTHING: Self = Self(0);
    /// No writing.
    pub const WRITING: Self = Self(libc::MOUNT_ATTR_RDONLY);
    /// Rights by set-user-id bits and file capabilities.
    pub const PRIVILEGES: Self = Self(libc::MOUNT_ATTR_NOSUID);
    /// No devices.
    pub const DEVICES: Self = Self(libc::MOUNT_ATTR_NODEV);
    /// No execution of programs.
    pub const PROGRAMS: Self = Self(libc::MOUNT_ATTR_NOEXEC);
    /// Symbolic links to be followed.
    pub const LINKS: Self = Self(libc::MOUNT_ATTR_NOSYMFOLLOW);
    /// No access times of directories.
    pub const DIRECTORY_TIMES: Self = Self(libc::MOUNT_ATTR_NODIRATIME);

    /// Returns the union of both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns what this forbids and `other` does not.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(crate) const fn bits(self) -> u64 {
        self.0
    }
}

/// The parameters of a file system that is about to be mounted.
#[derive(Debug)]
pub struct MountContext(OwnedFd);

impl MountContext {
    /// Opens a context for a type of file system, such as `fuse`.
    ///
    /// # Errors
    /// If the kernel does not know the type, or the process may not mount.
    pub fn open(fs_type: &CStr) -> io::Result<Self> {
        // SAFETY: the name is NUL-terminated and outlives the call.
        let fd = unsafe { libc::syscall(libc::SYS_fsopen, fs_type.as_ptr(), libc::FSOPEN_CLOEXEC) };
        // SAFETY: fsopen gives a new descriptor, which nobody else owns.
        unsafe { owned(fd) }.map(Self)
    }

    /// Sets a parameter that has a value.
    ///
    /// # Errors
    /// If the value has a NUL in it, or the file system refuses it; the message is the kernel's.
    pub fn set(&self, key: &CStr, value: &[u8]) -> io::Result<()> {
        let value = CString::new(value)?;
        self.configure(libc::FSCONFIG_SET_STRING, Some(key), Some(&value))
    }

    /// Sets a parameter that has no value.
    ///
    /// # Errors
    /// If the file system refuses it; the message is the kernel's.
    pub fn set_flag(&self, key: &CStr) -> io::Result<()> {
        self.configure(libc::FSCONFIG_SET_FLAG, Some(key), None)
    }

    /// Creates the file system, and a mount of it that no path leads to yet and through which
    /// nothing can be changed. Set-user-id bits count for nothing through it, nor do devices.
    ///
    /// # Errors
    /// If the file system refuses the parameters; the message is the kernel's.
    pub fn mount(self) -> io::Result<DetachedMount> {
        self.mount_with(libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOATIME | UNPRIVILEGED)
    }

    /// Creates the file system, and a mount of it that no path leads to yet and whose files can be written to. Set-user-id
    /// bits count for nothing through it, nor do devices, and reading changes no access times.
    ///
    /// # Errors
    /// If the file system refuses the parameters; the message is the kernel's.
    pub fn mount_unprivileged(self) -> io::Result<DetachedMount> {
        self.mount_with(libc::MOUNT_ATTR_NOATIME | UNPRIVILEGED)
    }

    /// Creates the file system, and a mount of it that no path leads to yet.
    ///
    /// # Errors
    /// If the file system refuses the parameters; the message is the kernel's.
    pub fn mount_writable(self) -> io::Result<DetachedMount> {
        self.mount_with(0)
    }

    /// Creates the file system, and a mount of it that no path leads to yet and that forbids this.
    ///
    /// # Errors
    /// If the file system refuses the parameters; the message is the kernel's.
    pub fn mount_forbidding(self, forbids: Forbids) -> io::Result<DetachedMount> {
        self.mount_with(forbids.0)
    }

    fn mount_with(self, attributes: u64) -> io::Result<DetachedMount> {
        self.configure(libc::FSCONFIG_CMD_CREATE, None, None)?;
        // SAFETY: the call takes no pointers.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_fsmount,
                self.0.as_raw_fd(),
                libc::FSMOUNT_CLOEXEC,
                attributes,
            )
        };
        // SAFETY: fsmount gives a new descriptor, which nobody else owns.
        unsafe { owned(fd) }
            .map(DetachedMount)
            .map_err(|error| self.explain(error))
    }

    fn configure(
        &self,
        command: libc::fsconfig_command,
        key: Option<&CStr>,
        value: Option<&CStr>,
    ) -> io::Result<()> {
        let pointer = |text: Option<&CStr>| text.map_or(std::ptr::null(), CStr::as_ptr);
        // SAFETY: key and value are NULL or NUL-terminated, outlive the call, and are only read.
        let result = unsafe {
            libc::syscall(
                libc::SYS_fsconfig,
                self.0.as_raw_fd(),
                command,
                pointer(key),
                pointer(value),
                0,
            )
        };
        if result < 0 {
            return Err(self.explain(io::Error::last_os_error()));
        }
        Ok(())
    }

    /// Adds to `error` what the kernel has to say: a context can be read for its messages, each
    /// of which starts with a letter for its severity and a space.
    fn explain(&self, error: io::Error) -> io::Error {
        let mut message = [0; 256]; // longer messages are cut by the kernel too
        let read = self
            .0
            .try_clone()
            .and_then(|fd| File::from(fd).read(&mut message));
        match read {
            Ok(len) if len > 2 => {
                let text = String::from_utf8_lossy(&message[2..len]);
                io::Error::new(error.kind(), format!("{error}: {}", text.trim_end()))
            }
            _ => error,
        }
    }
}

/// A mount that no path leads to. Dropping it unmounts it.
#[derive(Debug)]
pub struct DetachedMount(OwnedFd);

impl DetachedMount {
    /// Returns a new detached mount of the directory that `mount` is open on, without the mounts
    /// on it.
    ///
    /// The copy has private propagation: later mounts below the original
    /// do not appear in it.
    ///
    /// # Errors
    /// If `mount` is in another mount namespace, or is itself detached (Linux before 6.15).
    pub fn copy_of(mount: BorrowedFd<'_>) -> io::Result<Self> {
        let flags =
            libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC | libc::AT_EMPTY_PATH.cast_unsigned();
        // SAFETY: the path is NUL-terminated and outlives the call.
        let fd =
            unsafe { libc::syscall(libc::SYS_open_tree, mount.as_raw_fd(), c"".as_ptr(), flags) };
        // SAFETY: open_tree gives a new descriptor, which nobody else owns.
        let copy = Self(unsafe { owned(fd) }?);
        copy.make_private()?;
        Ok(copy)
    }

    /// Puts the mount over what `target` is open on, and returns the descriptor of its root.
    ///
    /// From then on closing the descriptor unmounts nothing; while it is open, an ordinary
    /// unmount finds the mount busy.
    ///
    /// # Errors
    /// If the target is not a directory of this mount namespace, or the process may not mount.
    pub fn attach(self, target: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        self.move_to(target, 0)
    }

    /// Attaches the mount below the topmost one at `target`, which is open on that mount's root: it
    /// becomes visible when the other is unmounted, and the place is mounted at all times.
    ///
    /// # Errors
    /// If nothing is mounted there, or the kernel does not support it (Linux before 6.5).
    pub fn attach_beneath(self, target: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        self.move_to(target, libc::MOVE_MOUNT_BENEATH)
    }

    fn move_to(self, target: BorrowedFd<'_>, how: libc::c_uint) -> io::Result<OwnedFd> {
        let flags = libc::MOVE_MOUNT_F_EMPTY_PATH | libc::MOVE_MOUNT_T_EMPTY_PATH | how;
        // SAFETY: both paths are NUL-terminated and outlive the call.
        let result = unsafe {
            libc::syscall(
                libc::SYS_move_mount,
                self.0.as_raw_fd(),
                c"".as_ptr(),
                target.as_raw_fd(),
                c"".as_ptr(),
                flags,
            )
        };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(self.0)
    }

    /// Has set-user-id bits, file capabilities and devices count through this mount.
    ///
    /// # Errors
    /// If the process may not.
    pub fn honour_privileges(&self) -> io::Result<()> {
        self.set_attributes(&libc::mount_attr {
            attr_set: 0,
            attr_clr: UNPRIVILEGED,
            propagation: 0,
            userns_fd: 0,
        })
    }

    /// Has the mount forbid this, from now on.
    ///
    /// # Errors
    /// If the process may not.
    pub fn forbid(&self, forbids: Forbids) -> io::Result<()> {
        self.set_attributes(&libc::mount_attr {
            attr_set: forbids.0,
            attr_clr: 0,
            propagation: 0,
            userns_fd: 0,
        })
    }

    fn make_private(&self) -> io::Result<()> {
        self.set_attributes(&libc::mount_attr {
            attr_set: 0,
            attr_clr: 0,
            propagation: libc::MS_PRIVATE,
            userns_fd: 0,
        })
    }

    fn set_attributes(&self, attr: &libc::mount_attr) -> io::Result<()> {
        // SAFETY: the path is NUL-terminated; `attr` is a whole structure of the size given, and
        // the call only reads it.
        let result = unsafe {
            libc::syscall(
                libc::SYS_mount_setattr,
                self.0.as_raw_fd(),
                c"".as_ptr(),
                libc::AT_EMPTY_PATH,
                std::ptr::from_ref(attr),
                size_of_val(attr),
            )
        };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

/// For receivers of the descriptor of a mount that another process made.
impl From<OwnedFd> for DetachedMount {
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

impl From<DetachedMount> for OwnedFd {
    fn from(mount: DetachedMount) -> Self {
        mount.0
    }
}

impl AsFd for DetachedMount {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Identifies a mount: its id and the device number of its file system. An id is
/// reused by a later mount, but not together with the device number as long as the file system
/// is mounted anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MountIds {
    /// The first number of its line in `/proc/self/mountinfo`.
    pub id: u64,
    /// The device number of the file system.
    pub major: u32,
    /// The device number of the file system.
    pub minor: u32,
}

/// Returns the mount through which `file` was opened. No request is sent to the file system, which may
/// not be served yet.
///
/// # Errors
/// If the kernel does not report it (Linux before 5.8).
pub fn mount_ids(file: BorrowedFd<'_>) -> io::Result<MountIds> {
    let mut status = MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: the path is NUL-terminated, and the call writes at most one `statx` to the pointer.
    let result = unsafe {
        libc::statx(
            file.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC,
            libc::STATX_MNT_ID,
            status.as_mut_ptr(),
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a `statx` is plain numbers, for which zeros are valid, and the kernel filled it.
    let status = unsafe { status.assume_init() };
    if status.stx_mask & libc::STATX_MNT_ID == 0 {
        return Err(io::ErrorKind::Unsupported.into());
    }
    Ok(MountIds {
        id: status.stx_mnt_id,
        major: status.stx_dev_major,
        minor: status.stx_dev_minor,
    })
}

/// Returns the id of the mount that `file` was opened through: the first number of its line in
/// `/proc/self/mountinfo`.
///
/// # Errors
/// If the kernel does not report it (Linux before 5.8).
pub fn mount_id(file: BorrowedFd<'_>) -> io::Result<u64> {
    mount_ids(file).map(|ids| ids.id)
}

/// Takes over the descriptor that a system call returned, or its error.
///
/// # Safety
/// `result` must be what a system call that makes a new descriptor just returned.
unsafe fn owned(result: libc::c_long) -> io::Result<OwnedFd> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    let fd = RawFd::try_from(result).map_err(io::Error::other)?;
    // SAFETY: the caller says that the descriptor is new, so that nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_has_a_mount_that_mountinfo_lists() {
        let root = File::open("/proc").unwrap();
        let ids = mount_ids(root.as_fd()).unwrap();
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let line = table
            .lines()
            .map(|line| line.split(' ').collect::<Vec<_>>())
            .find(|fields| fields[0] == ids.id.to_string())
            .unwrap();
        assert_eq!(line[2], format!("{}:{}", ids.major, ids.minor));
        assert_eq!(mount_id(root.as_fd()).unwrap(), ids.id);
    }

    #[test]
    fn an_unknown_file_system_is_refused() {
        let error = MountContext::open(c"nosuchfs").unwrap_err();
        // ENODEV with the right to mount, EPERM without.
        assert!(matches!(
            error.raw_os_error(),
            Some(libc::ENODEV | libc::EPERM)
        ));
    }
}
