//! What containerd's own test-suite asks of a snapshotter, with real mounts over a real socket.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod node;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::Path;

use node::{Mounted, Node, assert_code};
use snapshotter::{FastPlace, PlainLowers, UpperConfig, WhenFull};
use tonic::Code;

/// Path to what a person would compare: type and mode, owner, contents.
type Contents = BTreeMap<String, (u32, u32, u32, Vec<u8>)>;

fn contents(root: &Path) -> Contents {
    let mut all = Contents::new();
    let mut dirs = vec![root.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let of = fs::symlink_metadata(&path).unwrap();
            let bytes = if of.is_file() {
                fs::read(&path).unwrap()
            } else if of.is_symlink() {
                fs::read_link(&path)
                    .unwrap()
                    .into_os_string()
                    .into_encoded_bytes()
            } else {
                Vec::new()
            };
            if of.is_dir() {
                dirs.push(path.clone());
            }
            let name = path.strip_prefix(root).unwrap().display().to_string();
            all.insert(name, (of.mode(), of.uid(), of.gid(), bytes));
        }
    }
    all
}

fn write(root: &Path, name: &str, text: &str, mode: u32) {
    let path = root.join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
}

fn mkdir(root: &Path, name: &str) {
    let path = root.join(name);
    fs::create_dir(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
}

/// Does each change to a layer of its own and to one flat directory; after each the two must look
/// the same, before and after the commit.
fn stacks_as_flat(changes: &[fn(&Path)]) {
    let node = Node::start();
    let flat = node.place("flat");
    let mut parent = String::new();
    for (number, change) in changes.iter().enumerate() {
        let key = format!("active-{number}");
        let mounts = node.prepare(&key, &parent, &[]).unwrap();
        let mounted = Mounted::at(&mounts, &node.place(&key), &node.root());
        assert_eq!(
            contents(mounted.path()),
            contents(&flat),
            "before change {number}"
        );
        change(mounted.path());
        change(&flat);
        assert_eq!(
            contents(mounted.path()),
            contents(&flat),
            "after change {number}"
        );
        drop(mounted);
        parent = format!("layer-{number}");
        node.commit(&parent, &key, &[]).unwrap();
    }
    let mounts = node.view("view", &parent, &[]).unwrap();
    let mounted = Mounted::at(&mounts, &node.place("view"), &node.root());
    assert_eq!(contents(mounted.path()), contents(&flat), "all of them");
}

#[test]
fn privileged_files_change_from_layer_to_layer() {
    stacks_as_flat(&[
        |root| {
            mkdir(root, "etc");
            write(root, "etc/hosts", "mydomain 10.0.0.1", 0o644);
            write(root, "etc/profile", "PATH=/usr/bin", 0o644);
        },
        |root| {
            write(root, "etc/hosts", "mydomain 10.0.0.2", 0o644);
            write(root, "etc/profile", "PATH=/usr/bin", 0o666);
            mkdir(root, "root");
            write(root, "root/.bashrc", "PATH=/usr/sbin", 0o644);
        },
    ]);
}

#[test]
fn privileged_a_directory_made_again_hides_the_one_below() {
    stacks_as_flat(&[
        |root| {
            mkdir(root, "lib");
            write(root, "lib/hidden", "", 0o644);
        },
        |root| {
            fs::remove_dir_all(root.join("lib")).unwrap();
            mkdir(root, "lib");
            write(root, "lib/not-hidden", "", 0o644);
        },
        |root| write(root, "lib/new", "", 0o644),
    ]);
}

#[test]
fn privileged_owners_and_modes_survive_commits() {
    stacks_as_flat(&[
        |root| {
            for dir in ["a", "b", "c", "d", "d/e"] {
                mkdir(root, dir);
            }
            write(root, "d/e/file", "hello", 0o644);
            chown(root.join("a"), Some(1), Some(1)).unwrap();
            symlink("d/e", root.join("link")).unwrap();
        },
        |root| {
            chown(root.join("a"), Some(0), Some(0)).unwrap();
            for path in ["d", "d/e", "d/e/file"] {
                chown(root.join(path), Some(1), Some(2)).unwrap();
            }
            fs::remove_dir(root.join("b")).unwrap();
        },
        |root| {
            mkdir(root, "b");
            chown(root.join("b"), Some(1), Some(1)).unwrap();
            fs::remove_dir_all(root.join("d")).unwrap();
            mkdir(root, "d");
        },
    ]);
}

#[test]
fn privileged_files_move_and_go() {
    stacks_as_flat(&[
        |root| {
            mkdir(root, "dir1");
            write(root, "dir1/f1", "Hello", 0o644);
            mkdir(root, "dir2");
            write(root, "dir2/f2", "...", 0o644);
        },
        |root| {
            mkdir(root, "dir3");
            write(root, "dir3/f1", "Hello", 0o644);
            fs::remove_dir_all(root.join("dir1")).unwrap();
            fs::hard_link(root.join("dir2/f2"), root.join("dir3/f2")).unwrap();
            fs::remove_file(root.join("dir2/f2")).unwrap();
        },
    ]);
}

#[test]
fn privileged_parents_of_parents_are_seen() {
    let node = Node::start();
    node.layer("a", "", |root| write(root, "foo", "foo", 0o644));
    node.layer("b", "a", |root| write(root, "bar", "bar", 0o644));
    node.layer("c", "b", |root| write(root, "foo", "new", 0o644));
    assert_code(node.remove("a"), Code::FailedPrecondition);
    let mounts = node.view("v", "c", &[]).unwrap();
    let mounted = Mounted::at(&mounts, &node.place("v"), &node.root());
    assert_eq!(
        fs::read_to_string(mounted.path().join("foo")).unwrap(),
        "new"
    );
    assert_eq!(
        fs::read_to_string(mounted.path().join("bar")).unwrap(),
        "bar"
    );
    drop(mounted);
    for key in ["v", "c", "b", "a"] {
        node.remove(key).unwrap();
    }
}

#[test]
fn privileged_views_are_read_only() {
    let node = Node::start();
    node.layer("one", "", |root| write(root, "f", "f", 0o644));
    node.layer("two", "one", |root| write(root, "g", "g", 0o644));
    for parent in ["", "one", "two"] {
        let key = format!("view-{parent}");
        let mounts = node.view(&key, parent, &[]).unwrap();
        let mounted = Mounted::at(&mounts, &node.place(&key), &node.root());
        let written = fs::write(mounted.path().join("new"), "x").unwrap_err();
        assert_eq!(written.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    }
}

#[test]
fn privileged_the_root_is_0755_and_keeps_its_owner() {
    let node = Node::start();
    node.layer("mine", "", |root| {
        assert_eq!(fs::metadata(root).unwrap().mode() & 0o7777, 0o755);
        chown(root, Some(12), Some(34)).unwrap();
    });
    let mounts = node.prepare("a", "mine", &[]).unwrap();
    let mounted = Mounted::at(&mounts, &node.place("a"), &node.root());
    let of = fs::metadata(mounted.path()).unwrap();
    assert_eq!((of.mode() & 0o7777, of.uid(), of.gid()), (0o755, 12, 34));
}

#[test]
fn privileged_128_layers_mount() {
    let node = Node::start();
    let mut parent = String::new();
    for layer in 0..128 {
        let name = format!("layer-{layer}");
        let mounts = node.prepare("tmp", &parent, &[]).unwrap();
        // The layer's own directory, without 128 mounts: what counts is the last one.
        let upper = match mounts[0].r#type.as_str() {
            "bind" => mounts[0].source.clone(),
            _ => option(&mounts[0].options, "upperdir="),
        };
        let upper = Path::new(&upper);
        write(upper, "overwritten", &layer.to_string(), 0o644);
        write(upper, &format!("file-{layer}"), "same", 0o644);
        node.commit(&name, "tmp", &[]).unwrap();
        parent = name;
    }
    let mounts = node.view("v", &parent, &[]).unwrap();
    let lowers = option(&mounts[0].options, "lowerdir=");
    assert_eq!(lowers.split(':').count(), 128);
    let mounted = Mounted::at(&mounts, &node.place("v"), &node.root());
    assert_eq!(contents(mounted.path()).len(), 129);
    let overwritten = fs::read_to_string(mounted.path().join("overwritten")).unwrap();
    assert_eq!(overwritten, "127");
}

fn option(options: &[String], name: &str) -> String {
    let value = options.iter().find_map(|option| option.strip_prefix(name));
    value.expect("is an option of the overlay").to_owned()
}

fn tmpfs(max_bytes: u64, when_full: WhenFull) -> Option<UpperConfig> {
    Some(UpperConfig {
        place: FastPlace::Tmpfs,
        max_bytes,
        when_full,
    })
}

#[test]
fn privileged_uppers_live_on_the_tier_and_layers_on_the_disk() {
    let mut node = Node::stopped();
    node.serve(tmpfs(8 << 20, WhenFull::Refuse), PlainLowers);
    let unpacked = node.prepare("ns/1/extract-1", "", &[]).unwrap();
    assert!(
        unpacked[0].source.contains("/root/snapshots/"),
        "{unpacked:?}"
    );
    node.commit("base", "ns/1/extract-1", &[]).unwrap();
    let mounts = node.prepare("web", "base", &[]).unwrap();
    let upper = option(&mounts[0].options, "upperdir=");
    assert!(upper.contains("/root/upper/"), "{upper}");
    let mounted = Mounted::at(&mounts, &node.place("web"), &node.root());
    let root = mounted.path().to_owned();
    write(&root, "file", "text", 0o4755);
    fs::hard_link(root.join("file"), root.join("name")).unwrap();
    symlink("file", root.join("link")).unwrap();
    fs::File::create(root.join("hole"))
        .unwrap()
        .set_len(1 << 30)
        .unwrap();
    let before = {
        let mut all = contents(&root);
        // Its contents are a GiB of zeros.
        all.remove("hole");
        all
    };
    drop(mounted);
    node.commit("layer", "web", &[]).unwrap();
    let (_, bytes) = node.usage("layer").unwrap();
    assert!(bytes < 1 << 20, "holes stay holes: {bytes}");
    node.cleanup();
    let left = fs::read_dir(node.root().join("upper/snapshots"))
        .unwrap()
        .count();
    assert_eq!(left, 0, "the tier is free again");
    let mounts = node.view("v", "layer", &[]).unwrap();
    let mounted = Mounted::at(&mounts, &node.place("v"), &node.root());
    let mut after = contents(mounted.path());
    after.remove("hole");
    assert_eq!(after, before);
    let name = fs::metadata(mounted.path().join("name")).unwrap();
    assert_eq!(name.nlink(), 2);
}

#[test]
fn privileged_a_full_tier_refuses_or_spills() {
    let mut node = Node::stopped();
    node.serve(tmpfs(1 << 20, WhenFull::Refuse), PlainLowers);
    let mounts = node.prepare("a", "", &[]).unwrap();
    fs::write(Path::new(&mounts[0].source).join("big"), vec![1; 1_000_000]).unwrap();
    let words = assert_code(node.prepare("b", "", &[]), Code::ResourceExhausted);
    assert!(words.contains("full"), "{words}");
    node.stop();
    node.serve(tmpfs(1 << 20, WhenFull::Spill), PlainLowers);
    assert_eq!(
        node.mounts("a").unwrap(),
        mounts,
        "a restart keeps the tmpfs"
    );
    let spilled = node.prepare("b", "", &[]).unwrap();
    assert!(
        spilled[0].source.contains("/root/snapshots/"),
        "{spilled:?}"
    );
    node.remove("a").unwrap();
    node.cleanup();
    let fast = node.prepare("c", "", &[]).unwrap();
    assert!(fast[0].source.contains("/root/upper/"), "{fast:?}");
}

#[test]
fn privileged_a_tier_lost_in_a_reboot_is_never_served_empty() {
    let mut node = Node::stopped();
    node.serve(tmpfs(1 << 20, WhenFull::Refuse), PlainLowers);
    node.prepare("tmp", "", &[("containerd.io/snapshot.ref", "x")])
        .unwrap();
    node.commit("base", "tmp", &[]).unwrap();
    node.prepare("web", "base", &[]).unwrap();
    node.stop();
    let unmounted = std::process::Command::new("umount")
        .arg(node.root().join("upper"))
        .status()
        .unwrap();
    assert!(unmounted.success());
    node.serve(tmpfs(1 << 20, WhenFull::Refuse), PlainLowers);
    let words = assert_code(node.mounts("web"), Code::FailedPrecondition);
    assert!(words.contains("lost"), "{words}");
    assert_code(node.commit("layer", "web", &[]), Code::FailedPrecondition);
    node.remove("web").unwrap();
    node.prepare("web", "base", &[]).unwrap();
}

#[test]
fn privileged_a_full_disk_is_said_and_survived() {
    let mut node = Node::stopped();
    let root = node.place("root");
    let disk = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=3m", "tmpfs"])
        .arg(&root)
        .status()
        .unwrap();
    assert!(disk.success());
    node.serve(None, PlainLowers);
    node.prepare("tmp", "", &[]).unwrap();
    node.commit("base", "tmp", &[]).unwrap();
    let mounts = node.prepare("a", "base", &[]).unwrap();
    let ballast = option(&mounts[0].options, "upperdir=") + "/ballast";
    let full = fs::File::create(&ballast)
        .and_then(|mut file| std::io::copy(&mut std::io::repeat(1), &mut file));
    assert_eq!(full.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    // Until the metadata needs one more page.
    let refused = (0..10_000).find_map(|n| node.prepare(&format!("more-{n}"), "base", &[]).err());
    let refused = refused.expect("a full disk refuses");
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    let all = node.list(&["name~=/^(base|a)$/"]).unwrap();
    assert_eq!(all.len(), 2, "what was there is there");
    fs::remove_file(&ballast).unwrap();
    node.prepare("after", "base", &[]).unwrap();
    node.stop();
    node.serve(None, PlainLowers);
    node.mounts("after").unwrap();
    node.stop();
    let unmounted = std::process::Command::new("umount").arg(&root).status();
    assert!(unmounted.unwrap().success());
}

#[test]
fn privileged_deletions_survive_the_way_from_the_tier() {
    let mut node = Node::stopped();
    node.serve(tmpfs(8 << 20, WhenFull::Refuse), PlainLowers);
    node.layer("base", "", |root| {
        mkdir(root, "kept");
        write(root, "kept/below", "below", 0o644);
        write(root, "gone", "gone", 0o644);
        write(root, "capable", "runs", 0o755);
    });
    let mounts = node.prepare("web", "base", &[]).unwrap();
    let mounted = Mounted::at(&mounts, &node.place("web"), &node.root());
    let root = mounted.path();
    // A whiteout, an opaque directory, and an attribute.
    fs::remove_file(root.join("gone")).unwrap();
    fs::remove_dir_all(root.join("kept")).unwrap();
    mkdir(root, "kept");
    write(root, "kept/above", "above", 0o600);
    let noted = fs::File::open(root).unwrap();
    rawio::xattr::set_at(&noted, b"capable", c"user.note", b"value").unwrap();
    drop(noted);
    let before = contents(root);
    drop(mounted);
    node.commit("layer", "web", &[]).unwrap();
    let mounts = node.view("v", "layer", &[]).unwrap();
    let mounted = Mounted::at(&mounts, &node.place("v"), &node.root());
    assert_eq!(contents(mounted.path()), before);
    assert!(!mounted.path().join("gone").exists());
    let noted = fs::File::open(mounted.path()).unwrap();
    let value = rawio::xattr::get_at(&noted, b"capable", b"user.note");
    assert_eq!(value.unwrap().as_deref(), Some(b"value".as_slice()));
    drop(noted);
}

#[test]
fn privileged_of_commits_at_once_one_wins_and_its_layer_is_whole() {
    let mut node = Node::stopped();
    node.serve(tmpfs(8 << 20, WhenFull::Refuse), PlainLowers);
    for round in 0..10 {
        let key = format!("active-{round}");
        let mounts = node.prepare(&key, "", &[]).unwrap();
        for file in 0..50 {
            write(
                Path::new(&mounts[0].source),
                &format!("file-{file}"),
                "x",
                0o644,
            );
        }
        let committed = std::thread::scope(|scope| {
            let (node, key) = (&node, &key);
            let threads = [1, 2, 3, 4].map(|n| {
                scope.spawn(move || node.commit(&format!("layer-{round}-{n}"), key, &[]).is_ok())
            });
            threads.map(|thread| thread.join().unwrap())
        });
        assert_eq!(
            committed.iter().filter(|won| **won).count(),
            1,
            "{committed:?}"
        );
        let winner = committed.iter().position(|won| *won).unwrap() + 1;
        node.cleanup();
        let view = format!("view-{round}");
        let mounts = node
            .view(&view, &format!("layer-{round}-{winner}"), &[])
            .unwrap();
        assert_eq!(contents(Path::new(&mounts[0].source)).len(), 50);
    }
}
