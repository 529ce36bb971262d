//! Opening names beneath a directory that is held open, and nowhere else.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};

/// Longest path that one call takes, in bytes, less the NUL (Linux's PATH_MAX).
const PATH_MAX: usize = 4095;

/// Opens `path` beneath `dir`; `dir` itself if `path` is empty. No symbolic link is followed, on
/// the way or at the end, and paths of any length work.
pub(crate) fn open_beneath(
    dir: impl AsFd,
    path: &[u8],
    flags: OFlag,
    also: ResolveFlag,
) -> io::Result<OwnedFd> {
    let mut path = path;
    let mut reached: Option<OwnedFd> = None;
    while path.len() > PATH_MAX {
        // A name has at most 255 bytes, so there is a `/` in any PATH_MAX bytes of a real path.
        let cut = path[..PATH_MAX].iter().rposition(|byte| *byte == b'/');
        let Some(cut) = cut.filter(|cut| *cut > 0) else {
            return Err(Errno::ENAMETOOLONG.into());
        };
        let way = OFlag::O_PATH | OFlag::O_DIRECTORY;
        let next = match &reached {
            Some(from) => open_once(from, &path[..cut], way, also),
            None => open_once(dir.as_fd(), &path[..cut], way, also),
        };
        reached = Some(next?);
        path = &path[cut + 1..];
    }
    match &reached {
        Some(from) => open_once(from, path, flags, also),
        None => open_once(dir.as_fd(), path, flags, also),
    }
}

fn open_once(dir: impl AsFd, path: &[u8], flags: OFlag, also: ResolveFlag) -> io::Result<OwnedFd> {
    let beneath = ResolveFlag::RESOLVE_BENEATH
        | ResolveFlag::RESOLVE_NO_SYMLINKS
        | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    let how = OpenHow::new()
        .flags(flags | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW)
        .resolve(beneath | also);
    let path = if path.is_empty() { b"." } else { path };
    loop {
        match openat2(dir.as_fd(), path, how) {
            Err(Errno::EINTR | Errno::EAGAIN) => (),
            other => return Ok(other?),
        }
    }
}

/// Opens for reading without changing the access time, where that is allowed: only for the owner
/// of a file and root.
pub(crate) fn open_to_read(
    dir: impl AsFd,
    path: &[u8],
    flags: OFlag,
    also: ResolveFlag,
) -> io::Result<OwnedFd> {
    let flags = flags | OFlag::O_RDONLY;
    match open_beneath(dir.as_fd(), path, flags | OFlag::O_NOATIME, also) {
        Err(error) if error.raw_os_error() == Some(Errno::EPERM as i32) => {
            open_beneath(dir, path, flags, also)
        }
        other => other,
    }
}

/// Treats another kind of file in the place of a file or of a directory on the way to it (a file, a link, a
/// mount, a socket) as a missing one.
pub(crate) fn gone(error: io::Error) -> io::Error {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOTDIR | Errno::ELOOP | Errno::EXDEV | Errno::ENXIO | Errno::ESTALE) => {
            Errno::ENOENT.into()
        }
        _ => error,
    }
}

/// Whether it is the machine, or this process, that lacks descriptors or memory.
pub(crate) fn is_shortage(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error().map(Errno::from_raw),
        Some(Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM)
    )
}
