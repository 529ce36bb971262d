//! The tree of a disk image: one directory with the files of its chain, without others in the same
//! directory.

use std::io;
use std::os::fd::AsFd;

use blocks::{Attr, FileId, TreeParts};
use nix::errno::Errno;
use nix::fcntl::{OFlag, ResolveFlag};
use rawio::stat::{Stat, stat_at};

use super::dir::add_node;
use super::report::ScanReport;
use super::tables::{Tables, identity};
use crate::attr::attr_of;
use crate::open::open_to_read;
use crate::{LocalError, SourceRoot};

/// A directory that all may enter and list.
const ROOT_MODE: u32 = 0o040_755;

/// Returns the tables for a disk image whose chain is `files`, sorted by name.
pub(super) fn scan(
    root: &SourceRoot,
    files: &[Vec<u8>],
) -> Result<(TreeParts, ScanReport), LocalError> {
    let failed = |source| root.scan_failed(source);
    let fd = open_to_read(root, b"", OFlag::O_DIRECTORY, ResolveFlag::empty()).map_err(failed)?;
    let dir = stat_at(&fd, "").map_err(failed)?;
    let stats = files.iter().map(|name| stat_at(&fd, name.as_slice()));
    let stats: Vec<Stat> = stats.collect::<Result<_, _>>().map_err(failed)?;
    let mut tables = Tables::default();
    let mut report = ScanReport::default();
    let attr = root_attr(&dir, &stats).map_err(failed)?;
    tables.add_inode(attr, identity(&dir), b"", &[])?;
    for (name, stat) in files.iter().zip(&stats) {
        match add_node(&mut tables, &fd, name, stat)? {
            Ok((file, reason)) => {
                tables.add_entry(name, file)?;
                if let Some(reason) = reason {
                    report.add(name.to_vec(), reason);
                }
            }
            Err(reason) => report.add(name.to_vec(), reason),
        }
    }
    tables.close_dir(FileId::ROOT, 0)?;
    Ok((tables.parts, report))
}

/// Returns the attributes of the directory that is shown for those of the images in `dir` that
/// are still there.
pub(crate) fn disk_root(dir: impl AsFd, files: &[Vec<u8>]) -> io::Result<Attr> {
    let stats = files
        .iter()
        .map(|name| stat_at(dir.as_fd(), name.as_slice()));
    let here: Vec<Stat> = stats.filter_map(Result::ok).collect();
    root_attr(&stat_at(dir.as_fd(), "")?, &here)
}

/// It is not the directory on the disk, which changes whenever any neighbour of the image does:
/// its times are the latest of the chain.
fn root_attr(dir: &Stat, files: &[Stat]) -> io::Result<Attr> {
    let latest = |time: fn(&Stat) -> (i64, u32)| files.iter().map(time).max().unwrap_or_default();
    let stat = Stat {
        mode: ROOT_MODE,
        nlink: 2,
        uid: 0,
        gid: 0,
        size: 0,
        blocks: 0,
        atime: latest(|file| file.mtime),
        mtime: latest(|file| file.mtime),
        ctime: latest(|file| file.ctime),
        ..*dir
    };
    attr_of(&stat).ok_or_else(|| Errno::ENOTDIR.into())
}
