//! Directories that no other user can replace.
//!
//! A path is used again and again, by a process, its children and the kernel. So it leads to the same files only if
//! every directory on the way belongs to root or to this user, and nobody else may rename what is in it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2};
use nix::unistd::{getegid, geteuid};

/// The bit that keeps names in a directory for their owners.
const STICKY: u32 = 0o1000;
/// Who else may write to a directory.
const OTHERS_WRITE: u32 = 0o002;
const GROUP_WRITE: u32 = 0o020;
/// The group of root, where it has one to itself.
const ROOT_GROUP: u32 = 0;

/// How a directory is opened.
const DIRECTORY: OFlag = OFlag::O_RDONLY
    .union(OFlag::O_DIRECTORY)
    .union(OFlag::O_NOFOLLOW)
    .union(OFlag::O_CLOEXEC);

/// How names in a directory are looked up.
const INSIDE: ResolveFlag = ResolveFlag::RESOLVE_BENEATH.union(ResolveFlag::RESOLVE_NO_SYMLINKS);

/// Opens a directory that no other user can replace, and returns it with its path without links. Others may make
/// files in it if it has the sticky bit.
///
/// # Errors
/// If it cannot be opened, or another user could replace it, or what is in it.
pub fn open_dir(dir: &Path) -> io::Result<(PathBuf, OwnedFd)> {
    let (path, opened) = find_dir(dir)?;
    Ok((path, open_at(&opened, Path::new("."), INSIDE)?))
}

/// Opens a file for reading that no other user can change or replace, and returns it with its path, whose directory is
/// without links. If it is a link, that is also true of the file that it leads to.
///
/// # Errors
/// If it cannot be opened, or is no regular file, or another user could change or replace it.
pub fn open_file(path: &Path) -> io::Result<(PathBuf, File)> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let dir = match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    let path = find_dir(dir)?.0.join(name);
    let real = path.canonicalize()?;
    let (Some(real_dir), Some(real_name)) = (real.parent(), real.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let (_, opened) = find_dir(real_dir)?;
    // A pipe would be waited for.
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
    let file = File::from(open_with(&opened, Path::new(real_name), flags, INSIDE)?);
    let of = file.metadata()?;
    let shown = real.display();
    let why = if !of.is_file() {
        format!("{shown} is no regular file")
    } else if !is_trusted(&of) {
        let user = of.uid();
        format!("{shown} belongs to user {user}, who can change it: use a copy of your own")
    } else if is_written_by_others(&of) {
        format!("other users can change {shown}: take that from them (chmod go-w {shown})")
    } else {
        return Ok((path, file));
    };
    Err(io::Error::other(why))
}

/// Returns a directory that no other user can replace, with its path without links, as a descriptor that only names it.
fn find_dir(dir: &Path) -> io::Result<(PathBuf, OwnedFd)> {
    let path = dir.canonicalize()?;
    // Landlock, which may not let this process list the directories on the way, governs no such descriptors.
    let flags = DIRECTORY | OFlag::O_PATH;
    let root = open_with(AT_FDCWD, Path::new("/"), flags, ResolveFlag::empty())?;
    let mut opened = check(root, Path::new("/"))?;
    let mut so_far = PathBuf::from("/");
    for name in path.components().skip(1) {
        so_far.push(name);
        let next = open_with(&opened, Path::new(name.as_os_str()), flags, INSIDE)?;
        opened = check(next, &so_far)?;
    }
    Ok((path, opened))
}

/// Opens a directory as [`open_dir`] does in which nobody else may make files, either.
///
/// # Errors
/// As [`open_dir`], and if others may write to it.
pub fn open_own_dir(dir: &Path) -> io::Result<(PathBuf, OwnedFd)> {
    let (path, opened) = open_dir(dir)?;
    let opened = File::from(opened);
    if is_written_by_others(&opened.metadata()?) {
        let shown = path.display();
        let why = format!("other users may make files in {shown}: choose a directory below it");
        return Err(io::Error::other(why));
    }
    Ok((path, opened.into()))
}

/// Checks that a directory belongs to root or to this user, and that nobody else may make files in it. Who owns the
/// directories above it is trusted: for what a command makes where its caller works.
///
/// # Errors
/// If it does not, or cannot be examined.
pub fn expect_own(dir: &Path) -> io::Result<()> {
    let of = std::fs::metadata(dir)?;
    let shown = dir.display();
    let is_trusted = is_trusted(&of);
    if is_trusted && !is_written_by_others(&of) {
        return Ok(());
    }
    let why = match is_trusted {
        false => format!("{shown} belongs to user {}", of.uid()),
        true => format!("other users may make files in {shown}"),
    };
    let why = format!("{why}, where links may lead elsewhere: choose another directory");
    Err(io::Error::other(why))
}

