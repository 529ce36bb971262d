//! The node service: mounts that outlive whoever serves and owns them.
#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use nix::sys::signal::Signal;

use lab::service::{Readers, Service, signal_to, umount};
use lab::{Lab, fails, ok, until};

/// How many records a directory has.
fn records(dir: &Path) -> usize {
    let names = fs::read_dir(dir).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.ends_with(".json")).count()
}

fn is_mounted(place: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let place = place.to_str().unwrap();
    mounts
        .lines()
        .any(|line| line.split(' ').nth(1) == Some(place))
}

#[test]
fn privileged_node_mounts_come_and_go_and_twice_is_once() {
    let lab = Lab::new();
    let service = Service::start(&lab);
    let mountpoint = service.mount("tree");
    assert_eq!(lab.status(&mountpoint)["state"], "serving");
    let worker = service.worker(&mountpoint);
    // The same again changes nothing; another source does not fit.
    lab.mount(&lab.path("tree"), "tree-mnt", &[]);
    assert_eq!(service.worker(&mountpoint), worker);
    let other = lab.make_dir("other");
    let why = fails(1, lab.yolofs().arg("mount").args([&other, &mountpoint]));
    assert!(why.contains("already"), "{why}");
    // Nor does what is not there, or is somebody else's.
    let why = fails(
        1,
        lab.yolofs().arg("mount").args([&lab.path("none"), &other]),
    );
    assert!(why.contains("none"), "{why}");
    ok(Command::new("mount")
        .args(["-t", "tmpfs", "none"])
        .arg(&other));
    let why = fails(
        1,
        lab.yolofs().arg("mount").args([&lab.path("tree"), &other]),
    );
    umount(&[], &other);
    assert!(why.contains("tmpfs"), "{why}");
    // In use is said; lazy is served until it ends.
    let used = fs::File::open(mountpoint.join("3")).unwrap();
    let why = fails(1, lab.yolofs().arg("umount").arg(&mountpoint));
    assert!(why.contains("in use"), "{why}");
    ok(lab.yolofs().args(["umount", "--lazy"]).arg(&mountpoint));
    assert!(!is_mounted(&mountpoint));
    assert_eq!(service.state(&mountpoint), "leaving");
    assert_eq!(
        fs::read(format!(
            "/proc/self/fd/{}",
            std::os::fd::AsRawFd::as_raw_fd(&used)
        ))
        .unwrap(),
        lab::noise(3, 70_000)
    );
    drop(used);
    until("the record to go", || {
        records(&lab.run_dir().join("node")) == 0
    });
    assert_eq!(records(&lab.path("state/mounts")), 0);
    ok(lab.yolofs().arg("umount").arg(&mountpoint));
}

#[test]
fn privileged_node_workers_are_killed_under_readers() {
    let lab = Lab::new();
    let service = Service::start(&lab);
    let mountpoint = service.mount("tree");
    let readers = Readers::start(&mountpoint);
    for _ in 0..10 {
        service.kill_worker(&mountpoint, Signal::SIGKILL);
        readers.until_more();
    }
    readers.stop();
    let listed = service.listed(&mountpoint).unwrap();
    assert!(listed["restarts"].as_u64() >= Some(10), "{listed}");
    assert!(listed["last_gap_ms"].as_u64() >= Some(1), "{listed}");
    lab.umount(&mountpoint);
    assert!(!is_mounted(&mountpoint));
}

#[test]
fn privileged_node_is_killed_with_whatever_else_under_readers() {
    let lab = Lab::new();
    let mut service = Service::start(&lab);
    let mountpoint = service.mount("tree");
    let id = service.listed(&mountpoint).unwrap()["id"].clone();
    let readers = Readers::start(&mountpoint);
    for _ in 0..3 {
        service.kill_node();
        assert_eq!(service.listed(&mountpoint).unwrap()["id"], id);
        readers.until_more();
    }
    // Node and worker.
    let (node, worker) = (service.pid(), service.worker(&mountpoint));
    signal_to(node, Signal::SIGKILL);
    signal_to(worker, Signal::SIGKILL);
    service.until_another(node);
    assert_ne!(service.worker(&mountpoint), worker);
    readers.until_more();
    // The keeper; then, with the keeper that came after it, the node.
    service.kill_keeper();
    let node = service.pid();
    until("another keeper", || {
        children(node)
            .iter()
            .any(|line| line.contains("--keep-parent"))
    });
    let worker = service.worker(&mountpoint);
    service.kill_node();
    assert_eq!(service.worker(&mountpoint), worker);
    readers.until_more();
    service.kill_worker(&mountpoint, Signal::SIGKILL);
    readers.until_more();
    readers.stop();
    lab.umount(&mountpoint);
    assert!(!is_mounted(&mountpoint));
}

