//! The destination of a file that is written to a temporary name and then renamed.
//!
//! A rename replaces whatever has the name: a symbolic link instead of its target,
//! and a device node, which the machine then lacks.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Returns the path that a rename may replace so that the file arrives at the target of `path`: through
/// symbolic links, and to a regular file or to a missing one.
///
/// # Errors
/// If another kind of file is there, or a link is dangling.
pub fn destination(path: &Path) -> io::Result<PathBuf> {
    let there = match fs::symlink_metadata(path) {
        Ok(there) => there.file_type(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(path.to_owned()),
        Err(error) => return Err(error),
    };
    if there.is_file() {
        return Ok(path.to_owned());
    }
    let target = fs::canonicalize(path)?;
    if fs::metadata(&target)?.is_file() {
        return Ok(target);
    }
    let why = "it is not a regular file, and would be replaced by one; name a file to write to";
    Err(io::Error::new(io::ErrorKind::InvalidInput, why))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_link_is_followed_and_a_device_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        assert_eq!(destination(&path("new")).unwrap(), path("new"));
        fs::write(path("file"), "").unwrap();
        assert_eq!(destination(&path("file")).unwrap(), path("file"));
        symlink("file", path("link")).unwrap();
        symlink("link", path("links")).unwrap();
        let file = fs::canonicalize(path("file")).unwrap();
        assert_eq!(destination(&path("links")).unwrap(), file);
        symlink("/dev/null", path("null")).unwrap();
        symlink("nowhere", path("lost")).unwrap();
        for refused in [path("null"), path("lost"), "/dev/null".into(), path(".")] {
            destination(&refused).unwrap_err();
        }
    }
}
