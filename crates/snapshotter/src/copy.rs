//! Copies a tree to another file system, with everything that a layer may hold.

use std::collections::HashMap;
use std::ffi::CStr;
use std::fs::{self, File, Metadata, Permissions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _, lchown, symlink};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::AT_FDCWD;
use nix::sys::stat::{Mode, SFlag, UtimensatFlags, mknod, utimensat};
use nix::sys::time::TimeSpec;
use nix::unistd::{Whence, lseek};

use crate::error::{Result, SnapshotError};
use crate::pace::{CHUNK, Pace, turn};

/// Copies the directory `from` to `to`, which must not exist: contents with their holes, hard
/// links, special files, owners, modes, times and extended attributes.
pub(crate) fn copy_tree(from: &Path, to: &Path, pace: &dyn Pace) -> Result<()> {
    let mut copy = Copy {
        pace,
        dirs: Vec::new(),
        made: Vec::new(),
        names: HashMap::new(),
    };
    copy.entry(from, to)?;
    while let Some((from, to)) = copy.dirs.pop() {
        for entry in fs::read_dir(&from).map_err(SnapshotError::io("list", &from))? {
            let name = entry.map_err(SnapshotError::io("list", &from))?.file_name();
            copy.entry(&from.join(&name), &to.join(&name))?;
        }
    }
    // Children first: making an entry changes the time of its directory.
    for (dir, of) in copy.made.iter().rev() {
        set_times(dir, of).map_err(SnapshotError::io("set the times of", dir))?;
    }
    Ok(())
}

struct Copy<'a> {
    pace: &'a dyn Pace,
    /// Directories that are made and not yet filled.
    dirs: Vec<(PathBuf, PathBuf)>,
    made: Vec<(PathBuf, Metadata)>,
    /// The first copy of each file that has several names.
    names: HashMap<(u64, u64), PathBuf>,
}

impl Copy<'_> {
    fn entry(&mut self, from: &Path, to: &Path) -> Result<()> {
        let of = fs::symlink_metadata(from).map_err(SnapshotError::io("look at", from))?;
        if !of.is_dir() && of.nlink() > 1 {
            if let Some(first) = self.names.get(&(of.dev(), of.ino())) {
                return fs::hard_link(first, to).map_err(SnapshotError::io("link", to));
            }
            self.names.insert((of.dev(), of.ino()), to.to_owned());
        }
        if of.is_file() {
            copy_contents(from, to, of.len(), self.pace)?;
        } else {
            make(from, to, &of).map_err(SnapshotError::io("copy", from))?;
        }
        copy_attributes(from, to, &of)
            .map_err(SnapshotError::io("copy the attributes of", from))?;
        if of.is_dir() {
            self.dirs.push((from.to_owned(), to.to_owned()));
            self.made.push((to.to_owned(), of));
            Ok(())
        } else {
            set_times(to, &of).map_err(SnapshotError::io("set the times of", to))
        }
    }
}

fn make(from: &Path, to: &Path, of: &Metadata) -> io::Result<()> {
    let kind = of.file_type();
    if kind.is_dir() {
        fs::create_dir(to)
    } else if kind.is_symlink() {
        symlink(fs::read_link(from)?, to)
    } else {
        let kind = if kind.is_char_device() {
            SFlag::S_IFCHR
        } else if kind.is_block_device() {
            SFlag::S_IFBLK
        } else if kind.is_fifo() {
            SFlag::S_IFIFO
        } else {
            SFlag::S_IFSOCK
        };
        Ok(mknod(to, kind, Mode::empty(), of.rdev())?)
    }
}

/// Copies what is between the holes.
fn copy_contents(from: &Path, to: &Path, len: u64, pace: &dyn Pace) -> Result<()> {
    let failed = |error| SnapshotError::io("copy", from)(error);
    let source = File::open(from).map_err(failed)?;
    let target = File::create_new(to).map_err(failed)?;
    target.set_len(len).map_err(failed)?;
    let mut at = 0;
    while let Some((start, end)) = data_from(&source, at).map_err(failed)? {
        at = start;
        while at < end {
            let next = (end - at).min(CHUNK as u64);
            turn(pace, next)?;
            copy_piece(&source, &target, at, next).map_err(failed)?;
            at += next;
        }
    }
    Ok(())
}

/// Returns where the next data is, and the hole after it.
fn data_from(file: &File, at: u64) -> io::Result<Option<(u64, u64)>> {
    let start = match lseek(
        file,
        i64::try_from(at).map_err(io::Error::other)?,
        Whence::SeekData,
    ) {
        Ok(start) => start,
        Err(Errno::ENXIO) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let end = lseek(file, start, Whence::SeekHole)?;
    Ok(Some((unsigned(start)?, unsigned(end)?)))
}

fn copy_piece(mut from: &File, mut to: &File, at: u64, len: u64) -> io::Result<()> {
    from.seek(SeekFrom::Start(at))?;
    to.seek(SeekFrom::Start(at))?;
    match io::copy(&mut from.take(len), &mut to)? {
        copied if copied == len => Ok(()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

fn unsigned(offset: i64) -> io::Result<u64> {
    u64::try_from(offset).map_err(io::Error::other)
}

/// The owner first: a change of owner takes the set-user-ID bit and the capabilities away.
fn copy_attributes(from: &Path, to: &Path, of: &Metadata) -> io::Result<()> {
    lchown(to, Some(of.uid()), Some(of.gid()))?;
    if !of.is_symlink() {
        fs::set_permissions(to, Permissions::from_mode(of.mode() & 0o7777))?;
    }
    let (from_dir, from_name) = open_parent(from)?;
    let (to_dir, to_name) = open_parent(to)?;
    for name in rawio::xattr::list_at(&from_dir, from_name)?.split_inclusive(|byte| *byte == 0) {
        let attribute = CStr::from_bytes_with_nul(name).map_err(io::Error::other)?;
        let value = rawio::xattr::get_at(&from_dir, from_name, attribute.to_bytes())?;
        if let Some(value) = value {
            rawio::xattr::set_at(&to_dir, to_name, attribute, &value)?;
        }
    }
    Ok(())
}

pub(crate) fn open_parent(path: &Path) -> io::Result<(File, &[u8])> {
    let no_name = || io::Error::from(io::ErrorKind::InvalidInput);
    let dir = path.parent().ok_or_else(no_name)?;
    let name = path.file_name().ok_or_else(no_name)?;
    Ok((File::open(dir)?, name.as_bytes()))
}

fn set_times(path: &Path, of: &Metadata) -> io::Result<()> {
    let accessed = TimeSpec::new(of.atime(), of.atime_nsec());
    let modified = TimeSpec::new(of.mtime(), of.mtime_nsec());
    let flag = UtimensatFlags::NoFollowSymlink;
    Ok(utimensat(AT_FDCWD, path, &accessed, &modified, flag)?)
}
