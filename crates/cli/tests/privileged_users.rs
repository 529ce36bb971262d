//! Who may do what on a mount: the same as on the source, but that no file makes anybody more
//! than they are.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use lab::{Lab, ok, output, until};

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

/// Nobody in particular: a user who owns nothing.
const NOBODY: (u32, u32, u32) = (65534, 65534, 65534);

/// What the file says before anything happens to it, and what nobody but root may know.
const PUBLIC: &[u8] = b"for everybody\n";
const SECRET: &[u8] = b"a secret of root\n";

/// A file that all may read, in a directory, and a neighbour with an access list and an attribute, so
/// that the kernel goes by such.
fn with_public_file(lab: &Lab) -> PathBuf {
    let root = lab.make_dir("root");
    fs::create_dir(root.join("dir")).unwrap();
    fs::set_permissions(&root, Permissions::from_mode(0o755)).unwrap();
    fs::write(root.join("dir/file"), PUBLIC).unwrap();
    put(&root.join("dir/file"), 0o644, (0, 0));
    put(&root.join("listed"), 0o644, (0, 0));
    give_list(&root, "listed", (1000, 4), (4, 4));
    root
}

/// Puts another file in the place of one, as a package manager does; `prepare` says whose it is.
fn replace(path: &Path, prepare: impl Fn(&Path)) {
    let new = path.with_extension("new");
    fs::write(&new, SECRET).unwrap();
    put(&new, 0o644, (0, 0));
    prepare(&new);
    fs::rename(&new, path).unwrap();
}

fn set_attribute(path: &Path, name: &std::ffi::CStr, value: &[u8]) {
    let dir = File::open(path.parent().unwrap()).unwrap();
    let file = std::os::unix::ffi::OsStrExt::as_bytes(path.file_name().unwrap());
    rawio::xattr::set_at(&dir, file, name, value).unwrap();
}

/// `CAP_NET_RAW`, permitted and effective, as in `vfs_ns_cap_data` of version 2.
const CAPABILITY: [u8; 20] = [
    1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
];

type Change = fn(&Path);

/// What may become of the file, so that somebody may do less with it than before.
const REVOCATIONS: [(&str, Change); 12] = [
    ("replaced by one of root only", |file| {
        replace(file, |new| put(new, 0o600, (0, 0)));
    }),
    ("replaced by one of another group", |file| {
        replace(file, |new| put(new, 0o640, (0, 1000)));
    }),
    ("replaced by one of another owner", |file| {
        replace(file, |new| put(new, 0o644, (1000, 0)));
    }),
    ("written after a chmod", |file| {
        put(file, 0o600, (0, 0));
        fs::write(file, SECRET).unwrap();
    }),
    ("written before a chmod", |file| {
        fs::write(file, SECRET).unwrap();
        put(file, 0o600, (0, 0));
    }),
    ("written after a chown", |file| {
        put(file, 0o600, (1000, 1000));
        fs::write(file, SECRET).unwrap();
    }),
    ("replaced by one that denies a user", |file| {
        replace(file, |new| {
            let name = new.file_name().unwrap().to_str().unwrap();
            give_list(new.parent().unwrap(), name, (NOBODY.0, 0), (4, 4));
        });
    }),
    ("written after a list that denies a user", |file| {
        give_list(file.parent().unwrap(), "file", (NOBODY.0, 0), (4, 4));
        fs::write(file, SECRET).unwrap();
    }),
    ("replaced by one with a capability", |file| {
        replace(file, |new| {
            set_attribute(new, c"security.capability", &CAPABILITY);
        });
    }),
    ("replaced by a set-user-id program", |file| {
        replace(file, |new| put(new, 0o4644, (0, 0)));
    }),
    ("replaced in a directory of root only", |file| {
        fs::set_permissions(file.parent().unwrap(), Permissions::from_mode(0o700)).unwrap();
        replace(file, |_| ());
    }),
    ("replaced by a directory", |file| {
        fs::remove_file(file).unwrap();
        fs::create_dir(file).unwrap();
        fs::write(file.join("inside"), SECRET).unwrap();
    }),
];

