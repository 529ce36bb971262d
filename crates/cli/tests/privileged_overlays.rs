//! What overlays want of the file system below them: handles that stay good, numbers that stay the
//! same, attributes that are not there. Each check runs over a mount and over ext4, and what comes
//! out must be the same.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{DirEntryExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use lab::{Lab, ok, output, until};
use rawio::handle::Handle;

/// A file system to lie below an overlay, which can be mounted anew.
struct Below<'a> {
    lab: &'a Lab,
    /// Where ext4 is mounted.
    source: PathBuf,
    served: bool,
    flags: Vec<&'static str>,
}

impl<'a> Below<'a> {
    /// Makes an ext4 of its own with files on it, and serves it if that is asked for.
    fn new(lab: &'a Lab, served: bool, flags: &[&'static str]) -> Self {
        let image = lab.path("ext4.img");
        File::create(&image).unwrap().set_len(16 << 20).unwrap();
        ok(Command::new("mkfs.ext4").arg("-q").arg(&image));
        let below = Self {
            lab,
            source: lab.make_dir("source"),
            served,
            flags: flags.to_vec(),
        };
        below.mount_source();
        let at = |name: &str| below.source.join(name);
        fs::create_dir_all(at("dir/deep")).unwrap();
        for name in ["file", "linked", "dir/deep/file"] {
            fs::write(at(name), name).unwrap();
        }
        fs::hard_link(at("linked"), at("dir/linked too")).unwrap();
        symlink("file", at("symlink")).unwrap();
        if served {
            below.serve();
        }
        below
    }

    fn mount_source(&self) {
        ok(Command::new("mount")
            .args(["-o", "loop"])
            .args([&self.lab.path("ext4.img"), &self.source]));
    }

    fn serve(&self) {
        self.lab.mount(&self.source, "served", &self.flags);
    }

    fn path(&self) -> PathBuf {
        if self.served {
            self.lab.path("served")
        } else {
            self.source.clone()
        }
    }

    fn umount(&self) {
        if self.served {
            self.lab.umount(&self.path());
        }
        unmount(&self.source); // the daemon ends by itself, a moment later
    }

    /// Mounts it anew, after its files were changed by `change`.
    fn again(&self, change: impl FnOnce(&Path)) {
        self.umount();
        self.mount_source();
        change(&self.source);
        if self.served {
            self.serve();
        }
    }
}

/// An overlay on a file system, with an upper directory that outlives it.
struct Overlay<'a> {
    below: &'a Below<'a>,
    options: &'a str,
}

impl<'a> Overlay<'a> {
    fn new(below: &'a Below<'a>, options: &'a str) -> Self {
        let over = below.lab.make_dir("over");
        // Not every file system that a test may run on can be an upper layer.
        ok(Command::new("mount")
            .args(["-t", "tmpfs", "tmpfs"])
            .arg(&over));
        for name in ["over/upper", "over/work", "merged"] {
            below.lab.make_dir(name);
        }
        let overlay = Self { below, options };
        overlay.mount();
        overlay
    }

    fn mount(&self) {
        let lab = self.below.lab;
        let options = format!(
            "lowerdir={},upperdir={},workdir={},{}",
            self.below.path().display(),
            lab.path("over/upper").display(),
            lab.path("over/work").display(),
            self.options
        );
        ok(Command::new("mount")
            .args(["-t", "overlay", "overlay", "-o", &options])
            .arg(lab.path("merged")));
    }

    fn umount(&self) {
        unmount(&self.path(""));
    }

    fn path(&self, name: &str) -> PathBuf {
        self.below.lab.path("merged").join(name)
    }

    /// Mounts the overlay anew.
    fn again(&self) {
        self.umount();
        self.mount();
    }

    /// Mounts what lies below anew, and the overlay on it.
    fn again_over_another_mount(&self) {
        self.umount();
        self.below.again(|_| ());
        self.mount();
    }

    fn end(self) {
        self.umount();
        unmount(&self.below.lab.path("over"));
        self.below.umount();
    }
}

/// Unmounts a file system when nobody has it open any more. A child that another test's thread started has
/// all that this process has open, until it executes its program.
fn unmount(path: &Path) {
    until("nobody has the file system open", || {
        output(Command::new("umount").arg(path)).status.success()
    });
}

/// Has the kernel forget the names and inodes that nobody uses.
fn forget() {
    fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
}

/// Runs a check over ext4 and over a mount of it, and returns what each of them found.
fn over_both<T>(flags: &[&'static str], check: impl Fn(&Below<'_>) -> T) -> [T; 2] {
    [false, true].map(|served| {
        let lab = Lab::new();
        check(&Below::new(&lab, served, flags))
    })
}

