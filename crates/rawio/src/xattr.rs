//! Extended attributes of a name in a directory that is held open.

#![expect(
    unsafe_code,
    reason = "no safe wrapper that we depend on has extended attributes"
)]

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Most bytes in the list of names, and in one value (Linux's XATTR_LIST_MAX, XATTR_SIZE_MAX).
const LIMIT: usize = 65536;

/// The number of `listxattrat(2)` on x86-64 and aarch64 (Linux 6.13), which libc does not name on
/// every version that we build with.
const SYS_LISTXATTRAT: libc::c_long = 465;

/// Whether the kernel is older than that; asked once.
static NO_LISTXATTRAT: AtomicBool = AtomicBool::new(false);

/// How often a list or a value that grows while it is asked for is asked for again.
const ATTEMPTS: usize = 8;

/// Returns the names of the extended attributes of `name` in `dir`, each followed by a NUL; of
/// `dir` itself if `name` is empty. A symbolic link is not followed.
///
/// A file system without extended attributes gives none.
///
/// # Errors
/// Whatever `llistxattr(2)` gives. Before Linux 6.13 `/proc` must be mounted: the kernel had no
/// such call relative to a directory.
pub fn list_at(dir: impl AsFd, name: &[u8]) -> io::Result<Vec<u8>> {
    match names_at(dir, name) {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(Vec::new()),
        other => other,
    }
}

/// Returns what [`list_at`] does, where the file system has extended attributes.
///
/// # Errors
/// As [`list_at`], and `EOPNOTSUPP` where there are none.
pub fn names_at(dir: impl AsFd, name: &[u8]) -> io::Result<Vec<u8>> {
    if !NO_LISTXATTRAT.load(Relaxed) {
        match list_directly(dir.as_fd(), name) {
            Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => {
                NO_LISTXATTRAT.store(true, Relaxed);
            }
            other => return other,
        }
    }
    let path = path_of(dir, name)?;
    grow(|buf| {
        // SAFETY: `path` ends in a NUL, and the kernel writes at most `buf.len()` bytes to `buf`,
        // both of which live through the call.
        unsafe { libc::llistxattr(path.as_ptr(), buf.as_mut_ptr().cast(), buf.len()) }
    })
}

/// The same by a call that takes a directory. A scan asks for every file, nearly all of which
/// have no attributes: the way through `/proc` makes it twice as slow.
fn list_directly(dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<Vec<u8>> {
    let name = CString::new(if name.is_empty() { b"." } else { name })?;
    grow(|buf| {
        // SAFETY: `name` ends in a NUL, and the kernel writes at most `buf.len()` bytes to `buf`,
        // both of which live through the call; the descriptor is borrowed and open.
        let result = unsafe {
            libc::syscall(
                SYS_LISTXATTRAT,
                dir.as_raw_fd(),
                name.as_ptr(),
                libc::AT_SYMLINK_NOFOLLOW,
                buf.as_mut_ptr(),
                buf.len(),
            )
        };
        isize::try_from(result).unwrap_or(-1)
    })
}

/// Returns the value of an extended attribute of `name` in `dir` (of `dir` itself if `name` is
/// empty), or `None` if there is no such attribute. A symbolic link is not followed.
///
/// # Errors
/// Whatever `lgetxattr(2)` gives; see [`list_at`] for `/proc`.
pub fn get_at(dir: impl AsFd, name: &[u8], attribute: &[u8]) -> io::Result<Option<Vec<u8>>> {
    match value_at(dir, name, attribute) {
        Ok(value) => Ok(Some(value)),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENODATA | libc::EOPNOTSUPP)) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Returns the value of an extended attribute as [`get_at`] does, where there is one.
///
/// # Errors
/// As [`get_at`]; `ENODATA` if there is no such attribute, and `EOPNOTSUPP` where there are none.
pub fn value_at(dir: impl AsFd, name: &[u8], attribute: &[u8]) -> io::Result<Vec<u8>> {
    let path = path_of(dir, name)?;
    let attribute = CString::new(attribute)?;
    grow(|buf| {
        // SAFETY: both strings end in a NUL, and the kernel writes at most `buf.len()` bytes to
        // `buf`; all three live through the call.
        unsafe {
            libc::lgetxattr(
                path.as_ptr(),
                attribute.as_ptr(),
                buf.as_mut_ptr().cast(),
                buf.len(),
            )
        }
    })
}

/// The link in `/proc` leads to the open directory itself, wherever it is and whatever is mounted
/// over its path by now; `name` is then the last component, which these calls do not follow.
fn path_of(dir: impl AsFd, name: &[u8]) -> io::Result<CString> {
    let mut path = format!("/proc/self/fd/{}/", dir.as_fd().as_raw_fd()).into_bytes();
    path.extend_from_slice(if name.is_empty() { b"." } else { name });
    Ok(CString::new(path)?)
}

/// Calls with a small buffer, which is enough for nearly all, then with larger ones.
fn grow(call: impl Fn(&mut [u8]) -> isize) -> io::Result<Vec<u8>> {
    let mut small = [0; 256];
    if let Some(result) = outcome(call(&mut small)) {
        return Ok(small[..result?.min(small.len())].to_vec());
    }
    let mut large = vec![0; LIMIT];
    for _ in 0..ATTEMPTS {
        if let Some(result) = outcome(call(&mut large)) {
            large.truncate(result?);
            large.shrink_to_fit();
            return Ok(large);
        }
    }
    Err(io::Error::from_raw_os_error(libc::ERANGE))
}

/// Returns the length, the failure, or `None` where asking again may help.
fn outcome(result: isize) -> Option<io::Result<usize>> {
    if let Ok(len) = usize::try_from(result) {
        return Some(Ok(len));
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::ERANGE | libc::EINTR) => None,
        _ => Some(Err(error)),
    }
}

/// Sets an extended attribute of `name` in `dir`, for tests.
///
/// # Errors
/// Whatever `lsetxattr(2)` gives.
pub fn set_at(dir: impl AsFd, name: &[u8], attribute: &CStr, value: &[u8]) -> io::Result<()> {
    let path = path_of(dir, name)?;
    // SAFETY: both strings end in a NUL, and the kernel reads `value.len()` bytes of `value`; all
    // three live through the call.
    let result = unsafe {
        libc::lsetxattr(
            path.as_ptr(),
            attribute.as_ptr(),
            value.as_ptr().cast(),
            value.len(),
            0,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};

    #[test]
    fn what_was_set_comes_back() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        fs::write(dir.path().join("f"), b"").unwrap();
        let fd = File::open(dir.path()).unwrap();
        let long = vec![7; 1000];
        set_at(&fd, b"f", c"user.short", b"one").unwrap();
        set_at(&fd, b"f", c"user.long", &long).unwrap();
        set_at(&fd, b"", c"user.dir", b"").unwrap();

        let mut names: Vec<Vec<u8>> = list_at(&fd, b"f")
            .unwrap()
            .split_inclusive(|b| *b == 0)
            .map(<[u8]>::to_vec)
            .filter(|name| name.starts_with(b"user."))
            .collect();
        names.sort();
        assert_eq!(names, [b"user.long\0".to_vec(), b"user.short\0".to_vec()]);
        assert_eq!(get_at(&fd, b"f", b"user.short").unwrap().unwrap(), b"one");
        assert_eq!(get_at(&fd, b"f", b"user.long").unwrap().unwrap(), long);
        assert_eq!(get_at(&fd, b"f", b"user.none").unwrap(), None);
        assert_eq!(get_at(&fd, b"", b"user.dir").unwrap().unwrap(), b"");
    }

    #[test]
    fn a_list_longer_than_the_first_buffer_is_whole() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let fd = File::open(dir.path()).unwrap();
        for i in 0..20 {
            let name = CString::new(format!("user.{i:060}")).unwrap();
            set_at(&fd, b"", &name, b"").unwrap();
        }
        let names = list_at(&fd, b"").unwrap();
        let ours = names.split(|b| *b == 0).filter(|n| n.starts_with(b"user."));
        assert_eq!(ours.count(), 20);
    }

    #[test]
    fn what_is_not_there_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let fd = File::open(dir.path()).unwrap();
        assert!(list_at(&fd, b"nothing").is_err());
        assert!(get_at(&fd, b"nothing", b"user.x").is_err());
    }
}