/// What a user gets of a file.
fn cat(user: (u32, u32, u32), file: &Path) -> Vec<u8> {
    output(&mut by(user, Path::new("/bin/cat"), &[file])).stdout
}

/// Asks the kernel, which goes by the attributes that it has, and reads nothing.
fn assert_readable(user: (u32, u32, u32), file: &Path) {
    ok(&mut by(
        user,
        Path::new("/usr/bin/test"),
        &[Path::new("-r"), file],
    ));
}

/// What was opened before, by whatever rights, gives: the bytes or an error number.
fn again(open: &File) -> Result<Vec<u8>, i32> {
    let mut bytes = vec![0; 100];
    let read = open.read_at(&mut bytes, 0);
    let len = read.map_err(|error| error.raw_os_error().unwrap())?;
    bytes.truncate(len);
    Ok(bytes)
}

/// The mount goes on to show the old attributes. So nobody may see the new bytes, neither who opens
/// the file now nor who has it open.
#[test]
fn privileged_content_that_is_not_for_all_is_given_to_nobody_who_goes_by_old_rights() {
    for (name, change) in REVOCATIONS {
        for mode in ["lower", "disk"] {
            println!("{name}, {mode}:");
            let lab = open_lab();
            let root = with_public_file(&lab);
            let mountpoint = lab.mount(&root, "mnt", &["--mode", mode]);
            let (file, there) = (mountpoint.join("dir/file"), root.join("dir/file"));
            // The kernel knows attributes and lists, and has no byte.
            assert_eq!(cat(NOBODY, &mountpoint.join("listed")), b"#!/bin/sh\n");
            let open = File::open(&file).unwrap();
            assert_readable(NOBODY, &file);
            change(&there);
            for _ in 0..3 {
                for user in [NOBODY, USERS[1], USERS[0]] {
                    assert_eq!(cat(user, &file), b"");
                }
                // A file that is passed through is open as it would be in the source.
                if mode == "lower" {
                    let errno = again(&open).unwrap_err();
                    assert!(
                        [nix::libc::ESTALE, nix::libc::ENOENT].contains(&errno),
                        "{errno}"
                    );
                } else if !name.starts_with("written") {
                    assert_ne!(again(&open), Ok(SECRET.to_vec()));
                }
            }
            drop(open);
            lab.umount(&mountpoint);
            // A mount that was made afterwards says what the source says.
            let mountpoint = lab.mount(&root, "mnt2", &["--mode", mode]);
            for user in [NOBODY, USERS[1], USERS[0]] {
                let here = mountpoint.join("dir/file");
                assert_eq!(cat(user, &here), cat(user, &there), "{user:?}");
            }
        }
    }
}

/// Where attributes hold for an hour, the kernel goes by the old ones for as long, and whoever opened
/// the file in that time even longer.
#[test]
fn privileged_content_that_is_not_for_all_is_given_to_nobody_before_the_kernel_knows() {
    for (name, change) in REVOCATIONS {
        // What is in a directory is found by the names that the kernel has, for an hour.
        if name.contains("directory of root") {
            continue;
        }
        println!("{name}:");
        let lab = open_lab();
        let root = with_public_file(&lab);
        let mountpoint = lab.mount(&root, "mnt", &["--revalidate", "3600"]);
        let (file, there) = (mountpoint.join("dir/file"), root.join("dir/file"));
        assert_eq!(cat(NOBODY, &mountpoint.join("listed")), b"#!/bin/sh\n");
        let open = File::open(&file).unwrap();
        assert_readable(NOBODY, &file);
        change(&there);
        // May user 65534 read it? Then there is nothing to hide, and only the old file is gone.
        let secret = cat(NOBODY, &there).is_empty();
        for _ in 0..3 {
            if secret {
                assert_ne!(cat(NOBODY, &file), SECRET);
            }
            assert_ne!(again(&open), Ok(SECRET.to_vec()));
        }
        // Long before the hour is over, root reads what is there.
        let want = cat(USERS[0], &there);
        let in_place = name.starts_with("written");
        if in_place {
            until("the kernel's forgetting the old rights", || {
                cat(USERS[0], &file) == want
            });
            assert_eq!(cat(NOBODY, &file), b"");
            assert_ne!(again(&open), Ok(SECRET.to_vec()));
        }
        drop(open);
        lab.umount(&mountpoint);
    }
}

