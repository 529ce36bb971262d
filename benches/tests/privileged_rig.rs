//! The rig does what it says to the disk, and leaves nothing behind.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use benches::container::Container;
use benches::contention::Contention;
use benches::namespace;
use benches::process::run_ok;
use benches::stage::{Access, Stage};
use benches::throttle::Throttle;
use tempfile::TempDir;

const LONG: Duration = Duration::from_secs(60);
/// Far below what any disk does, and enough for fio to start within seconds.
const IOPS: u32 = 100;

/// A small stage with a file of 1 MiB on it, in a mount namespace of the test's own.
fn stage() -> (TempDir, Stage) {
    assert!(
        nix::unistd::geteuid().is_root(),
        "this test mounts file systems: run it as root"
    );
    namespace::enter().unwrap();
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (tree, image, at) = (
        dir.path().join("tree"),
        dir.path().join("image"),
        dir.path().join("at"),
    );
    fs::create_dir(&tree).unwrap();
    fs::create_dir(&at).unwrap();
    fs::write(tree.join("file"), vec![7; 1 << 20]).unwrap();
    let mut make = Command::new("mkfs.ext4");
    make.args(["-q", "-F", "-b", "4096", "-d"])
        .args([&tree, &image])
        .arg("16M");
    run_ok(make, LONG).unwrap();
    let stage = Stage::mount(&image, &at, Access::ReadOnly).unwrap();
    (dir, stage)
}

fn group_of(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap()
}

#[test]
fn privileged_reads_are_counted_and_the_device_goes_with_the_mount() {
    let (_dir, stage) = stage();
    let before = stage.reads().unwrap();
    assert_eq!(
        fs::read(stage.path().join("file")).unwrap(),
        vec![7; 1 << 20]
    );
    let read = stage.reads().unwrap().since(before);
    assert!(read.requests > 0 && read.bytes >= 1 << 20, "{read:?}");
    // A second read comes from the page cache.
    let before = stage.reads().unwrap();
    assert_eq!(fs::read(stage.path().join("file")).unwrap().len(), 1 << 20);
    assert_eq!(stage.reads().unwrap().since(before).requests, 0);
    assert!(
        fs::write(stage.path().join("new"), "").is_err(),
        "the stage is writable"
    );
    let backing = Path::new("/sys/block")
        .join(stage.device().file_name().unwrap())
        .join("loop/backing_file");
    assert!(backing.exists());
    drop(stage);
    benches::process::wait_for("end of the loop device", LONG, || {
        Ok((!backing.exists()).then_some(()))
    })
    .unwrap();
}

#[test]
fn privileged_a_slow_disk_is_slow_for_the_group_only_and_the_group_goes() {
    let (_dir, stage) = stage();
    let home = group_of(std::process::id());
    let throttle = Throttle::new(&stage.device_number().unwrap(), IOPS).unwrap();
    let stay = throttle.stay().unwrap();
    let inside = group_of(std::process::id());
    assert!(inside.contains("yolofs-rig."), "{inside}");
    let mut contention = Contention::start(&stage).unwrap();
    assert!(contention.reads().unwrap().requests > 0);
    drop(contention);
    drop(stay);
    assert_eq!(group_of(std::process::id()), home);
    drop(throttle);
    let name = format!("yolofs-rig.{}", std::process::id());
    let mut find = Command::new("find");
    find.args(["/sys/fs/cgroup", "-maxdepth", "3", "-name", &name]);
    assert_eq!(run_ok(find, LONG).unwrap().output, "");
}

#[test]
fn privileged_a_container_sees_the_tree_and_writes_elsewhere() {
    let (dir, stage) = stage();
    let scratch = dir.path().join("scratch");
    fs::create_dir(&scratch).unwrap();
    let root = Path::new("/"); // whose programs the container runs
    let container = Container::prepare(root, &scratch).unwrap();
    container
        .boot(&[
            "/bin/sh",
            "-c",
            "test -e /bin/sh && echo x > /yolofs-rig-wrote-this",
        ])
        .unwrap();
    assert!(!root.join("yolofs-rig-wrote-this").exists());
    let error = container.boot(&["/bin/false"]).unwrap_err();
    assert!(format!("{error:#}").contains("failed"), "{error:#}");
    drop((container, stage));
    assert_eq!(
        fs::read_dir(&scratch).unwrap().count(),
        0,
        "something is still mounted"
    );
}
