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

/// Gives a file of a directory an access list (acl(5)): one user has these rights, the group and
/// others have these.
fn give_list(dir: &Path, name: &str, (user, rights): (u32, u16), (group, others): (u16, u16)) {
    // Version 2, then tag, rights and number of each, and the most that a list may give.
    let entries: [(u16, u16, u32); 5] = [
        (0x01, 7, u32::MAX),
        (0x02, rights, user),
        (0x04, group, u32::MAX),
        (0x10, 7, u32::MAX),
        (0x20, others, u32::MAX),
    ];
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, rights, number) in entries {
        list.extend(tag.to_le_bytes());
        list.extend(rights.to_le_bytes());
        list.extend(number.to_le_bytes());
    }
    let dir = File::open(dir).unwrap();
    rawio::xattr::set_at(&dir, name.as_bytes(), ACCESS_LIST, &list).unwrap();
}

const ACCESS_LIST: &std::ffi::CStr = c"system.posix_acl_access";

/// A tree in which the lists of two files and a directory say the opposite of what modes say.
fn with_lists(root: &Path) {
    fs::set_permissions(root, Permissions::from_mode(0o755)).unwrap();
    for name in ["given", "denied", "plain"] {
        put(&root.join(name), 0o600, (0, 0));
    }
    fs::create_dir(root.join("dir")).unwrap();
    put(&root.join("dir/file"), 0o644, (0, 0));
    give_list(root, "given", (1000, 4), (0, 0));
    give_list(root, "denied", (1001, 0), (4, 4));
    give_list(root, "dir", (1000, 0), (5, 5));
}

/// What each user may read of it.
fn read_of_lists(place: &Path) -> Vec<Vec<bool>> {
    let files = ["given", "denied", "plain", "dir/file"];
    let reads = |user, file: &&str| {
        let file = place.join(file);
        let cat = output(&mut by(user, Path::new("/bin/cat"), &[&file]));
        cat.status.success()
    };
    let by_user = |user| files.iter().map(|file| reads(user, file)).collect();
    USERS.map(by_user).to_vec()
}

#[test]
fn privileged_access_lists_count() {
    let lab = open_lab();
    let root = lab.make_dir("root");
    with_lists(&root);
    let want = read_of_lists(&root);
    // What is tested can be seen here.
    assert_eq!(
        want[1],
        [true, true, false, false],
        "the lists are not kept"
    );
    assert_eq!(want[2], [false, false, false, true]);

    for flags in [&[][..], &["--revalidate", "1"]] {
        let mountpoint = lab.mount(&root, "mnt", flags);
        assert_eq!(read_of_lists(&mountpoint), want, "{flags:?}");
        let list = |dir: &Path| {
            let dir = File::open(dir).unwrap();
            rawio::xattr::get_at(&dir, b"given", ACCESS_LIST.to_bytes()).unwrap()
        };
        assert_eq!(list(&mountpoint), list(&root));
        lab.umount(&mountpoint);
    }
}

#[test]
fn privileged_access_lists_cost_nothing_where_there_are_none() {
    let lab = open_lab();
    let root = lab.make_dir("root");
    fs::set_permissions(&root, Permissions::from_mode(0o755)).unwrap();
    put(&root.join("file"), 0o644, (0, 0));
    let dir = File::open(&root).unwrap();
    rawio::xattr::set_at(&dir, b"file", c"user.note", b"seen").unwrap();
    let mountpoint = lab.mount(&root, "mnt", &[]);
    for _ in 0..3 {
        assert!(
            read_of_lists(&mountpoint)
                .iter()
                .flatten()
                .all(|read| !read)
        );
        ok(&mut by(
            USERS[1],
            Path::new("/bin/cat"),
            &[&mountpoint.join("file")],
        ));
    }
    let asked = &lab.status(&mountpoint)["served"]["requests"]["getxattr"];
    assert_eq!(asked.as_u64().unwrap_or(0), 0, "{asked}");
}