#[test]
fn privileged_content_for_the_same_users_is_followed_with_its_attributes() {
    let changes: [(&str, Change); 3] = [
        ("replaced", |file| replace(file, |_| ())),
        ("written, with one name more", |file| {
            fs::hard_link(file, file.with_extension("link")).unwrap();
            fs::write(file, SECRET).unwrap();
        }),
        ("replaced by one for more", |file| {
            replace(file, |new| put(new, 0o755, (0, 0)));
        }),
    ];
    for (name, change) in changes {
        for flags in [&[][..], &["--revalidate", "0"]] {
            let lab = open_lab();
            let root = with_public_file(&lab);
            let mountpoint = lab.mount(&root, "mnt", flags);
            let (file, there) = (mountpoint.join("dir/file"), root.join("dir/file"));
            assert_eq!(fs::metadata(&file).unwrap().nlink(), 1);
            change(&there);
            println!("{name} {flags:?}:");
            until("the new version", || cat(NOBODY, &file) == SECRET);
            let same = |a: fs::Metadata, b: fs::Metadata| {
                (a.mode(), a.nlink(), a.size(), a.ctime_nsec(), a.blocks())
                    == (b.mode(), b.nlink(), b.size(), b.ctime_nsec(), b.blocks())
            };
            until("its attributes", || {
                same(fs::metadata(&file).unwrap(), fs::metadata(&there).unwrap())
            });
            lab.umount(&mountpoint);
        }
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

type Parting = fn(&Path);

/// Names of one file that part while it is mounted: what is done to them in the source.
const PARTINGS: [(&str, Parting); 4] = [
    ("the private name is replaced", |root| {
        replace(&root.join("private/file"), |_| ());
    }),
    (
        "the public name is replaced, the private one written to",
        |root| {
            replace(&root.join("public/file"), another);
            fs::write(root.join("private/file"), SECRET).unwrap();
        },
    ),
    (
        "the public name is removed, the private one written to",
        |root| {
            fs::remove_file(root.join("public/file")).unwrap();
            fs::write(root.join("private/file"), SECRET).unwrap();
        },
    ),
    ("both are replaced", |root| {
        replace(&root.join("private/file"), |_| ());
        replace(&root.join("public/file"), another);
    }),
];

fn another(path: &Path) {
    fs::write(path, b"another\n").unwrap();
}

/// A file with a name for everybody and one for root: what root puts in the place of the one, or
/// writes to the other, is not for everybody.
#[test]
fn privileged_what_a_private_name_leads_to_is_not_given_by_a_public_one() {
    for (name, change) in PARTINGS {
        for mode in ["lower", "disk"] {
            println!("{name}, {mode}:");
            let lab = open_lab();
            let root = lab.make_dir("root");
            for (dir, dir_mode) in [(".", 0o755), ("private", 0o700), ("public", 0o755)] {
                let dir = lab.make_dir(&format!("root/{dir}"));
                fs::set_permissions(dir, Permissions::from_mode(dir_mode)).unwrap();
            }
            put(&root.join("private/file"), 0o644, (0, 0));
            fs::hard_link(root.join("private/file"), root.join("public/file")).unwrap();
            let mountpoint = lab.mount(&root, "mnt", &["--mode", mode]);
            change(&root);
            for _ in 0..3 {
                let read = cat(NOBODY, &mountpoint.join("public/file"));
                assert_ne!(read, SECRET);
                let allowed: [&[u8]; 2] = [b"#!/bin/sh\n", b""];
                assert!(allowed.contains(&&*read), "{}", read.escape_ascii());
            }
            if name == PARTINGS[0].0 {
                // The other name leads to what it always did.
                let read = cat(NOBODY, &mountpoint.join("public/file"));
                assert_eq!(read, b"#!/bin/sh\n");
            }
            lab.umount(&mountpoint);
        }
    }
}