/// The command lines of the children of a process.
fn children(process: u32) -> Vec<String> {
    let all = fs::read_dir("/proc").unwrap();
    let pids = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let ours = pids.filter(|pid| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent = stat
            .rsplit(')')
            .next()
            .and_then(|rest| rest.split(' ').nth(2));
        parent == Some(&process.to_string())
    });
    ours.map(|pid| fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default())
        .collect()
}

#[test]
fn privileged_node_ends_and_another_takes_its_mounts_back() {
    let lab = Lab::new();
    let mut service = Service::start(&lab);
    let mountpoint = service.mount("tree");
    let worker = service.worker(&mountpoint);
    let readers = Readers::start(&mountpoint);
    service.stop();
    readers.until_more();
    assert!(is_mounted(&mountpoint));
    // Nobody has its descriptors but the worker.
    service.start_again();
    assert_eq!(service.worker(&mountpoint), worker);
    service.kill_worker(&mountpoint, Signal::SIGKILL);
    readers.until_more();
    readers.stop();
    lab.umount(&mountpoint);
}

#[test]
fn privileged_node_mounts_come_back_after_a_reboot() {
    let lab = Lab::new();
    let mut service = Service::start(&lab);
    let (one, other) = (service.mount("one"), service.mount("other"));
    let gone = service.mount("gone");
    service.kill_all();
    for place in [&one, &other, &gone] {
        umount(&["-l"], place);
    }
    fs::remove_dir_all(lab.run_dir()).unwrap();
    fs::remove_dir_all(lab.path("gone")).unwrap();
    fs::write(lab.path("state/mounts/damaged.json"), "{").unwrap();
    service.start_again();
    for place in [&one, &other] {
        service.until_state(place, "serving");
        assert_eq!(fs::read(place.join("5")).unwrap(), lab::noise(5, 70_000));
    }
    // What cannot be restored is told, and tried again until it can or nobody wants it.
    let listed = service.listed(&gone).unwrap();
    assert_eq!(listed["state"], "failed");
    assert!(
        listed["error"].as_str().unwrap().contains("gone"),
        "{listed}"
    );
    let damaged = service.node()["damaged"].to_string();
    assert!(damaged.contains("damaged.json"), "{damaged}");
    service.source("gone");
    service.until_state(&gone, "serving");
    for place in [&one, &other, &gone] {
        lab.umount(place);
    }
}

#[test]
fn privileged_node_notices_an_unmount_by_others_and_a_dead_mount() {
    let lab = Lab::new();
    let mut service = Service::start(&lab);
    let mountpoint = service.mount("tree");
    umount(&[], &mountpoint);
    until("the mount to be forgotten", || {
        service.listed(&mountpoint).is_none()
    });
    lab.mount(&lab.path("tree"), "tree-mnt", &[]);
    // Everybody is killed at once: what is left answers nobody, and is made anew.
    service.kill_all();
    assert!(fs::read_dir(&mountpoint).is_err());
    service.start_again();
    service.until_state(&mountpoint, "serving");
    assert_eq!(
        fs::read(mountpoint.join("7")).unwrap(),
        lab::noise(7, 70_000)
    );
    lab.umount(&mountpoint);
    assert!(!is_mounted(&mountpoint));
}

/// When a machine loses its power, nothing outlives it: not what was just being started, whose command line is still that of
/// its parent, or none yet. Tests of that would go on with a node that nobody knows of.
#[test]
fn privileged_node_that_is_killed_leaves_nothing_that_it_has_started() {
    let lab = Lab::new();
    let mut service = Service::start(&lab);
    service.stop();
    let (program, started) = (lab.path("program"), lab.path("started"));
    let (yolofs, pid) = (env!("CARGO_BIN_EXE_yolofs"), started.display());
    let script = format!("#!/bin/sh\nsleep 1000000 &\necho $! >{pid}\nexec {yolofs} \"$@\"\n");
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    service.start_program(&program);
    service.kill_all();
    let pid = fs::read_to_string(&started).unwrap();
    // It may wait to be collected, without a command line.
    let line = fs::read(format!("/proc/{}/cmdline", pid.trim())).unwrap_or_default();
    assert!(!line.starts_with(b"sleep"), "it is still there");
}