/// What is behind a handle: the content of a file, the names in a directory, or the error.
fn behind(handle: &Handle, place: &Path) -> String {
    let opened = handle.open(File::open(place).unwrap());
    let mut file = match opened {
        Ok(fd) => File::from(fd),
        Err(error) => return error.to_string(),
    };
    let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    if file.metadata().unwrap().is_dir() {
        // The kernel has to find the way up to know the path.
        let path = fs::read_link(&link).unwrap();
        let mut names: Vec<_> = fs::read_dir(&link)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .filter(|name| name != "lost+found")
            .collect();
        names.sort();
        return format!("{:?} {names:?}", path.strip_prefix(place).unwrap());
    }
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    text
}

const FILES: [&str; 6] = [
    "",
    "file",
    "dir",
    "dir/deep",
    "dir/deep/file",
    "dir/linked too",
];

#[test]
fn privileged_handles_of_files_stay_good() {
    let [native, ours] = over_both(&[], |below| {
        let handles = FILES.map(|name| Handle::of(&below.path().join(name)).unwrap());
        let mut found = String::new();
        let mut look = |when: &str| {
            for (name, handle) in FILES.iter().zip(&handles) {
                let behind = behind(handle, &below.path());
                writeln!(found, "{when}: {name}: {behind}").unwrap();
            }
        };
        look("at once");
        forget();
        look("forgotten");
        below.again(|_| ());
        look("mounted anew");
        below.umount();
        found
    });
    assert_eq!(ours, native);
    assert_eq!(native.matches("dir/deep/file: dir/deep/file\n").count(), 3);
}

#[test]
fn privileged_a_source_that_changes_gives_no_handles() {
    let lab = Lab::new();
    let root = lab.make_dir("root");
    fs::write(root.join("file"), b"content").unwrap();
    let served = lab.mount(&root, "served", &["--revalidate", "1"]);
    // An overlay is told, and does without; nothing that it promises is broken later.
    let handle = Handle::of(&served.join("file"));
    assert_eq!(
        handle.unwrap_err().raw_os_error(),
        Some(nix::libc::EOPNOTSUPP)
    );
    lab.umount(&served);
}

#[test]
fn privileged_what_is_written_through_a_hard_link_stays_written() {
    let [native, ours] = over_both(&[], |below| {
        let overlay = Overlay::new(below, "index=on");
        let mut found = String::new();
        let mut look = |when: &str| {
            for name in ["linked", "dir/linked too"] {
                let path = overlay.path(name);
                let text = fs::read_to_string(&path).map_err(|error| error.kind());
                let links = fs::metadata(&path).map_or(0, |found| found.nlink());
                writeln!(found, "{when}: {name}: {text:?} {links}").unwrap();
            }
        };
        let append = |name: &str, text: &str| {
            let mut file = OpenOptions::new().append(true).open(overlay.path(name));
            file.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
        };
        look("before");
        append("linked", " one");
        look("written");
        overlay.again();
        look("mounted anew");
        forget();
        append("dir/linked too", " two");
        look("written by the other name");
        overlay.again_over_another_mount();
        look("all mounted anew");
        fs::hard_link(overlay.path("linked"), overlay.path("third")).unwrap();
        fs::remove_file(overlay.path("linked")).unwrap();
        overlay.again_over_another_mount();
        look("one name less, one more");
        overlay.end();
        found
    });
    assert_eq!(ours, native);
    assert!(
        ours.contains("all mounted anew: linked: Ok(\"linked one"),
        "{ours}"
    );
}

/// Says of the numbers and devices of files whether they are as before, and as listings have them.
fn numbers(when: &str, overlay: &Overlay<'_>, before: &[(u64, u64)], found: &mut String) {
    let root = fs::metadata(overlay.path("")).unwrap();
    for (name, before) in NUMBERED.iter().zip(before) {
        let path = overlay.path(name);
        let now = fs::symlink_metadata(&path).unwrap();
        let listed = fs::read_dir(path.parent().unwrap())
            .unwrap()
            .map(|entry| entry.unwrap())
            .find(|entry| Some(entry.file_name().as_os_str()) == path.file_name());
        writeln!(
            found,
            "{when}: {name}: same number {}, one device {}, listed {}",
            now.ino() == before.0,
            now.dev() == root.dev(),
            listed.unwrap().ino() == now.ino()
        )
        .unwrap();
    }
}

const NUMBERED: [&str; 6] = [
    "file",
    "linked",
    "symlink",
    "dir",
    "dir/deep",
    "dir/deep/file",
];

