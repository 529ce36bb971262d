//! Overlays that have a mount as a lower layer. The kernel does not count them as users of it: it lets
//! the mount go, and they keep the file system.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Component, Path, PathBuf};

use anyhow::Context as _;

use super::MOUNT_KIND;
use super::{Line, parse, unescape};

/// Symbolic links on one way that are followed, as by the kernel.
const LINKS_MAX: usize = 40;

/// Returns where an overlay is mounted that has our mount at `mountpoint` as a lower layer, as far as
/// the mount table shows: it has the paths that the overlay was given.
///
/// # Errors
/// If the list cannot be read.
pub fn overlay_on(mountpoint: &Path) -> anyhow::Result<Option<PathBuf>> {
    let table = std::fs::read("/proc/self/mountinfo").context("reading the list of mounts")?;
    Ok(overlay_in(&table, mountpoint))
}

/// Returns the message that a mount is not unmounted because of an overlay.
pub fn in_use_below(mountpoint: &Path, overlay: &Path) -> String {
    format!(
        "{} is in use: the overlay on {} has it below (lazy=true detaches it all the same)",
        mountpoint.display(),
        overlay.display()
    )
}

fn overlay_in(table: &[u8], mountpoint: &Path) -> Option<PathBuf> {
    let lines = table.split(|byte| *byte == b'\n').filter_map(parse);
    let lines: Vec<Line> = lines.collect();
    let ours = |line: &Line| line.kind == MOUNT_KIND && line.mountpoint == mountpoint;
    let ours = lines.iter().rposition(ours)?;
    let has_it = |lower: &PathBuf| {
        lower.starts_with(mountpoint) || leads_to(lower, mountpoint, &|dir| is_ours(&lines, dir))
    };
    let is_on_it = |line: &Line| line.kind == "overlay" && lowers(&line.options).iter().any(has_it);
    // An overlay that is older has what was there before.
    let copied = copied(&lines);
    let mut overlays = (0..lines.len()).filter(|at| is_on_it(&lines[*at]));
    let overlay = overlays.find(|at| may_be_younger(&lines, copied, *at, ours))?;
    Some(lines[overlay].mountpoint.clone())
}

fn is_ours(lines: &[Line], dir: &Path) -> bool {
    let ours = |line: &Line| line.kind == MOUNT_KIND && line.mountpoint == dir;
    lines.iter().any(ours)
}

/// Returns whether a path that has symbolic links in it leads to a mount or below it. Nothing is asked of a
/// mount of ours on the way (`is_stop`): whoever serves that may be dead, or wait for its source.
fn leads_to(path: &Path, mountpoint: &Path, is_stop: &dyn Fn(&Path) -> bool) -> bool {
    let mut left: Vec<OsString> = names_of(path);
    let mut at = PathBuf::from("/");
    let mut links = 0;
    while let Some(name) = left.pop() {
        if name == ".." {
            at.pop();
            continue;
        }
        let next = at.join(&name);
        if next == mountpoint {
            return true;
        }
        if is_stop(&next) {
            return false;
        }
        match next.read_link() {
            Ok(target) if links < LINKS_MAX => {
                links += 1;
                if target.is_absolute() {
                    at = PathBuf::from("/");
                }
                left.extend(names_of(&target));
            }
            _ => at = next,
        }
    }
    false
}

/// Returns the names that a path consists of, the last first.
fn names_of(path: &Path) -> Vec<OsString> {
    let parts = path.components().rev();
    let names = parts.filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::Prefix(_) | Component::RootDir | Component::CurDir => None,
    });
    names.collect()
}

/// Returns whether the mount at one place of the list may have been made after that at another.
///
/// The list is in the order in which things were mounted in this namespace. A namespace begins as a copy
/// of another, made from the root on: below each mount come, in the order in which they were mounted
/// there, those that lie on it, each with all that is below it. Of what was copied, only mounts that lie
/// on the same one are in the order in which they were made, and what a mount lies on is older.
fn may_be_younger(lines: &[Line], copied: usize, at: usize, than: usize) -> bool {
    if at > than || than >= copied {
        return at > than;
    }
    let mut below = than;
    while let Some(parent) = (0..below).find(|place| lines[*place].id == lines[below].parent) {
        if parent == at || lines[below].parent == lines[at].parent {
            return false;
        }
        below = parent;
    }
    true
}

