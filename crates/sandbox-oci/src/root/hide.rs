//! What of a root is not shown, or not to be changed.

use std::fs::File;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;

use nix::errno::Errno;
use rawio::mount::{DetachedMount, Forbids, Scope};

use super::file_system;
use super::place::find;
use crate::error::{Result, at};

/// Makes a path read-only, if it exists.
pub(super) fn make_read_only(root: BorrowedFd<'_>, path: &Path) -> Result<()> {
    let failed = || at("making read-only", path);
    let target = match find(root, path) {
        Ok(target) => target,
        Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(()),
        Err(errno) => return Err(failed()(errno.into())),
    };
    let copy = DetachedMount::copy_tree_of(target.as_fd(), Scope::All).map_err(failed())?;
    copy.set(Forbids::WRITING, Forbids::NOTHING)
        .map_err(failed())?;
    copy.attach(target.as_fd()).map(drop).map_err(failed())
}

/// Masks a path, if it exists: a directory by an empty one, anything else by `/dev/null` of the machine.
pub(super) fn mask(root: BorrowedFd<'_>, path: &Path, null: BorrowedFd<'_>) -> Result<()> {
    let failed = || at("masking", path);
    let target = match find(root, path) {
        Ok(target) => File::from(target),
        Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(()),
        Err(errno) => return Err(failed()(errno.into())),
    };
    let is_dir = target.metadata().map_err(failed())?.is_dir();
    let cover = match is_dir {
        true => {
            let empty = file_system("tmpfs", "tmpfs", &[("size".to_owned(), "4k".to_owned())]);
            let empty = empty.map_err(failed())?;
            empty
                .set(Forbids::WRITING, Forbids::NOTHING)
                .map_err(failed())?;
            empty
        }
        false => DetachedMount::copy_tree_of(null, Scope::One).map_err(failed())?,
    };
    cover.attach(target.as_fd()).map(drop).map_err(failed())
}
