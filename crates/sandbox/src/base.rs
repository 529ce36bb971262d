//! The root of sandboxes: directories of a base, read-only, in a mount namespace that has nothing
//! else.
//!
//! A thread makes a mount namespace for itself, builds the root there and makes it the root of the
//! namespace, so that the machine's own root is not in it. A sandbox is a process that the thread
//! starts with a copy of this namespace, or in one that was made in advance. That makes three things cheap or unnecessary: the copy has
//! some ten mounts, whatever the machine has; no sandbox changes its root; and nothing has to be
//! unmounted, since a sandbox's mounts end with its last process, even if the daemon has died before
//! that.

use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nix::unistd::{chdir, pivot_root};
use rawio::mount::{DetachedMount, Forbids, MountContext};

use crate::error::{Result, SandboxError, at, step};

/// The directories of a root that a base does not fill: sandboxes get their own, or an empty one.
const EMPTY: &[&str] = &[
    "boot", "dev", "home", "media", "mnt", "proc", "root", "run", "srv", "sys", "tmp",
];

/// Where the files of a request are mounted.
pub const PLACES: &[&str] = &["code", "packages", "scratch"];

/// Top-level directories that a base may have: a root has some twenty.
const ENTRIES_MAX: usize = 128;

/// What every mount of a base forbids. A base whose directories are writable for others stays as it is.
const FORBIDS: Forbids = Forbids::WRITING
    .and(Forbids::PRIVILEGES)
    .and(Forbids::DEVICES);

/// A directory that sandboxes have as their root.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct BaseSpec {
    /// Its name.
    pub name: String,
    /// The directory: an unpacked image, a mount of yolofs, or `/`.
    pub root: PathBuf,
    /// Names at its top that sandboxes see as empty directories.
    #[serde(default)]
    pub hide: Vec<String>,
}

/// Devices that every program may count on: name, major and minor number.
const DEVICES: &[(&str, u64, u64)] = &[
    ("null", 1, 3),
    ("zero", 1, 5),
    ("full", 1, 7),
    ("random", 1, 8),
    ("urandom", 1, 9),
];

/// What else is in `/dev`, and where it leads. Shared memory of a sandbox is as large as its `/tmp`.
const DEV_LINKS: &[(&str, &str)] = &[
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("shm", "/tmp"),
];

/// One name at the top of a base.
#[derive(Debug, PartialEq, Eq)]
enum Entry {
    /// A directory that is shown as it is.
    Shown(OsString),
    /// A directory without its content.
    Empty(OsString),
    /// A symbolic link.
    Link(OsString, PathBuf),
}

/// Moves the calling thread into a mount namespace whose root is the base, and returns the
/// namespace. `aside` is any directory; nothing is left in it.
///
/// # Errors
/// If the base cannot be read or mounted.
pub(crate) fn enter(spec: &BaseSpec, aside: &Path) -> Result<File> {
    unshare(CloneFlags::CLONE_NEWNS).map_err(step("making a namespace of mounts"))?;
    let namespace = "/proc/thread-self/ns/mnt";
    let namespace = File::open(namespace).map_err(at("opening", namespace))?;
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(None::<&str>, "/", None::<&str>, private, None::<&str>)
        .map_err(step("making mounts private"))?;
    let entries = entries_of(spec)?;
    // Descriptors first: what is mounted below may cover their paths.
    let mut shown = Vec::new();
    for entry in &entries {
        if let Entry::Shown(name) = entry {
            let path = spec.root.join(name);
            let dir = File::open(&path).map_err(at("opening", &path))?;
            let copy = DetachedMount::copy_of(dir.as_fd()).map_err(at("mounting", &path))?;
            copy.forbid(FORBIDS).map_err(at("mounting", &path))?;
            shown.push((name, copy));
        }
    }
    let root = attach_root(aside)?;
    chdir(aside).map_err(at("entering", aside))?;
    for entry in &entries {
        make_entry(entry)?;
    }
    for name in EMPTY.iter().chain(PLACES) {
        make_dir(Path::new(name))?;
    }
    for (name, copy) in shown {
        let place = File::open(name).map_err(at("opening", name))?;
        copy.attach(place.as_fd()).map_err(at("mounting", name))?;
    }
    make_dev()?;
    root.forbid(FORBIDS).map_err(step("closing the new root"))?;
    pivot_root(".", ".").map_err(step("changing the root"))?;
    umount2(".", MntFlags::MNT_DETACH).map_err(step("leaving the old root"))?;
    chdir("/").map_err(step("entering the new root"))?;
    Ok(namespace)
}

/// Moves the calling thread into the namespace of a base that another thread has made.
pub(crate) fn join(namespace: &File) -> Result<()> {
    let doing = "entering the namespace of a base";
    // Which needs a root and a directory that no other thread shares.
    unshare(CloneFlags::CLONE_FS).map_err(step(doing))?;
    setns(namespace, CloneFlags::CLONE_NEWNS).map_err(step(doing))
}

