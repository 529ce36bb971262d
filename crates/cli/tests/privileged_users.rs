//! Who may do what on a mount: the same as on the source, but that no file makes anybody more
//! than they are.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod lab;

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use lab::{Lab, ok, output};

/// A user: number, group, and a further group.
const USERS: [(u32, u32, u32); 4] = [
    (0, 0, 0),
    (1000, 1000, 1000),
    (1001, 1001, 1000),
    (1002, 1002, 1002),
];

/// Runs a program as a user.
fn by(user: (u32, u32, u32), program: &Path, args: &[&Path]) -> Command {
    let (uid, gid, further) = user;
    let mut command = Command::new("setpriv");
    command
        .arg(format!("--reuid={uid}"))
        .arg(format!("--regid={gid}"))
        .arg(format!("--groups={further}"))
        .arg("--")
        .arg(program)
        .args(args);
    command
}

/// A lab that users other than root can get to.
fn open_lab() -> Lab {
    let lab = Lab::new();
    fs::set_permissions(lab.path("."), Permissions::from_mode(0o755)).unwrap();
    lab
}

fn put(path: &Path, mode: u32, owner: (u32, u32)) {
    if !path.exists() {
        fs::write(path, "#!/bin/sh\n").unwrap();
    }
    // Changing the owner takes set-user-id bits away.
    chown(path, Some(owner.0), Some(owner.1)).unwrap();
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[test]
fn privileged_every_user_may_do_what_the_source_allows() {
    let lab = open_lab();
    let root = lab.make_dir("root");
    fs::set_permissions(&root, Permissions::from_mode(0o755)).unwrap();
    let mut files: Vec<PathBuf> = Vec::new();
    for dir_mode in [0o755, 0o711, 0o750, 0o700] {
        let dir = PathBuf::from(format!("dir{dir_mode:o}"));
        fs::create_dir(root.join(&dir)).unwrap();
        for mode in [
            0o644, 0o755, 0o640, 0o750, 0o600, 0o700, 0o004, 0o060, 0o000,
        ] {
            let file = dir.join(format!("file{mode:03o}"));
            put(&root.join(&file), mode, (1000, 1000));
            files.push(file);
        }
        put(&root.join(&dir), dir_mode, (1000, 1000));
        files.push(dir);
    }
    let mountpoint = lab.mount(&root, "mnt", &[]);
    // For each user one process that looks at all files: reading, executing, listing.
    let script = lab.path("look");
    fs::write(
        &script,
        "cd $1; shift\nfor f; do for a in r x; do test -$a $f && echo $a $f; done\n\
         test -f $f && cat $f > /dev/null 2>&1 && echo cat $f\n\
         test -d $f && ls $f > /dev/null 2>&1 && echo ls $f; done; true\n",
    )
    .unwrap();
    for user in USERS {
        let look = |place: &Path| {
            let mut args = vec![script.as_path(), place];
            args.extend(files.iter().map(PathBuf::as_path));
            ok(&mut by(user, Path::new("/bin/sh"), &args))
        };
        let (want, got) = (look(&root), look(&mountpoint));
        assert_eq!(got, want, "{user:?}");
        assert!(!got.is_empty());
    }
    // Nobody changes anything, whatever the mode.
    let file = mountpoint.join("dir755/file755");
    for user in USERS {
        let touched = output(&mut by(user, Path::new("/bin/touch"), &[&file]));
        assert!(!touched.status.success(), "{user:?}");
    }
}

#[test]
fn privileged_a_set_user_id_program_makes_nobody_root_unless_that_is_asked_for() {
    let lab = open_lab();
    let root = lab.make_dir("root");
    fs::copy("/usr/bin/id", root.join("id")).unwrap();
    put(&root.join("id"), 0o4755, (0, 0));
    let nobody = (65534, 65534, 65534);
    let id = |place: &Path| ok(&mut by(nobody, &place.join("id"), &[Path::new("-u")]));
    // What is tested can be seen here.
    assert_eq!(id(&root), "0\n");

    let mountpoint = lab.mount(&root, "mnt", &[]);
    assert_eq!(id(&mountpoint), "65534\n");
    // In a container, below an overlay, it is the overlay that decides.
    let merged = lab.make_dir("merged");
    let over = lab.make_dir("over");
    // Not every file system that a test may run on can be an upper layer.
    ok(Command::new("mount")
        .args(["-t", "tmpfs", "tmpfs"])
        .arg(&over));
    let options = format!(
        "lowerdir={},upperdir={},workdir={}",
        mountpoint.display(),
        lab.make_dir("over/upper").display(),
        lab.make_dir("over/work").display()
    );
    ok(Command::new("mount")
        .args(["-t", "overlay", "overlay", "-o", &options])
        .arg(&merged));
    assert_eq!(id(&merged), "0\n");
    ok(Command::new("umount").arg(&merged));
    ok(Command::new("umount").arg(&over));
    lab.umount(&mountpoint);

    let mountpoint = lab.mount(&root, "mnt", &["--suid-dev"]);
    assert_eq!(id(&mountpoint), "0\n");
    lab.umount(&mountpoint);
}

#[test]
fn privileged_access_lists_are_shown_and_not_enforced() {
    let lab = open_lab();
    let root = lab.make_dir("root");
    fs::set_permissions(&root, Permissions::from_mode(0o755)).unwrap();
    put(&root.join("file"), 0o600, (0, 0));
    // Version 2, then tag, rights and number of each: the owner reads and writes, user 1000 reads,
    // the group and others nothing, and reading is the most that any of these may be given.
    let entries: [(u16, u16, u32); 5] = [
        (0x01, 6, u32::MAX),
        (0x02, 4, 1000),
        (0x04, 0, u32::MAX),
        (0x10, 4, u32::MAX),
        (0x20, 0, u32::MAX),
    ];
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, rights, number) in entries {
        list.extend(tag.to_le_bytes());
        list.extend(rights.to_le_bytes());
        list.extend(number.to_le_bytes());
    }
    let dir = File::open(&root).unwrap();
    rawio::xattr::set_at(&dir, b"file", c"system.posix_acl_access", &list).unwrap();
    let mountpoint = lab.mount(&root, "mnt", &[]);
    let reads = |place: &Path| {
        let file = place.join("file");
        let cat = output(&mut by(USERS[1], Path::new("/bin/cat"), &[&file]));
        cat.status.success()
    };
    assert!(reads(&root));
    assert!(!reads(&mountpoint));
    let dir = File::open(&mountpoint).unwrap();
    let shown = rawio::xattr::get_at(&dir, b"file", b"system.posix_acl_access").unwrap();
    assert_eq!(shown.unwrap(), list);
}
