//! Places below a root: found, or made, without ever leaving it.

use std::fs::File;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::{Mode, mkdirat};
use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};

use crate::error::{Result, at, invalid};

/// What a place is if it has to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Directory,
    File,
}

/// Opens a place below `root`, and creates it if it is missing.
pub(super) fn place(root: BorrowedFd<'_>, path: &Path, shape: Shape) -> Result<OwnedFd> {
    let found = match find(root, path) {
        Ok(found) => found,
        Err(Errno::ENOENT) => make(root, path, shape)?,
        Err(errno) => return Err(at("opening the container's", path)(errno)),
    };
    let of = fstatfs(&found).map_err(at("reading the container's", path))?;
    // A link of the image's: what is mounted on files of processes misleads whoever writes to them.
    if of.filesystem_type() == PROC_SUPER_MAGIC {
        return invalid(format!(
            "{} of the container leads into /proc",
            path.display()
        ));
    }
    Ok(found)
}

/// Opens a directory below `root` whose path has no links, and creates it if it is missing. Programs trust the
/// kernel's own file systems at their places: no image may move these elsewhere (CVE-2019-19921).
pub(super) fn place_without_links(root: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd> {
    match find_by(root, path, ResolveFlag::RESOLVE_NO_SYMLINKS) {
        Ok(found) => Ok(found),
        Err(Errno::ENOENT) => make(root, path, Shape::Directory),
        Err(Errno::ELOOP) => invalid(format!(
            "{} of the image is a link, or behind one",
            path.display()
        )),
        Err(errno) => Err(at("opening the container's", path)(errno)),
    }
}

/// Opens a place below `root`; links there lead nowhere else.
pub(super) fn find(root: BorrowedFd<'_>, path: &Path) -> std::result::Result<OwnedFd, Errno> {
    find_by(root, path, ResolveFlag::RESOLVE_NO_MAGICLINKS)
}

fn find_by(
    root: BorrowedFd<'_>,
    path: &Path,
    links: ResolveFlag,
) -> std::result::Result<OwnedFd, Errno> {
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_IN_ROOT | links);
    retried(|| openat2(root, path, how))
}

/// Opens a file below `dir` whose path has no links and crosses no mounts.
pub(super) fn open_below(dir: BorrowedFd<'_>, path: &Path, flags: OFlag) -> Result<File> {
    let how = OpenHow::new().flags(flags | OFlag::O_CLOEXEC).resolve(
        ResolveFlag::RESOLVE_BENEATH
            | ResolveFlag::RESOLVE_NO_SYMLINKS
            | ResolveFlag::RESOLVE_NO_XDEV,
    );
    openat2(dir, path, how)
        .map(File::from)
        .map_err(at("opening", path))
}

/// The kernel asks to try again if something above was renamed meanwhile.
fn retried(mut call: impl FnMut() -> nix::Result<OwnedFd>) -> nix::Result<OwnedFd> {
    for _ in 0..128 {
        match call() {
            Err(Errno::EAGAIN) => {}
            result => return result,
        }
    }
    call()
}

fn make(root: BorrowedFd<'_>, path: &Path, shape: Shape) -> Result<OwnedFd> {
    let failed = || at("making the container's", path);
    let parts: Vec<_> = path.iter().skip(1).collect();
    let mut prefix = PathBuf::from("/");
    let mut dir = root.try_clone_to_owned().map_err(failed())?;
    for (index, part) in parts.iter().enumerate() {
        prefix.push(part);
        let is_last = index + 1 == parts.len();
        dir = match find(root, &prefix) {
            Ok(found) => found,
            Err(Errno::ENOENT) => {
                let made = match is_last && shape == Shape::File {
                    true => make_file(dir.as_fd(), part),
                    false => make_dir(dir.as_fd(), part),
                };
                made.map_err(|errno| failed()(errno.into()))?
            }
            Err(errno) => return Err(failed()(errno.into())),
        };
    }
    Ok(dir)
}

/// Opens what was just made, which must not have become a link meanwhile.
fn own(
    dir: BorrowedFd<'_>,
    name: &std::ffi::OsStr,
    flags: OFlag,
    mode: Mode,
) -> nix::Result<OwnedFd> {
    let how = OpenHow::new()
        .flags(flags | OFlag::O_CLOEXEC)
        .mode(mode)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS);
    retried(|| openat2(dir, name, how))
}

fn make_dir(dir: BorrowedFd<'_>, name: &std::ffi::OsStr) -> nix::Result<OwnedFd> {
    match mkdirat(dir, name, Mode::from_bits_truncate(0o755)) {
        Ok(()) | Err(Errno::EEXIST) => {}
        Err(errno) => return Err(errno),
    }
    own(dir, name, OFlag::O_PATH | OFlag::O_DIRECTORY, Mode::empty())
}

fn make_file(dir: BorrowedFd<'_>, name: &std::ffi::OsStr) -> nix::Result<OwnedFd> {
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL;
    drop(own(dir, name, flags, Mode::from_bits_truncate(0o644))?);
    own(dir, name, OFlag::O_PATH, Mode::empty())
}