/// Mounts an empty file system over `aside`, and returns what can change the mount.
fn attach_root(aside: &Path) -> Result<DetachedMount> {
    let made = MountContext::open(c"tmpfs").and_then(|context| {
        context.set(c"mode", b"755")?;
        context.set(c"size", b"1m")?; // names only
        context.mount_writable()
    });
    let made = made.map_err(step("making a root"))?;
    let place = File::open(aside).map_err(at("opening", aside))?;
    let root = made.attach(place.as_fd()).map_err(at("mounting", aside))?;
    Ok(DetachedMount::from(root))
}

/// Returns what is at the top of a base, and how it is shown.
fn entries_of(spec: &BaseSpec) -> Result<Vec<Entry>> {
    let root = spec.root.as_path();
    let mut entries = Vec::new();
    for entry in fs::read_dir(root).map_err(at("reading", root))? {
        let entry = entry.map_err(at("reading", root))?;
        let kind = entry.file_type().map_err(at("reading", entry.path()))?;
        let name = entry.file_name();
        let is_ours = |names: &[&str]| names.iter().any(|ours| name == *ours);
        if kind.is_symlink() {
            let to = fs::read_link(entry.path()).map_err(at("reading", entry.path()))?;
            if !is_ours(EMPTY) && !is_ours(PLACES) {
                entries.push(Entry::Link(name, to));
            }
        } else if kind.is_dir() && is_ours(PLACES) {
            return Err(SandboxError::Invalid(format!(
                "the base {} has a directory {}, where files of requests are mounted: choose a root without it",
                root.display(),
                name.to_string_lossy()
            )));
        } else if kind.is_dir() {
            let hidden = spec.hide.iter().any(|hidden| name == **hidden);
            entries.push(match hidden || is_ours(EMPTY) {
                true => Entry::Empty(name),
                false => Entry::Shown(name),
            });
        }
        if entries.len() > ENTRIES_MAX {
            return Err(SandboxError::Invalid(format!(
                "the base {} has more than {ENTRIES_MAX} names at its top: is it the root of a system?",
                root.display()
            )));
        }
    }
    Ok(entries)
}

fn make_entry(entry: &Entry) -> Result<()> {
    match entry {
        Entry::Shown(name) | Entry::Empty(name) => make_dir(Path::new(name)),
        Entry::Link(name, to) => symlink(to, name).map_err(at("making", name)),
    }
}

fn make_dir(path: &Path) -> Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        // Whatever the umask took away.
        Ok(()) => fs::set_permissions(path, Permissions::from_mode(0o755))
            .map_err(at("setting the mode of", path)),
        made => made.map_err(at("making", path)),
    }
}

/// Mounts a `/dev` with the few devices that any program may use. All sandboxes of the base share it.
fn make_dev() -> Result<()> {
    let dev = Path::new("dev");
    let made = MountContext::open(c"tmpfs").and_then(|context| {
        context.set(c"mode", b"755")?;
        context.set(c"size", b"64k")?;
        context.mount_writable()
    });
    let place = File::open(dev).map_err(at("opening", dev))?;
    let mounted = made
        .and_then(|made| made.attach(place.as_fd()))
        .map_err(at("mounting", dev))?;
    for (name, major, minor) in DEVICES {
        let path = dev.join(name);
        let mode = Mode::from_bits_truncate(0o666);
        mknod(&path, SFlag::S_IFCHR, mode, makedev(*major, *minor)).map_err(at("making", &path))?;
        fs::set_permissions(&path, Permissions::from_mode(0o666))
            .map_err(at("setting the mode of", &path))?;
    }
    for (name, to) in DEV_LINKS {
        symlink(to, dev.join(name)).map_err(at("making", dev.join(name)))?;
    }
    let forbids = Forbids::WRITING
        .and(Forbids::PRIVILEGES)
        .and(Forbids::PROGRAMS);
    DetachedMount::from(mounted)
        .forbid(forbids)
        .map_err(at("closing", dev))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(root: &Path) -> BaseSpec {
        BaseSpec {
            name: "test".to_owned(),
            root: root.to_owned(),
            hide: vec!["secret".to_owned()],
        }
    }

    #[test]
    fn a_base_shows_what_has_content_and_only_names_the_rest() {
        let root = tempfile::tempdir().unwrap();
        for name in ["usr", "proc", "tmp", "secret"] {
            fs::create_dir(root.path().join(name)).unwrap();
        }
        symlink("usr/bin", root.path().join("bin")).unwrap();
        symlink("/elsewhere", root.path().join("run")).unwrap();
        fs::write(root.path().join("file"), b"").unwrap();
        let mut entries = entries_of(&spec(root.path())).unwrap();
        entries.sort_by_key(|entry| format!("{entry:?}"));
        let expected = [
            Entry::Empty("proc".into()),
            Entry::Empty("secret".into()),
            Entry::Empty("tmp".into()),
            Entry::Link("bin".into(), "usr/bin".into()),
            Entry::Shown("usr".into()),
        ];
        assert_eq!(entries, expected);
    }

    #[test]
    fn a_base_with_our_own_places_is_refused() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("code")).unwrap();
        let error = entries_of(&spec(root.path())).unwrap_err().to_string();
        assert!(error.contains("has a directory code"), "{error}");
    }
}
