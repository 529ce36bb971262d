//! Mounts come and go cleanly, whatever ends them.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use lab::{Lab, busybox_root, fails, ok, until};

fn is_mounted(mountpoint: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    mounts
        .lines()
        .any(|line| line.split(' ').nth(1) == mountpoint.to_str())
}

fn daemon_of(lab: &Lab, mountpoint: &Path) -> String {
    lab.status(mountpoint)["pid"].to_string()
}

fn is_running(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // A zombie waits for its parent, which is the test itself: the daemon is gone.
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

fn mounted(lab: &Lab) -> std::path::PathBuf {
    let root = lab.make_dir("root");
    busybox_root(&root);
    lab.mount(&root, "mnt", &[])
}

/// One way to unmount: given the lab, the mount point and the daemon's pid.
type Unmount = fn(&Lab, &Path, &str);

fn run(command: &[&str], argument: &Path) {
    ok(Command::new(command[0]).args(&command[1..]).arg(argument));
}

#[test]
fn privileged_every_way_to_unmount_ends_the_daemon() {
    let ways: [(&str, Unmount); 6] = [
        ("yolofs umount", |lab, mountpoint, _| lab.umount(mountpoint)),
        ("umount", |_, mountpoint, _| run(&["umount"], mountpoint)),
        ("umount -l", |_, mountpoint, _| {
            run(&["umount", "-l"], mountpoint);
        }),
        ("fusermount3 -u", |_, mountpoint, _| {
            run(&["fusermount3", "-u"], mountpoint);
        }),
        ("SIGTERM", |_, _, pid| run(&["kill"], Path::new(pid))),
        ("SIGINT", |_, _, pid| run(&["kill", "-INT"], Path::new(pid))),
    ];
    for (name, unmount) in ways {
        let lab = Lab::new();
        let mountpoint = mounted(&lab);
        let pid = daemon_of(&lab, &mountpoint);
        assert!(is_mounted(&mountpoint));
        unmount(&lab, &mountpoint, &pid);
        until(name, || !is_mounted(&mountpoint) && !is_running(&pid));
        assert_eq!(
            lab::json(lab.yolofs().args(["status", "--json"])),
            serde_json::json!([]),
            "{name}"
        );
    }
}

#[test]
fn privileged_a_crash_leaves_a_mount_that_clears() {
    let lab = Lab::new();
    let mountpoint = mounted(&lab);
    let pid = daemon_of(&lab, &mountpoint);
    ok(Command::new("kill").args(["-9", &pid]));
    until("the daemon's death", || !is_running(&pid));
    assert_eq!(lab.status(&mountpoint)["state"], "dead");
    assert!(fs::read_dir(&mountpoint).is_err(), "ENOTCONN was expected");
    lab.umount(&mountpoint);
    assert!(!is_mounted(&mountpoint));
    lab.umount(&mountpoint); // twice is fine
    // And the place is as good as new.
    ok(lab
        .yolofs()
        .arg("mount")
        .args([&lab.path("root"), &mountpoint]));
    assert!(mountpoint.join("etc/config").exists());
}

#[test]
fn privileged_a_mount_is_found_by_symbolic_links_alive_and_dead() {
    let lab = Lab::new();
    let mountpoint = mounted(&lab);
    let links = ["end", "way"].map(|name| lab.path(name));
    symlink(&mountpoint, &links[0]).unwrap();
    symlink(mountpoint.parent().unwrap(), &links[1]).unwrap();
    let by_way = links[1].join(mountpoint.file_name().unwrap());
    let pid = daemon_of(&lab, &mountpoint);
    for state in ["serving", "dead"] {
        for named in [&links[0], &by_way] {
            assert_eq!(lab.status(named)["state"], state, "{}", named.display());
        }
        if state == "serving" {
            ok(Command::new("kill").args(["-9", &pid]));
            until("the daemon's death", || !is_running(&pid));
        }
    }
    lab.umount(&links[0]);
    assert!(!is_mounted(&mountpoint));
}

#[test]
fn privileged_a_mount_over_a_dead_one_takes_its_place() {
    let lab = Lab::new();
    let mountpoint = mounted(&lab);
    let pid = daemon_of(&lab, &mountpoint);
    ok(Command::new("kill").args(["-9", &pid]));
    until("the daemon's death", || !is_running(&pid));
    ok(lab
        .yolofs()
        .arg("mount")
        .args([&lab.path("root"), &mountpoint]));
    assert!(mountpoint.join("etc/config").exists());
    lab.umount(&mountpoint);
    assert!(!is_mounted(&mountpoint));
}

#[test]
fn privileged_mounting_twice_changes_nothing() {
    let lab = Lab::new();
    let mountpoint = mounted(&lab);
    let pid = daemon_of(&lab, &mountpoint);
    ok(lab
        .yolofs()
        .arg("mount")
        .args([&lab.path("root"), &mountpoint]));
    assert_eq!(daemon_of(&lab, &mountpoint), pid);
    let other = lab.make_dir("other");
    let why = fails(1, lab.yolofs().arg("mount").args([&other, &mountpoint]));
    assert!(why.contains("yolofs umount"), "{why}");
}

#[test]
fn privileged_a_busy_mount_is_not_torn_away() {
    let lab = Lab::new();
    let mountpoint = mounted(&lab);
    let pid = daemon_of(&lab, &mountpoint);
    let held = fs::File::open(mountpoint.join("etc/config")).unwrap();
    let why = fails(1, lab.yolofs().arg("umount").arg(&mountpoint));
    assert!(why.contains("busy") || why.contains("use"), "{why}");
    assert!(is_mounted(&mountpoint));
    ok(lab.yolofs().args(["umount", "--lazy"]).arg(&mountpoint));
    assert!(!is_mounted(&mountpoint));
    assert_eq!(
        std::io::read_to_string(&held).unwrap(),
        "answer = 42\n",
        "still served to its user"
    );
    drop(held);
    until("the last user's end", || !is_running(&pid));
}

#[test]
fn privileged_a_mount_over_its_own_source_serves_it() {
    let lab = Lab::new();
    let root = lab.make_dir("root");
    busybox_root(&root);
    ok(lab.yolofs().arg("mount").args([&root, &root]));
    assert_eq!(
        fs::read_to_string(root.join("etc/config")).unwrap(),
        "answer = 42\n"
    );
    assert!(
        fs::write(root.join("etc/config"), "x").is_err(),
        "read-only"
    );
    lab.umount(&root);
    fs::write(root.join("etc/config"), "x").unwrap();
}

#[test]
fn privileged_errors_say_what_to_do() {
    let lab = Lab::new();
    let dir = lab.make_dir("root");
    let nowhere = lab.path("nowhere");
    let why = fails(1, lab.yolofs().arg("mount").args([&nowhere, &dir]));
    assert!(why.contains("nowhere"), "{why}");
    let why = fails(1, lab.yolofs().arg("mount").args([&dir, &nowhere]));
    assert!(
        why.contains("mount point") && why.contains("nowhere"),
        "{why}"
    );
    let why = fails(
        1,
        lab.yolofs()
            .args(["mount", "--boot", "nonesuch"])
            .args([&dir, &dir]),
    );
    assert!(
        why.contains("nonesuch") && why.contains("bootimg ls"),
        "{why}"
    );
    let why = fails(1, lab.yolofs().arg("umount").arg("/proc"));
    assert!(why.contains("not one of yolofs"), "{why}");
    fails(
        2,
        lab.yolofs()
            .args(["mount", "--trust", "--revalidate", "1"])
            .args([&dir, &dir]),
    );
    fails(
        2,
        lab.bootimg()
            .args(["record", "--until", "line:("])
            .arg(&dir)
            .args(["--", "true"]),
    );
    let why = fails(1, lab.bootimg().args(["inspect", "nonesuch"]));
    assert!(why.contains("nonesuch"), "{why}");
}
