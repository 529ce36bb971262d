//! Directories that a layer has files in, but no entry for.
//!
//! Engines give such a directory its attributes in the layers below. If a layer is unpacked before
//! those, or at the same time, the attributes are set when they are complete.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::{FileStat, Mode, fchmod, fstat};
use nix::unistd::{Gid, Uid, fchown};
use rawio::xattr;

use super::attributes::is_kept;
use super::root::Root;

/// The directories of a layer without an entry in its tar.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Implied {
    /// Their paths; the empty one is the top.
    dirs: BTreeSet<Vec<u8>>,
}

impl Implied {
    /// Returns whether there are none: then the layers below need not be read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.dirs.is_empty()
    }

    /// Of a layer of which nothing was read yet.
    pub(super) fn new() -> Self {
        Self {
            dirs: BTreeSet::from([Vec::new()]),
        }
    }

    pub(super) fn add(&mut self, dir: &[u8]) {
        self.dirs.insert(dir.to_vec());
    }

    /// Removes a directory for which the tar has an entry.
    pub(super) fn is_told(&mut self, dir: &[u8]) {
        self.dirs.remove(dir);
    }

    /// Gives each of them in the layer at `layer` the owner, mode and attributes that it has in the
    /// layers below it, `lowers`, the nearest first. For the top only the owner, as engines do. To be
    /// called before the layer is mounted.
    ///
    /// # Errors
    /// If a directory cannot be opened or changed.
    pub fn take_after(&self, layer: &Path, lowers: &[&Path]) -> io::Result<()> {
        if self.is_empty() || lowers.is_empty() {
            return Ok(());
        }
        let root = Root::open(layer)?;
        let lowers: Vec<File> = lowers.iter().map(File::open).collect::<Result<_, _>>()?;
        for path in &self.dirs {
            // It may have been replaced by something else in the same layer.
            let Some(dir) = or_none(root.open_dir(path))? else {
                continue;
            };
            let Some(below) = nearest(&lowers, path)? else {
                continue;
            };
            // A descriptor that can be written through, at the same place.
            let dir = reopened(&dir)?;
            copy(&below, &dir, path.is_empty())?;
        }
        Ok(())
    }
}

/// Returns the directory of this path in the nearest layer that has it: not if a nearer one has
/// deleted it, or something else in its place.
fn nearest(lowers: &[File], path: &[u8]) -> io::Result<Option<OwnedFd>> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let how = OpenHow::new()
        .flags(flags)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS);
    let path = if path.is_empty() { b"." } else { path };
    for lower in lowers {
        let opened = loop {
            match openat2(lower.as_fd(), path, how) {
                // A rename elsewhere made the kernel unsure: it asks for another try.
                Err(Errno::EINTR | Errno::EAGAIN) => {}
                other => break other,
            }
        };
        match opened {
            Ok(dir) => return Ok(Some(dir)),
            Err(Errno::ENOENT) => {}
            Err(Errno::ENOTDIR | Errno::ELOOP) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

fn or_none(opened: io::Result<OwnedFd>) -> io::Result<Option<OwnedFd>> {
    match opened {
        Err(error) => match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => Ok(None),
            _ => Err(error),
        },
        opened => opened.map(Some),
    }
}

/// Returns another descriptor of a directory that is only named by the one that is there.
fn reopened(dir: &OwnedFd) -> io::Result<OwnedFd> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    Ok(openat2(
        dir.as_fd(),
        b".".as_slice(),
        OpenHow::new().flags(flags),
    )?)
}

fn copy(from: &OwnedFd, to: &OwnedFd, is_top: bool) -> io::Result<()> {
    let of: FileStat = fstat(from)?;
    fchown(
        to,
        Some(Uid::from_raw(of.st_uid)),
        Some(Gid::from_raw(of.st_gid)),
    )?;
    if is_top {
        return Ok(());
    }
    let names = xattr::list_at(from, b".")?;
    for name in names.split(|byte| *byte == 0).filter(|name| is_kept(name)) {
        let Some(value) = xattr::get_at(from, b".", name)? else {
            continue;
        };
        if let Ok(name) = CString::new(name) {
            xattr::set_at(to, b".", &name, &value)?;
        }
    }
    Ok(fchmod(to, Mode::from_bits_truncate(of.st_mode))?)
}
