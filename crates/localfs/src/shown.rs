//! Which entries of a directory on the disk are shown by look-ups.

use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};

use blocks::{Attr, NAME_MAX, NodeKind};
use nix::unistd::{Whence, lseek};
use rawio::dents::Lister;
use rawio::stat::{Stat, stat_at};

use crate::attr::attr_of;
use crate::open::gone;

/// Cursors at the end of a directory are the largest that a file offset can be (ext4, btrfs,
/// tmpfs). A file system above us counts `.` and `..` in and must have room for them.
const CURSOR_END: u64 = i64::MAX as u64 - 16;

/// Returns whether anything in a directory can have this name.
pub(crate) fn is_name(name: &[u8]) -> bool {
    let special = matches!(name, b"" | b"." | b"..");
    !special && name.len() <= NAME_MAX && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
}

/// Returns the attributes of `name` in `dir`, if it exists and is shown: directories on which
/// another mount than `mount` is are shown (as empty), files that are mount points are not.
pub(crate) fn stat_shown(
    dir: impl AsFd,
    name: &[u8],
    mount: Option<u64>,
) -> io::Result<Option<(Stat, Attr)>> {
    let stat = match stat_at(dir, name) {
        Ok(stat) => stat,
        Err(error) => return absent(error),
    };
    let attr = attr_of(&stat).filter(|attr| stat.mount == mount || attr.kind == NodeKind::Dir);
    Ok(attr.map(|attr| (stat, attr)))
}

/// Shows the names in an open directory from `cursor` on, each with the cursor behind it, until
/// `visit` breaks. Neither `.` nor `..` is among them.
pub(crate) fn list_names<E>(
    dir: &OwnedFd,
    cursor: u64,
    failed: impl Fn(io::Error) -> E,
    mut visit: impl FnMut(&[u8], u64) -> Result<ControlFlow<()>, E>,
) -> Result<(), E> {
    if cursor >= CURSOR_END {
        return Ok(());
    }
    let from = i64::try_from(cursor).unwrap_or(i64::MAX);
    lseek(dir, from, Whence::SeekSet).map_err(|errno| failed(errno.into()))?;
    let mut lister = Lister::new();
    loop {
        let entries = lister.next(dir).map_err(&failed)?;
        if entries.is_empty() {
            return Ok(());
        }
        for entry in entries.filter(|entry| !matches!(entry.name, b"." | b"..")) {
            if visit(entry.name, entry.next.min(CURSOR_END))?.is_break() {
                return Ok(());
            }
        }
    }
}

/// Turns the error of a missing file into `None`.
pub(crate) fn absent<T>(error: io::Error) -> io::Result<Option<T>> {
    let error = gone(error);
    if error.kind() == io::ErrorKind::NotFound {
        Ok(None)
    } else {
        Err(error)
    }
}