#[test]
fn privileged_inode_numbers_stay_the_same_with_xino() {
    let [native, ours] = over_both(&[], |below| {
        let overlay = Overlay::new(below, "xino=on");
        let before = NUMBERED.map(|name| {
            let found = fs::symlink_metadata(overlay.path(name)).unwrap();
            (found.ino(), found.dev())
        });
        let mut found = String::new();
        let mut look = |when: &str| numbers(when, &overlay, &before, &mut found);
        forget();
        look("forgotten");
        overlay.again_over_another_mount();
        look("all mounted anew");
        for name in ["file", "dir", "dir/deep/file"] {
            fs::set_permissions(overlay.path(name), fs::Permissions::from_mode(0o700)).unwrap();
        }
        look("copied up");
        forget();
        look("copied up and forgotten");
        overlay.again();
        look("copied up and mounted anew");
        overlay.again_over_another_mount();
        look("copied up and all mounted anew");
        overlay.end();
        found
    });
    assert_eq!(ours, native);
    let all = "same number true, one device true, listed true";
    assert!(ours.lines().all(|line| line.ends_with(all)), "{ours}");
}

#[test]
fn privileged_an_overlay_that_is_exported_finds_its_files_again() {
    let [native, ours] = over_both(&[], |below| {
        let overlay = Overlay::new(below, "index=on,nfs_export=on");
        let handles = FILES.map(|name| Handle::of(&overlay.path(name)).unwrap());
        let mut found = String::new();
        let mut look = |when: &str| {
            for (name, handle) in FILES.iter().zip(&handles) {
                let behind = behind(handle, &overlay.path(""));
                writeln!(found, "{when}: {name}: {behind}").unwrap();
            }
        };
        look("at once");
        forget();
        look("forgotten");
        overlay.again_over_another_mount();
        look("mounted anew");
        fs::write(overlay.path("dir/deep/file"), b"dir/deep/file").unwrap();
        fs::write(overlay.path("dir/linked too"), b"other").unwrap();
        fs::rename(overlay.path("file"), overlay.path("dir/moved")).unwrap();
        look("copied up");
        overlay.again_over_another_mount();
        look("copied up and mounted anew");
        overlay.end();
        found
    });
    assert_eq!(ours, native);
    assert_eq!(native.matches("dir/deep/file: dir/deep/file\n").count(), 5);
}

/// What the system says of attributes of files in a directory: lengths, or errors.
fn said_of(place: &Path, names: &[&[u8]]) -> Vec<Result<usize, i32>> {
    let place = File::open(place).unwrap();
    let mut said = Vec::new();
    for file in [&b"file"[..], b"dir", b"dir/deep/file"] {
        let listed = rawio::xattr::names_at(&place, file);
        let values = names
            .iter()
            .map(|name| rawio::xattr::value_at(&place, file, name));
        said.extend(
            std::iter::once(listed)
                .chain(values)
                .map(|said| match said {
                    Ok(bytes) => Ok(bytes.len()),
                    Err(error) => Err(error.raw_os_error().unwrap()),
                }),
        );
    }
    said
}

/// What builders ask of a container's root, and of a layer's directory.
const OF_ROOTS: [&[u8]; 2] = [b"security.capability", b"user.any"];
const OF_LAYERS: [&[u8]; 3] = [
    b"trusted.overlay.opaque",
    b"trusted.overlay.redirect",
    b"security.capability",
];

#[test]
fn privileged_builders_are_told_that_there_are_no_attributes() {
    let [native, ours] = over_both(&["--all-xattrs"], |below| {
        let before = said_of(&below.path(), &OF_LAYERS);
        let overlay = Overlay::new(below, "xino=on");
        let on_top = said_of(&overlay.path(""), &OF_ROOTS);
        let after = said_of(&below.path(), &OF_LAYERS);
        overlay.end();
        [before, on_top, after]
    });
    assert_eq!(ours, native);
    let nothing = Err(nix::libc::ENODATA);
    assert!(
        ours.iter()
            .flatten()
            .all(|said| [Ok(0), nothing].contains(said))
    );
}

#[test]
fn privileged_overlays_ask_for_attributes_once() {
    let asked = |flags: &[&'static str]| {
        let [native, ours] = over_both(flags, |below| {
            let overlay = Overlay::new(below, "xino=on");
            // Each file is looked up, and read.
            let roots = said_of(&overlay.path(""), &[]);
            for name in &FILES[1..] {
                assert!(overlay.path(name).exists());
            }
            let asked = below
                .served
                .then(|| below.lab.requests(&below.path(), "getxattr"));
            overlay.end();
            (roots, asked.unwrap_or(0))
        });
        // Lists are right in any case.
        assert_eq!(ours.0, native.0);
        ours.1
    };
    assert_eq!(asked(&[]), 1);
    // One for each file at least: that is what it costs.
    assert!(asked(&["--all-xattrs"]) >= 3);
}