/// Returns how many mounts at the beginning of the list may have been there when the namespace was made.
fn copied(lines: &[Line]) -> usize {
    let mut way: Vec<u64> = Vec::new();
    for (place, line) in lines.iter().enumerate() {
        let parent = way.iter().rposition(|id| *id == line.parent);
        match parent {
            Some(parent) => way.truncate(parent + 1),
            None if place > 0 => return place,
            None => {}
        }
        way.push(line.id);
    }
    lines.len()
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
    fn a_lower_directory_may_be_given_by_a_link() {
        use std::os::unix::fs::symlink;
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        for sub in ["mnt", "dead", "way"] {
            std::fs::create_dir(real.join(sub)).unwrap();
        }
        symlink("../mnt/usr", real.join("way/relative")).unwrap();
        symlink(real.join("way"), real.join("whole")).unwrap();
        symlink("round", real.join("round")).unwrap();
        symlink(real.join("dead/x"), real.join("elsewhere")).unwrap();
        let at = real.display();
        let on = |lower: &str| {
            let table = format!(
                "40 21 0:31 / {at}/mnt ro - fuse.yolofs /srv ro\n\
                 41 21 0:32 / {at}/dead ro - fuse.yolofs /srv ro\n\
                 42 21 0:33 / /new rw - overlay overlay rw,lowerdir={at}/{lower},upperdir=/u\n"
            );
            overlay_in(table.as_bytes(), &real.join("mnt")).is_some()
        };
        for lower in ["mnt/a", "way/relative/b", "whole/relative", "way/../mnt"] {
            assert!(on(lower), "{lower}");
        }
        for lower in ["dead/a", "elsewhere/../mnt", "round/a", "way", "none/mnt"] {
            assert!(!on(lower), "{lower}");
        }
    }

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
    fn a_copied_namespace_does_not_tell_which_of_two_mounts_is_older() {
        // What `unshare -m` shows: first all that lies on /work, which was mounted before /mnt/a.
        let table = b"\
20 1 254:0 / / rw - ext4 /dev/vda rw\n\
21 20 0:40 / /work rw - tmpfs tmpfs rw\n\
22 21 0:41 / /work/all rw - overlay overlay rw,lowerdir=/mnt/a\n\
23 20 0:42 / /root rw - overlay overlay rw,lowerdir=/mnt/b\n\
24 20 0:31 / /mnt/a ro - fuse.yolofs /srv ro\n\
25 20 0:32 / /mnt/b ro - fuse.yolofs /srv ro\n";
        let on = |table: &[u8], place: &str| overlay_in(table, Path::new(place));
        assert_eq!(on(table, "/mnt/a").as_deref(), Some(Path::new("/work/all")));
        // Both lie on the root, and are in their order.
        assert_eq!(on(table, "/mnt/b"), None);
        // What was mounted since, out of the order of a copy, is in its own order.
        let since = b"\
27 21 0:43 / /work/new rw - overlay overlay rw,lowerdir=/mnt/b\n\
28 20 0:34 / /mnt/d ro - fuse.yolofs /srv ro\n\
29 21 0:44 / /work/old rw - overlay overlay rw,lowerdir=/mnt/e\n\
30 20 0:35 / /mnt/e ro - fuse.yolofs /srv ro\n";
        let table = [&table[..], since].concat();
        let old = b"31 20 0:36 / /mnt/a ro - fuse.yolofs /srv ro\n";
        assert_eq!(
            on(&table, "/mnt/b").as_deref(),
            Some(Path::new("/work/new"))
        );
        assert_eq!(on(&table, "/mnt/e"), None);
        assert_eq!(on(&[&table[..], old].concat(), "/mnt/a"), None);
    }

    #[test]
    fn colons_and_backslashes_in_paths_are_no_ends() {
        let stack = br"rw,lowerdir=/a\134:b:/c\054d::/e\134\134";
        let found = ["/a:b", "/c,d", "/e\\"].map(PathBuf::from);
        assert_eq!(lowers(stack), found);
    }
}
