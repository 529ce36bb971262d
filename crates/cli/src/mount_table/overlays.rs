//! Overlays that have a mount below them. To the kernel they are no users of it: it lets the mount
//! go, and they keep the file system.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use super::{Line, parse, unescape};
use crate::run_dir::MOUNT_KIND;

/// Returns where an overlay is mounted that has the mount of ours at `mountpoint` below it, as far as
/// the list of mounts tells: it has the paths that the overlay was given.
///
/// # Errors
/// If the list cannot be read.
pub(crate) fn overlay_on(mountpoint: &Path) -> anyhow::Result<Option<PathBuf>> {
    let table = std::fs::read("/proc/self/mountinfo").context("reading the list of mounts")?;
    Ok(overlay_in(&table, mountpoint))
}

/// Says that a mount is not unmounted because of an overlay.
pub(crate) fn in_use_below(mountpoint: &Path, overlay: &Path) -> String {
    format!(
        "{} is in use: the overlay on {} has it below (--lazy detaches it all the same)",
        mountpoint.display(),
        overlay.display()
    )
}

fn overlay_in(table: &[u8], mountpoint: &Path) -> Option<PathBuf> {
    let lines = table.split(|byte| *byte == b'\n').filter_map(parse);
    let lines: Vec<Line> = lines.collect();
    let ours = |line: &Line| line.kind == MOUNT_KIND && line.mountpoint == mountpoint;
    let ours = lines.iter().rposition(ours)?;
    // The list is in the order in which things were mounted: an overlay that is older has what was
    // there before.
    let mut later = lines.into_iter().skip(ours + 1);
    let has_it = |lower: &PathBuf| lower.starts_with(mountpoint);
    let overlay =
        later.find(|line| line.kind == "overlay" && lowers(&line.options).iter().any(has_it));
    overlay.map(|line| line.mountpoint)
}

/// Returns the lower directories of an overlay: `lowerdir=A:B`, or `lowerdir+=A` and `datadir+=A` for
/// each. The table writes backslashes and commas as octal digits; a colon in a path has a backslash
/// before it.
fn lowers(options: &[u8]) -> Vec<PathBuf> {
    let mut lowers = Vec::new();
    for option in options.split(|byte| *byte == b',') {
        let value = |name: &[u8]| option.strip_prefix(name).map(unescape);
        if let Some(stack) = value(b"lowerdir=") {
            lowers.extend(split(&stack));
        }
        for name in [&b"lowerdir+="[..], b"datadir+="] {
            lowers.extend(value(name).map(path));
        }
    }
    lowers
}

/// Takes a stack apart at its colons.
fn split(stack: &[u8]) -> Vec<PathBuf> {
    let (mut parts, mut part) = (Vec::new(), Vec::new());
    let mut bytes = stack.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b':' => parts.push(std::mem::take(&mut part)),
            b'\\' => part.extend(bytes.next()),
            byte => part.push(*byte),
        }
    }
    parts.push(part);
    // Two colons stand before directories with data only.
    parts.retain(|part| !part.is_empty());
    parts.into_iter().map(path).collect()
}

fn path(bytes: Vec<u8>) -> PathBuf {
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"\
30 21 0:30 / /old rw - overlay overlay rw,lowerdir=/mnt/a,upperdir=/u\n\
40 21 0:31 / /mnt/a ro - fuse.yolofs /srv ro,user_id=0\n\
41 21 0:32 / /mnt/b\\040c ro - fuse.yolofs /srv ro,user_id=0\n\
42 21 0:33 / /new rw - overlay overlay rw,lowerdir=/x:/mnt/a/usr,upperdir=/u,workdir=/w\n\
43 21 0:34 / /plus rw - overlay overlay rw,lowerdir+=/mnt/b\\040c,datadir+=/d\n\
44 21 0:35 / /mnt/d ro - fuse.yolofs /srv ro,user_id=0\n\
45 21 0:36 / /mnt/ab ro - fuse.yolofs /srv ro,user_id=0\n";

    #[test]
    fn only_overlays_that_are_younger_and_name_the_mount_count() {
        let on = |mountpoint: &str| overlay_in(TABLE, Path::new(mountpoint));
        assert_eq!(on("/mnt/a").as_deref(), Some(Path::new("/new")));
        assert_eq!(on("/mnt/b c").as_deref(), Some(Path::new("/plus")));
        assert_eq!(on("/mnt/d"), None);
        assert_eq!(on("/mnt/ab"), None);
        // None of ours.
        assert_eq!(on("/x"), None);
    }

    #[test]
    fn colons_and_backslashes_in_paths_are_no_ends() {
        let stack = br"rw,lowerdir=/a\134:b:/c\054d::/e\134\134";
        let found = ["/a:b", "/c,d", "/e\\"].map(PathBuf::from);
        assert_eq!(lowers(stack), found);
    }
}
