//! A directory that nothing leads out of.
//!
//! Names are resolved by the kernel as if the directory were the root (`openat2(2)` with
//! `RESOLVE_IN_ROOT`), so links in a layer, `..` and absolute targets stay inside.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::{FileStat, Mode, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::TarError;

/// Bytes of a path, as the kernel takes them.
const PATH_MAX: usize = 4095;
const NAME_MAX: usize = 255;
/// The maximum depth of directories. A walk for each name takes time for the depth
/// each time; real trees have some tens.
pub(super) const DEPTH_MAX: usize = 512;
/// What a layer has too many of then.
pub(super) const TOO_DEEP: TarError = TarError::Limit("levels of directories");
/// What a directory has that no entry made: engines do the same.
const IMPLIED_MODE: Mode = Mode::from_bits_truncate(0o755);

#[derive(Debug)]
pub(crate) struct Root(OwnedFd);

/// A name in a directory that is held open.
#[derive(Debug)]
pub(crate) struct Spot<'a> {
    pub(crate) dir: OwnedFd,
    pub(crate) name: &'a [u8],
}

impl Root {
    pub(crate) fn open(dir: &Path) -> io::Result<Self> {
        // A link in its place is not one that we were given.
        let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
        let mut options = File::options();
        let dir = options.read(true).custom_flags(flags.bits()).open(dir)?;
        Ok(Self(dir.into()))
    }

    /// Returns the directory itself.
    pub(crate) fn itself(&self) -> io::Result<Spot<'static>> {
        let dir = self.0.try_clone()?;
        Ok(Spot { dir, name: b"." })
    }

    /// Returns the place of a path; missing directories on the way to it are created, and
    /// `made` is called for each.
    pub(crate) fn make_way<'a>(
        &self,
        path: &'a [u8],
        made: &mut dyn FnMut(&[u8]) -> Result<(), TarError>,
    ) -> Result<Spot<'a>, TarError> {
        let (parent, name) = split(path);
        let dir = match self.open_dir(parent) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.make_dirs(parent, made)?
            }
            other => other?,
        };
        Ok(Spot { dir, name })
    }

    /// Returns the place of a path whose directory exists.
    pub(crate) fn spot<'a>(&self, path: &'a [u8]) -> io::Result<Spot<'a>> {
        let (parent, name) = split(path);
        let dir = self.open_dir(parent)?;
        Ok(Spot { dir, name })
    }

    fn make_dirs(
        &self,
        path: &[u8],
        made: &mut dyn FnMut(&[u8]) -> Result<(), TarError>,
    ) -> Result<OwnedFd, TarError> {
        let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        for end in slashes.map(|(end, _)| end).chain([path.len()]) {
            if self.make_dir(&path[..end])? {
                made(&path[..end])?;
            }
        }
        Ok(self.open_dir(path)?)
    }

    /// Makes a directory unless it is there, and returns whether it did.
    fn make_dir(&self, path: &[u8]) -> io::Result<bool> {
        let (parent, name) = split(path);
        match mkdirat(self.open_dir(parent)?, name, IMPLIED_MODE) {
            Ok(()) => Ok(true),
            Err(Errno::EEXIST) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens a directory here, to look up others in it.
    pub(crate) fn open_dir(&self, path: &[u8]) -> io::Result<OwnedFd> {
        let inside = ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS;
        let how = OpenHow::new()
            .flags(OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC)
            .resolve(inside);
        let path = if path.is_empty() { b"." } else { path };
        loop {
            match openat2(self.0.as_fd(), path, how) {
                // A rename elsewhere made the kernel unsure: it asks for another try.
                Err(Errno::EINTR | Errno::EAGAIN) => {}
                other => return Ok(other?),
            }
        }
    }
}

impl Spot<'_> {
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// Returns the attributes of the file, if it exists.
    pub(crate) fn stat(&self) -> io::Result<Option<FileStat>> {
        match fstatat(self.fd(), self.name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::ENOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) fn remove(&self, flag: UnlinkatFlags) -> io::Result<()> {
        Ok(unlinkat(self.fd(), self.name, flag)?)
    }
}

/// Returns the directory of a path, and the name in it.
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (b"", path),
    }
}

/// Returns a name of a tar without `.`, double slashes and the slash that it may start with;
/// empty for the top.
///
/// # Errors
/// If it leads out of the directory, or is longer or deeper than allowed.
pub(crate) fn clean(name: &[u8]) -> Result<Vec<u8>, TarError> {
    if name.len() > PATH_MAX {
        return Err(TarError::Rule("a name has more than 4095 bytes"));
    }
    let mut clean = Vec::with_capacity(name.len());
    let mut depth = 0;
    for part in name.split(|&byte| byte == b'/') {
        match part {
            b"" | b"." => continue,
            b".." => return Err(TarError::Rule("a name contains ..")),
            _ if part.contains(&0) => return Err(TarError::Rule("a name contains NUL")),
            _ if part.len() > NAME_MAX => {
                return Err(TarError::Rule("a part of a name has more than 255 bytes"));
            }
            _ => {}
        }
        depth += 1;
        if depth > DEPTH_MAX {
            return Err(TOO_DEEP);
        }
        if !clean.is_empty() {
            clean.push(b'/');
        }
        clean.extend_from_slice(part);
    }
    Ok(clean)
}
