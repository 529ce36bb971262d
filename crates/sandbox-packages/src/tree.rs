//! Directories that a hostile program has filled: checking them, and changing their owner to root.
//!
//! Nothing in them is followed or executed here. No process of the sandbox is left that could
//! change them meanwhile.

use std::fs::{self, Metadata, Permissions};
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, lchown};
use std::path::{Path, PathBuf};

use nix::libc;

use crate::error::{PackageError, Result, at};
use crate::names::{Pinned, normalized};

/// Files and directories of a package, and how deep they are: the largest packages have some 20,000.
const ENTRIES_MAX: u64 = 200_000;
const DEPTH_MAX: usize = 64;

/// The part of a package's metadata that has its name: behind it is a text for people.
const METADATA_MAX_BYTES: u64 = 1 << 20;

/// The contents of a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) bytes: u64,
    pub(crate) files: u64,
}

/// Calls `each` for all that is below a directory, the deepest first, and follows no links. A name that
/// is gone meanwhile is passed over.
fn walk(
    dir: &Path,
    depth: usize,
    count: &mut u64,
    each: &mut dyn FnMut(&Path, &Metadata) -> Result<()>,
) -> Result<()> {
    let too_large = |problem: String| PackageError::Hostile {
        package: dir.display().to_string(),
        problem,
    };
    if depth > DEPTH_MAX {
        return Err(too_large(format!(
            "its directories are more than {DEPTH_MAX} deep"
        )));
    }
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(at("reading", dir))?,
    };
    for entry in entries {
        let path = entry.map_err(at("reading", dir))?.path();
        *count += 1;
        if *count > ENTRIES_MAX {
            return Err(too_large(format!("it has more than {ENTRIES_MAX} files")));
        }
        let metadata = match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            metadata => metadata.map_err(at("reading", &path))?,
        };
        if metadata.is_dir() {
            walk(&path, depth + 1, count, each)?;
        }
        each(&path, &metadata)?;
    }
    Ok(())
}

/// Returns how much is in a directory, while it may be filled.
pub(crate) fn size_of(dir: &Path) -> Result<Size> {
    let mut size = Size::default();
    walk(dir, 0, &mut 0, &mut |_, metadata| {
        // What is on the disk: a sparse file has a length that means nothing.
        size.bytes += metadata.blocks() * 512;
        size.files += u64::from(metadata.is_file());
        Ok(())
    })?;
    Ok(size)
}

/// Refuses entries that are no file or directory, and makes one user the owner of all, readable for everybody.
pub(crate) fn take_over(dir: &Path, package: &Pinned, owner: u32) -> Result<Size> {
    let hostile = |problem: String| PackageError::Hostile {
        package: package.text(),
        problem,
    };
    let mut size = Size::default();
    let mut take = |path: &Path, metadata: &Metadata| {
        if !metadata.is_dir() && !metadata.is_file() {
            let problem = format!("{} is neither a file nor a directory", path.display());
            return Err(hostile(problem));
        }
        if metadata.is_file() && metadata.nlink() != 1 {
            return Err(hostile(format!(
                "{} has more than one name",
                path.display()
            )));
        }
        lchown(path, Some(owner), None).map_err(at("changing the owner of", path))?;
        let executable = metadata.is_dir() || metadata.mode() & 0o100 != 0;
        let mode = if executable { 0o755 } else { 0o644 };
        // No link: its kind was looked at, and nobody else is there.
        fs::set_permissions(path, Permissions::from_mode(mode))
            .map_err(at("setting the mode of", path))?;
        size.bytes += metadata.len();
        size.files += u64::from(metadata.is_file());
        Ok(())
    };
    walk(dir, 0, &mut 0, &mut take)?;
    let itself = fs::symlink_metadata(dir).map_err(at("reading", dir))?;
    if !itself.is_dir() {
        return Err(hostile("it is no directory".to_owned()));
    }
    take(dir, &itself)?;
    Ok(size)
}

/// Removes a directory and all below it, at any depth: the content of a subdirectory is moved up before it
/// is removed, so that no path gets long and there is no recursion.
pub(crate) fn remove(dir: &Path) -> Result<()> {
    let mut next = 0;
    let mut left = vec![dir.to_owned()];
    while let Some(top) = left.pop() {
        let entries = match fs::read_dir(&top) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            entries => entries.map_err(at("reading", &top))?,
        };
        for entry in entries {
            let entry = entry.map_err(at("reading", &top))?;
            let path = entry.path();
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                fs::remove_file(&path).map_err(at("removing", path))?;
            } else if fs::remove_dir(&path).is_err() {
                left.push(move_aside(&path, dir, &mut next)?);
            }
        }
        fs::remove_dir(&top).map_err(at("removing", top))?;
    }
    Ok(())
}

/// Moves a directory beside another one, to a name that nothing has: whoever was killed while it removed something
/// has left such names.
fn move_aside(path: &Path, beside: &Path, next: &mut u64) -> Result<PathBuf> {
    loop {
        *next += 1;
        let mut aside = beside.as_os_str().to_owned();
        aside.push(format!(".removed-{next}"));
        match fs::rename(path, &aside) {
            Err(error) if error.kind() == std::io::ErrorKind::DirectoryNotEmpty => {}
            moved => {
                moved.map_err(at("removing", path))?;
                return Ok(aside.into());
            }
        }
    }
}

