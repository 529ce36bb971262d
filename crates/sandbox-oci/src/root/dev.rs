//! What every container has in `/dev`, and what its specification adds.

use std::fs::File;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open};
use nix::sys::stat::{Mode, SFlag, fstatat, makedev, mknodat, umask};
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchownat, symlinkat, unlinkat};

use super::place::{Shape, place};
use crate::error::{Result, at, invalid};
use crate::plan::devices::{Kind, Node};

/// Devices that every container has.
const DEVICES: &[(&str, u64, u64)] = &[
    ("/dev/null", 1, 3),
    ("/dev/zero", 1, 5),
    ("/dev/full", 1, 7),
    ("/dev/tty", 5, 0),
    ("/dev/random", 1, 8),
    ("/dev/urandom", 1, 9),
];

/// Links that every container has.
const LINKS: &[(&str, &str)] = &[
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
];

/// Opens the machine's `/dev/null`, before anything of the container can be in its place.
pub(super) fn null() -> Result<OwnedFd> {
    let path = "/dev/null";
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let null = open(path, flags, Mode::empty()).map_err(at("opening", path))?;
    let null = File::from(null);
    let found = null.metadata().map_err(at("reading", path))?;
    match found.file_type().is_char_device() && found.rdev() == makedev(1, 3) {
        true => Ok(null.into()),
        false => invalid("/dev/null of the machine is something else"),
    }
}

/// Makes the nodes and the links.
pub(super) fn fill(root: BorrowedFd<'_>, more: &[Node]) -> Result<()> {
    let common = DEVICES.iter().map(|(path, major, minor)| Node {
        path: PathBuf::from(path),
        kind: Some(Kind::Character),
        major: *major,
        minor: *minor,
        mode: 0o666,
        uid: 0,
        gid: 0,
    });
    // A node's mode is what was asked for.
    let before = umask(Mode::empty());
    let mut made = Ok(());
    for node in common.chain(more.iter().cloned()) {
        made = made.and_then(|()| make_node(root, &node));
    }
    let _ours = umask(before);
    made?;
    let dev = place(root, Path::new("/dev"), Shape::Directory)?;
    for (name, to) in LINKS {
        // An image may have one of its own: it keeps it, but for the one that leads to its terminals.
        if *name == "ptmx" {
            let _none = unlinkat(&dev, *name, UnlinkatFlags::NoRemoveDir);
        }
        match symlinkat(*to, &dev, *name) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(errno) => return Err(at("linking", Path::new("/dev").join(name))(errno)),
        }
    }
    Ok(())
}

fn make_node(root: BorrowedFd<'_>, node: &Node) -> Result<()> {
    let (Some(parent), Some(name)) = (node.path.parent(), node.path.file_name()) else {
        return invalid(format!("{} is no place for a device", node.path.display()));
    };
    let failed = || at("making the device", &node.path);
    let dir = place(root, parent, Shape::Directory)?;
    let kind = match node.kind {
        Some(Kind::Character) => SFlag::S_IFCHR,
        Some(Kind::Block) => SFlag::S_IFBLK,
        None => SFlag::S_IFIFO,
    };
    let numbers = match node.kind {
        Some(_) => makedev(node.major, node.minor),
        None => 0,
    };
    match mknodat(
        &dir,
        name,
        kind,
        Mode::from_bits_truncate(node.mode),
        numbers,
    ) {
        Ok(()) => {}
        Err(Errno::EEXIST) => {
            // What is there must be the same device, and nothing that only looks like it.
            let found =
                fstatat(dir.as_fd(), name, AtFlags::AT_SYMLINK_NOFOLLOW).map_err(failed())?;
            let is_kind = SFlag::from_bits_truncate(found.st_mode & SFlag::S_IFMT.bits()) == kind;
            if !is_kind || found.st_rdev != numbers {
                return invalid(format!(
                    "{} of the image is something else",
                    node.path.display()
                ));
            }
        }
        Err(errno) => return Err(failed()(errno)),
    }
    let (uid, gid) = (Uid::from_raw(node.uid), Gid::from_raw(node.gid));
    let flags = AtFlags::AT_SYMLINK_NOFOLLOW;
    fchownat(&dir, name, Some(uid), Some(gid), flags).map_err(failed())
}
