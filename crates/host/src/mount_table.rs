//! The mount table, from `/proc/self/mountinfo` (proc_pid_mountinfo(5)).

mod overlays;

use std::ffi::OsString;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::mount::{MntFlags, umount2};
use nix::sys::stat::Mode;
use nix::sys::statvfs::statvfs;
use nix::unistd::geteuid;
use rawio::mount::mount_id;

pub use overlays::{in_use_below, overlay_on};

/// The file system type of our mounts in the list of mounts.
pub const MOUNT_KIND: &str = "fuse.yolofs";

/// Returns a hint for errors of mounting without the needed rights: the system only reports that
/// `/dev/fuse` cannot be opened.
pub fn needs_root() -> &'static str {
    if geteuid().is_root() {
        ""
    } else {
        " (which needs root)"
    }
}

/// The topmost mount of a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Top {
    /// Its type.
    pub kind: String,
    /// Its source, as the table shows it.
    pub label: String,
}

impl Top {
    /// Returns whether it is a mount of yolofs with this label.
    pub fn is_ours(&self, label: &str) -> bool {
        self.kind == MOUNT_KIND && self.label == label
    }
}

/// Returns the topmost mount at `mountpoint`, if there is one.
///
/// # Errors
/// If the table cannot be read.
pub fn top_at(mountpoint: &Path) -> anyhow::Result<Option<Top>> {
    let table = std::fs::read("/proc/self/mountinfo").context("reading the list of mounts")?;
    Ok(topmost(&table, mountpoint))
}

/// Returns the type of the topmost mount at `mountpoint`, if there is one.
///
/// # Errors
/// If the table cannot be read.
pub fn kind_at(mountpoint: &Path) -> anyhow::Result<Option<String>> {
    Ok(top_at(mountpoint)?.map(|top| top.kind))
}

/// Returns whether something is mounted on a directory: two calls, where the table may have
/// hundreds of lines.
pub fn is_covered(dir: &Path) -> bool {
    let id = |path: &Path| {
        let flags = OFlag::O_PATH | OFlag::O_CLOEXEC;
        let file = open(path, flags, Mode::empty()).ok()?;
        mount_id(file.as_fd()).ok()
    };
    let around = dir.parent().and_then(id);
    // What cannot even be opened is a dead mount.
    around.is_some() && id(dir) != around
}

/// Unmounts the topmost mount at `dir` if it is of yolofs and no process serves it; returns
/// whether there was such a mount.
///
/// # Errors
/// If the table cannot be read, or the system refuses to unmount.
pub fn clear_if_dead(dir: &Path) -> anyhow::Result<bool> {
    // Attributes may be in the kernel's cache; how full the file system is never is.
    let is_dead = || statvfs(dir) == Err(Errno::ENOTCONN);
    if kind_at(dir)?.as_deref() != Some(MOUNT_KIND) || !is_dead() {
        return Ok(false);
    }
    log::warn!("{}: clearing a dead mount", dir.display());
    clear(dir)?;
    Ok(true)
}

/// Returns where mounts of this type lie that show `label` as their source, the last mounted
/// first.
///
/// # Errors
/// If the table cannot be read.
pub fn labelled(kind: &str, label: &str) -> anyhow::Result<Vec<PathBuf>> {
    let table = std::fs::read("/proc/self/mountinfo").context("reading the list of mounts")?;
    Ok(with_label(&table, kind, label))
}

/// Returns where mounts of this type lie, the last mounted first.
///
/// # Errors
/// If the table cannot be read.
pub fn of_kind(kind: &str) -> anyhow::Result<Vec<PathBuf>> {
    let table = std::fs::read("/proc/self/mountinfo").context("reading the list of mounts")?;
    let lines = table.split(|byte| *byte == b'\n').rev().filter_map(parse);
    let of_kind = lines.filter(|line| line.kind == kind);
    Ok(of_kind.map(|line| line.mountpoint).collect())
}

/// Returns where something is mounted in a directory, by its path without symbolic links, the last mounted
/// first.
///
/// # Errors
/// If the table cannot be read.
pub fn mounts_below(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let table = std::fs::read("/proc/self/mountinfo").context("reading the list of mounts")?;
    let lines = table.split(|byte| *byte == b'\n').rev();
    let mounts = lines.filter_map(parse).map(|line| line.mountpoint);
    Ok(mounts.filter(|mount| mount.starts_with(dir)).collect())
}

/// How a directory relates to mounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// A mount is on it.
    Mountpoint,
    /// It is part of a mount with shared propagation.
    InShared,
    /// It is part of a mount with private propagation.
    InPrivate,
}

/// Returns how a directory relates to mounts, by its absolute path without symbolic links.
///
/// # Errors
/// If the table cannot be read.
pub fn standing(dir: &Path) -> anyhow::Result<Standing> {
    let table = std::fs::read("/proc/self/mountinfo").context("reading the list of mounts")?;
    Ok(standing_in(&table, dir))
}

fn standing_in(table: &[u8], dir: &Path) -> Standing {
    let lines = table.split(|byte| *byte == b'\n').filter_map(parse);
    let holding = lines.filter(|line| dir.starts_with(&line.mountpoint));
    // The deepest mount point; of those at the same place the one mounted last.
    let nearest = holding.max_by_key(|line| line.mountpoint.components().count());
    match nearest {
        Some(line) if line.mountpoint == dir => Standing::Mountpoint,
        Some(line) if line.shared => Standing::InShared,
        _ => Standing::InPrivate,
    }
}