/// Reads which package a directory is, by its metadata, and refuses another one than was expected.
pub(crate) fn check_identity(dir: &Path, expected: &Pinned) -> Result<()> {
    let hostile = |problem: String| PackageError::Hostile {
        package: expected.text(),
        problem,
    };
    let mut found: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(dir).map_err(at("reading", dir))? {
        let path = entry.map_err(at("reading", dir))?.path();
        found.extend(
            path.extension()
                .is_some_and(|kind| kind == "dist-info")
                .then_some(path),
        );
    }
    let [info] = &found[..] else {
        return Err(hostile(format!(
            "it has {} directories *.dist-info",
            found.len()
        )));
    };
    let path = info.join("METADATA");
    let opened = fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(&path);
    let mut text = Vec::new();
    opened
        .and_then(|file| file.take(METADATA_MAX_BYTES).read_to_end(&mut text))
        .map_err(at("reading", &path))?;
    let text = String::from_utf8_lossy(&text);
    let head = text.lines().take_while(|line| !line.is_empty());
    let fields: Vec<_> = head.filter_map(|line| line.split_once(": ")).collect();
    let of = |name: &str| {
        fields
            .iter()
            .find(|(field, _)| field.eq_ignore_ascii_case(name))
    };
    let name = of("Name").map_or("", |(_, name)| name.trim());
    let version = of("Version").map_or("", |(_, version)| version.trim());
    // A wheel's own name has no dashes in the version.
    if normalized(name) != expected.name
        || version.replace('-', "_") != expected.version.replace('-', "_")
    {
        return Err(hostile(format!("it says that it is {name} {version}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn pinned() -> Pinned {
        Pinned::parse("a==1").unwrap()
    }

    fn package() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("a-1.dist-info")).unwrap();
        fs::write(
            dir.path().join("a-1.dist-info/METADATA"),
            "Metadata-Version: 2.1\nName: A\nVersion: 1\n\nName: b\n",
        )
        .unwrap();
        dir
    }

    /// A former removal was cut off: what it had moved aside is removed, too, in any order.
    #[test]
    fn what_a_removal_has_left_is_removed() {
        for order in [[0, 1, 2], [1, 0, 2], [2, 1, 0]] {
            let dir = tempfile::tempdir().unwrap();
            let names = ["0", "0.removed-1", "0.removed-1.removed-1"];
            for name in names {
                fs::create_dir_all(dir.path().join(name).join("a/b/c")).unwrap();
                fs::write(dir.path().join(name).join("a/b/file"), b"").unwrap();
            }
            for number in order {
                remove(&dir.path().join(names[number])).unwrap();
            }
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "{order:?}");
        }
    }

    #[test]
    fn a_package_is_what_its_wheel_was_called() {
        let dir = package();
        check_identity(dir.path(), &pinned()).unwrap();
        for other in ["a==2", "b==1"] {
            let other = Pinned::parse(other).unwrap();
            let error = check_identity(dir.path(), &other).unwrap_err().to_string();
            assert!(error.contains("it says that it is A 1"), "{error}");
        }
        fs::create_dir(dir.path().join("b.dist-info")).unwrap();
        assert!(check_identity(dir.path(), &pinned()).is_err());
        fs::remove_dir(dir.path().join("b.dist-info")).unwrap();
        let metadata = dir.path().join("a-1.dist-info/METADATA");
        fs::rename(&metadata, dir.path().join("other")).unwrap();
        symlink("../other", &metadata).unwrap();
        assert!(check_identity(dir.path(), &pinned()).is_err());
    }

    #[test]
    fn a_directory_is_removed_however_deep_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        fs::create_dir(&tree).unwrap();
        fs::write(dir.path().join("kept"), "").unwrap();
        symlink("..", tree.join("link")).unwrap();
        // Longer than any path may be, so from inside out.
        let inner = dir.path().join("inner");
        fs::create_dir(&inner).unwrap();
        for _ in 0..5000 {
            let outer = dir.path().join("outer");
            fs::create_dir(&outer).unwrap();
            fs::rename(&inner, outer.join("d")).unwrap();
            fs::rename(&outer, &inner).unwrap();
        }
        fs::rename(&inner, tree.join("deep")).unwrap();
        assert!(size_of(&tree).is_err());
        remove(&tree).unwrap();
        let names = fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name());
        assert_eq!(names.collect::<Vec<_>>(), ["kept"]);
    }

    #[test]
    fn links_pipes_and_deep_trees_are_refused() {
        let refused = |make: &dyn Fn(&Path)| {
            let dir = package();
            make(dir.path());
            let owner = nix::unistd::geteuid().as_raw();
            let taken = take_over(dir.path(), &pinned(), owner);
            assert!(
                matches!(taken, Err(PackageError::Hostile { .. })),
                "{taken:?}"
            );
        };
        refused(&|dir| {
            std::os::unix::net::UnixListener::bind(dir.join("socket"))
                .map(drop)
                .unwrap();
        });
        refused(&|dir| symlink("/etc/shadow", dir.join("link")).unwrap());
        refused(&|dir| {
            nix::unistd::mkfifo(&dir.join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        });
        refused(&|dir| {
            fs::hard_link(dir.join("a-1.dist-info/METADATA"), dir.join("twice")).unwrap();
        });
        refused(&|dir| fs::create_dir_all(dir.join("d/".repeat(DEPTH_MAX + 1))).unwrap());
    }
}
