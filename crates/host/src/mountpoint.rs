//! Resolving the mount point that a user names.

use std::io;
use std::path::{Path, PathBuf};

/// Returns the absolute path of a mount, without symbolic links: as `yolofs mount` records it. The
/// mount itself is not accessed, since a dead one does not respond.
///
/// # Errors
/// If its parent directory does not exist.
pub fn resolve(named: &Path) -> io::Result<PathBuf> {
    let absolute = std::path::absolute(named)?;
    let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name()) else {
        // The root, or what ends in `..`.
        return absolute.canonicalize();
    };
    let place = parent.canonicalize()?.join(name);
    match place.read_link() {
        Ok(_) => place.canonicalize(),
        Err(_) => Ok(place),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_are_followed_on_the_way_and_at_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap().join("real");
        std::fs::create_dir_all(real.join("mnt")).unwrap();
        symlink(&real, dir.path().join("way")).unwrap();
        symlink("real/mnt", dir.path().join("end")).unwrap();
        let expected = real.join("mnt");
        for named in ["real/mnt", "way/mnt", "end", "way/../real/mnt", "way/mnt/."] {
            let found = resolve(&dir.path().join(named)).unwrap();
            assert_eq!(found, expected, "{named}");
        }
        // What is not there has a place all the same, if its directory has.
        assert_eq!(resolve(&real.join("gone")).unwrap(), real.join("gone"));
        assert!(resolve(&real.join("gone/deeper")).is_err());
        assert_eq!(resolve(Path::new("/")).unwrap(), Path::new("/"));
    }
}
