//! Two names that change places.

#![expect(
    unsafe_code,
    reason = "nix has renameat2(2) for the GNU C library only"
)]

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// Exchanges two names atomically: whatever happens, each refers to one of both files.
///
/// # Errors
/// As `renameat2(2)` with `RENAME_EXCHANGE`; if there is a zero byte in a name.
pub fn exchange(one: &Path, other: &Path) -> io::Result<()> {
    let name = |path: &Path| CString::new(path.as_os_str().as_bytes());
    let (one, other) = (name(one)?, name(other)?);
    // SAFETY: the call reads two strings, which end with a zero byte and live through it.
    let result = unsafe {
        libc::syscall(
            libc::SYS_renameat2,
            libc::AT_FDCWD,
            one.as_ptr(),
            libc::AT_FDCWD,
            other.as_ptr(),
            libc::RENAME_EXCHANGE,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn names_change_places() {
        let dir = tempfile::tempdir().unwrap();
        let [one, other] = ["one", "other"].map(|name| dir.path().join(name));
        fs::create_dir(&one).unwrap();
        fs::write(&other, "file").unwrap();
        exchange(&one, &other).unwrap();
        assert!(one.is_file() && other.is_dir());
        let missing = exchange(&one, &dir.path().join("missing")).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }
}