fn with_label(table: &[u8], kind: &str, label: &str) -> Vec<PathBuf> {
    let lines = table.split(|byte| *byte == b'\n').rev();
    let lines = lines.filter_map(parse);
    lines
        .filter(|line| line.kind == kind && line.source == label)
        .map(|line| line.mountpoint)
        .collect()
}

/// Unmounts a mount whose daemon was killed, as [`clear`] does. Requests that still wait for the
/// daemon are aborted: if one of the daemon's own threads is among the waiting, its remains, with the
/// device, would exist as long as that thread waits.
///
/// # Errors
/// If the system refuses.
pub fn clear_by_force(mountpoint: &Path) -> anyhow::Result<()> {
    let flags = MntFlags::UMOUNT_NOFOLLOW | MntFlags::MNT_FORCE;
    match umount2(mountpoint, flags) {
        Ok(()) => Ok(()),
        // Its requests are ended all the same.
        Err(_) => clear(mountpoint),
    }
}

/// Unmounts a mount without a daemon. Users with open files there get ENOTCONN already, so a
/// refusal would protect no one.
///
/// # Errors
/// If the system refuses.
pub fn clear(mountpoint: &Path) -> anyhow::Result<()> {
    match umount2(mountpoint, MntFlags::UMOUNT_NOFOLLOW) {
        Err(Errno::EBUSY) => umount2(mountpoint, MntFlags::UMOUNT_NOFOLLOW | MntFlags::MNT_DETACH),
        other => other,
    }
    .context("clearing what its daemon left behind")
}

fn topmost(table: &[u8], mountpoint: &Path) -> Option<Top> {
    let lines = table.split(|byte| *byte == b'\n').rev();
    let mut lines = lines.filter_map(parse);
    let line = lines.find(|line| line.mountpoint == mountpoint)?;
    Some(Top {
        kind: line.kind,
        label: line.source,
    })
}

/// What a line of the table says.
struct Line {
    id: u64,
    /// The id of the parent mount.
    parent: u64,
    mountpoint: PathBuf,
    shared: bool,
    kind: String,
    source: String,
    /// The options of the file system, as written.
    options: Vec<u8>,
}

/// Returns fields 1, 2 and 5 of a line, whether `shared` is among the optional fields behind field 6 and,
/// behind the separator, the fields 1 to 3.
fn parse(line: &[u8]) -> Option<Line> {
    let mut fields = line.split(|byte| *byte == b' ');
    let mut number = || std::str::from_utf8(fields.next()?).ok()?.parse().ok();
    let (id, parent) = (number()?, number()?);
    let mountpoint = unescape(fields.nth(2)?);
    let mut shared = false;
    for optional in fields.by_ref().skip(1).take_while(|field| *field != b"-") {
        shared |= optional.starts_with(b"shared:");
    }
    let text = |field: &[u8]| String::from_utf8_lossy(&unescape(field)).into_owned();
    Some(Line {
        id,
        parent,
        mountpoint: PathBuf::from(OsString::from_vec(mountpoint)),
        shared,
        kind: text(fields.next()?),
        source: text(fields.next()?),
        options: fields.next().unwrap_or_default().to_vec(),
    })
}

/// Space, tab, newline and backslash are written as three octal digits behind a backslash.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let digits = tail
            .get(..3)
            .and_then(|digits| std::str::from_utf8(digits).ok());
        let code = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match (first, code) {
            (b'\\', Some(byte)) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"\
21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
40 21 0:30 / /mnt/a\\040b ro - fuse.yolofs /srv ro,user_id=0\n\
41 40 0:31 / /mnt/a\\040b rw master:3 propagate_from:2 - tmpfs tmpfs rw\n";

    #[test]
    fn the_last_line_of_a_place_is_on_top() {
        let kind = |place| topmost(TABLE, Path::new(place)).map(|top| top.kind);
        assert_eq!(kind("/mnt/a b").as_deref(), Some("tmpfs"));
        assert_eq!(kind("/").as_deref(), Some("ext4"));
        assert_eq!(kind("/mnt"), None);
    }

    #[test]
    fn mounts_are_found_by_their_label() {
        let found = |kind, label| with_label(TABLE, kind, label);
        assert_eq!(found("fuse.yolofs", "/srv"), [Path::new("/mnt/a b")]);
        assert!(found("fuse.yolofs", "tmpfs").is_empty());
        assert!(found("tmpfs", "/srv").is_empty());
    }

    #[test]
    fn a_directory_stands_in_the_deepest_mount_or_is_one() {
        let table = [TABLE, b"50 21 0:40 / /srv rw - ext4 /dev/vdb rw\n"].concat();
        let stands = |dir| standing_in(&table, Path::new(dir));
        assert_eq!(stands("/var/lib/docker"), Standing::InShared);
        assert_eq!(stands("/srv/docker"), Standing::InPrivate);
        assert_eq!(stands("/srv"), Standing::Mountpoint);
        assert_eq!(stands("/srvx"), Standing::InShared);
        // Only `shared` counts: a slave's own changes stay its own.
        assert_eq!(stands("/mnt/a b/c"), Standing::InPrivate);
    }

    #[test]
    fn escapes_are_octal() {
        assert_eq!(unescape(b"a\\134\\012\\"), b"a\\\n\\");
    }

    #[test]
    fn finds_proc() {
        assert_eq!(
            kind_at(Path::new("/proc")).unwrap().as_deref(),
            Some("proc")
        );
        assert!(is_covered(Path::new("/proc")));
        assert!(!is_covered(Path::new("/proc/self/fd")));
    }
}