fn check(dir: OwnedFd, path: &Path) -> io::Result<OwnedFd> {
    let dir = File::from(dir);
    let of = dir.metadata()?;
    let shown = path.display();
    let why = if !is_trusted(&of) {
        format!(
            "{shown} belongs to user {}, who may put something else in its place: choose another \
             directory",
            of.uid()
        )
    } else if is_written_by_others(&of) && of.mode() & STICKY == 0 {
        format!(
            "others may rename what is in {shown}: choose another directory, or set the sticky bit \
             (chmod +t {shown})"
        )
    } else {
        return Ok(dir.into());
    };
    Err(io::Error::other(why))
}

/// Returns whether its owner is root or this user.
fn is_trusted(of: &std::fs::Metadata) -> bool {
    of.uid() == 0 || of.uid() == geteuid().as_raw()
}

fn is_written_by_others(of: &std::fs::Metadata) -> bool {
    // Most users have a group to themselves, too.
    let own_groups = [ROOT_GROUP, getegid().as_raw()];
    let by_group = of.mode() & GROUP_WRITE != 0 && !own_groups.contains(&of.gid());
    of.mode() & OTHERS_WRITE != 0 || by_group
}

/// Opens a directory by its name in another, and follows no link to it.
///
/// # Errors
/// If there is none, or `resolve` forbids the way to it.
pub fn open_at(dir: impl AsFd, name: &Path, resolve: ResolveFlag) -> io::Result<OwnedFd> {
    open_with(dir, name, DIRECTORY, resolve)
}

fn open_with(
    dir: impl AsFd,
    name: &Path,
    flags: OFlag,
    resolve: ResolveFlag,
) -> io::Result<OwnedFd> {
    let how = OpenHow::new().flags(flags).resolve(resolve);
    loop {
        match openat2(&dir, name, how) {
            // A rename elsewhere made the kernel unsure: it asks for another try.
            Err(Errno::EINTR | Errno::EAGAIN) => {}
            other => return Ok(other?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    #[test]
    fn only_what_others_cannot_replace_is_opened() {
        let dir = tempfile::tempdir().unwrap();
        let (own, link) = (dir.path().join("own"), dir.path().join("link"));
        fs::create_dir(&own).unwrap();
        symlink(&own, &link).unwrap();
        let chmod = |path: &Path, mode| {
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        };
        for (above, mode, opens, is_own) in [
            (0o755, 0o755, true, true),
            (0o1777, 0o700, true, true),
            (0o755, 0o1777, true, false),
            (0o755, 0o777, false, false),
            (0o777, 0o700, false, false),
        ] {
            chmod(dir.path(), above);
            chmod(&own, mode);
            assert_eq!(open_dir(&own).is_ok(), opens, "{above:o} {mode:o}");
            assert_eq!(open_own_dir(&own).is_ok(), is_own, "{above:o} {mode:o}");
            let is_written = mode & OTHERS_WRITE != 0;
            assert_eq!(expect_own(&own).is_ok(), !is_written, "{mode:o}");
        }
        chmod(dir.path(), 0o755);
        chmod(&own, 0o700);
        assert_eq!(open_own_dir(&link).unwrap().0, own.canonicalize().unwrap());
        open_own_dir(&dir.path().join("nothing")).unwrap_err();
    }

    #[test]
    fn only_a_file_that_others_cannot_change_or_replace_is_opened() {
        let dir = tempfile::tempdir().unwrap();
        let (own, linked) = (dir.path().join("own"), dir.path().join("linked"));
        for made in [&own, &linked] {
            fs::create_dir(made).unwrap();
        }
        let (file, link) = (own.join("file"), linked.join("file"));
        fs::write(&file, "content").unwrap();
        symlink(&file, &link).unwrap();
        let chmod = |path: &Path, mode| {
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        };
        for (above, own_mode, mode, opens) in [
            (0o755, 0o755, 0o644, true),
            (0o755, 0o700, 0o600, true),
            (0o1777, 0o1777, 0o644, true),
            (0o755, 0o755, 0o666, false),
            (0o755, 0o777, 0o644, false),
            (0o777, 0o755, 0o644, false),
        ] {
            chmod(dir.path(), above);
            chmod(&own, own_mode);
            chmod(&file, mode);
            for way in [&file, &link] {
                let opened = open_file(way);
                assert_eq!(opened.is_ok(), opens, "{above:o} {own_mode:o} {mode:o}");
                if let Ok((path, mut opened)) = opened {
                    assert_eq!(&path, way);
                    let mut content = String::new();
                    std::io::Read::read_to_string(&mut opened, &mut content).unwrap();
                    assert_eq!(content, "content");
                }
            }
        }
        // Whoever can change the link chooses the file.
        chmod(&linked, 0o777);
        open_file(&link).unwrap_err();
        chmod(&own, 0o755);
        chmod(dir.path(), 0o755);
        chmod(&file, 0o644);
        open_file(&file).unwrap();
        let pipe = own.join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        open_file(&pipe).unwrap_err();
        open_file(&own).unwrap_err();
        open_file(Path::new("/")).unwrap_err();
        let missing = open_file(&own.join("nothing")).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }
}
