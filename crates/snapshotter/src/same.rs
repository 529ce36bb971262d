//! Whether a copy of a tree is the tree.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use crate::copy::open_parent;
use crate::error::{Result, SnapshotError};
use crate::pace::{CHUNK, Pace, turn};

/// Compares everything that a layer holds: names, contents, owners, modes, times and attributes.
pub(crate) fn check_same(one: &Path, other: &Path, pace: &dyn Pace) -> Result<()> {
    let mut pairs = vec![(one.to_owned(), other.to_owned())];
    while let Some((one, other)) = pairs.pop() {
        let failed = |error| SnapshotError::io("compare with its copy", &one)(error);
        let (of, also) = (fs::symlink_metadata(&one), fs::symlink_metadata(&other));
        let (of, also) = (
            of.map_err(failed)?,
            also.map_err(|error| SnapshotError::io("look at", &other)(error))?,
        );
        let mut same = said(&of) == said(&also)
            && attributes(&one).map_err(failed)? == attributes(&other).map_err(failed)?;
        if same && of.is_symlink() {
            same = fs::read_link(&one).map_err(failed)? == fs::read_link(&other).map_err(failed)?;
        } else if same && of.is_file() {
            same = contents(&one, &other, of.len(), pace)?;
        } else if same && of.is_dir() {
            let all = names(&one).map_err(failed)?;
            same = all == names(&other).map_err(failed)?;
            pairs.extend(all.iter().map(|name| (one.join(name), other.join(name))));
        }
        if !same {
            return Err(SnapshotError::NotACopy { path: other });
        }
    }
    Ok(())
}

type Said = ([u32; 3], [u64; 2], [i64; 2]);

/// What is known of a file without reading it. The size of a directory is its file system's affair.
fn said(of: &fs::Metadata) -> Said {
    let size = if of.is_dir() { 0 } else { of.len() };
    let links = if of.is_dir() { 0 } else { of.nlink() };
    let node = if of.is_file() || of.is_dir() || of.is_symlink() {
        0
    } else {
        of.rdev()
    };
    (
        [of.mode(), of.uid(), of.gid()],
        [size + links, node],
        [of.mtime(), of.mtime_nsec()],
    )
}

fn names(dir: &Path) -> io::Result<BTreeSet<OsString>> {
    let entries = fs::read_dir(dir)?;
    entries.map(|entry| Ok(entry?.file_name())).collect()
}

type Attributes = Vec<(Vec<u8>, Option<Vec<u8>>)>;

fn attributes(path: &Path) -> io::Result<Attributes> {
    let (dir, name) = open_parent(path)?;
    let listed = rawio::xattr::list_at(&dir, name)?;
    let mut all = Attributes::new();
    for attribute in listed
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
    {
        let value = rawio::xattr::get_at(&dir, name, attribute)?;
        all.push((attribute.to_vec(), value));
    }
    all.sort();
    Ok(all)
}

fn contents(one: &Path, other: &Path, len: u64, pace: &dyn Pace) -> Result<bool> {
    let open = |path: &Path| File::open(path).map_err(SnapshotError::io("open", path));
    let (a, b) = (open(one)?, open(other)?);
    let (mut left, mut right) = (vec![0; CHUNK], vec![0; CHUNK]);
    let mut at = 0;
    while at < len {
        let next = usize::try_from(len - at).map_or(CHUNK, |rest| rest.min(CHUNK));
        turn(pace, next as u64)?;
        for (file, path, buffer) in [(&a, one, &mut left), (&b, other, &mut right)] {
            let read = file.read_exact_at(&mut buffer[..next], at);
            read.map_err(SnapshotError::io("read", path))?;
        }
        if left[..next] != right[..next] {
            return Ok(false);
        }
        at += next as u64;
    }
    Ok(true)
}
