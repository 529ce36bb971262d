//! Files that are written whole or not at all, and stay as accessible as they were.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, fchown};
use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// Who may read a file that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Who could before; of a new file, everybody.
    AsBefore,
    /// Its owner.
    OwnerOnly,
}

impl Access {
    const fn mode(self) -> u32 {
        match self {
            Self::AsBefore => 0o644,
            Self::OwnerOnly => 0o600,
        }
    }
}

/// Writes a file whole or not at all, and makes its directory. A symbolic link stays one: what it points to is written.
pub(super) fn write_whole(path: &Path, text: &str, access: Access) -> anyhow::Result<()> {
    let path = pointed_to(path);
    let writing = || format!("writing {}", path.display());
    let dir = path.parent().with_context(writing)?;
    fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().with_context(writing)?);
    name.push(format!(".{}", std::process::id()));
    let aside = dir.join(name);
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    let written = options
        .mode(access.mode())
        .open(&aside)
        .and_then(|mut file| {
            if access == Access::AsBefore
                && let Ok(known) = fs::metadata(&path)
            {
                // The owner first: to change it takes set-user-id bits away.
                fchown(&file, Some(known.uid()), Some(known.gid()))?;
                file.set_permissions(known.permissions())?;
            }
            file.write_all(text.as_bytes())?;
            file.sync_all()
        })
        .and_then(|()| fs::rename(&aside, &path))
        .and_then(|()| File::open(dir)?.sync_all());
    if written.is_err() {
        let _was_not_made = fs::remove_file(&aside);
    }
    written.with_context(writing)
}

/// Returns the file that a path leads to, or the path itself if nothing is there.
fn pointed_to(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn a_link_stays_a_link_and_what_it_points_to_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        fs::write(&file, "old\n").unwrap();
        symlink("file", &link).unwrap();
        write_whole(&link, "new\n", Access::AsBefore).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(&file).unwrap(), "new\n");
        let names = fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(names, 2, "something is left beside it");
    }

    #[test]
    fn what_has_contents_of_others_is_for_its_owner() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("record");
        // Also if a former release made it otherwise.
        for before in [None, Some(0o644)] {
            if let Some(mode) = before {
                fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            }
            write_whole(&path, "secret\n", Access::OwnerOnly).unwrap();
            let mode = fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
    }
}
