//! Mounts that learn from boots which drift from their recording.
#![cfg(feature = "privileged")]

use std::fs;

use lab::service::Service;
use lab::{Lab, json, noise, ok, until};
use nix::sys::signal::Signal;

/// Length of a file of the source, in bytes, and in blocks.
const LEN: usize = 70_000;
const BLOCKS: u64 = 18;

#[test]
fn privileged_node_learns_from_a_boot_that_drifts() {
    let lab = Lab::new();
    let service = Service::start(&lab);
    let source = service.source("tree");
    let boot = "cat $YOLOFS_MNT/0 $YOLOFS_MNT/1 > /dev/null";
    ok(lab
        .bootimg()
        .args(["record", "--name", "web", "--no-chroot"])
        .arg(&source)
        .args(["--", "sh", "-c", boot]));
    let flags = ["--auto", "--boot", "web"];
    let mountpoint = lab.mount(&source, "mnt", &flags);
    let recorded = lab.status(&mountpoint)["boot"].clone();
    assert_eq!(recorded["blocks"].as_u64(), Some(2 * BLOCKS));
    // Another boot: half of what it reads was not recorded.
    for index in 0..8 {
        let read = fs::read(mountpoint.join(index.to_string())).unwrap();
        assert_eq!(read, noise(index, LEN), "file {index}");
    }
    let served = lab.status(&mountpoint)["served"].clone();
    assert_eq!(served["first_miss"]["path"], "2");
    assert!(served["divergence_permille"].as_u64().unwrap() > 200);
    let worker = service.worker(&mountpoint);
    until("the mount to learn", || {
        lab.status(&mountpoint)["boot"]["blocks"].as_u64() == Some(8 * BLOCKS)
    });
    let learned = lab.status(&mountpoint)["boot"].clone();
    assert_eq!(learned["image"], "web", "it took the place of the old one");
    assert_ne!(learned["content"], recorded["content"]);
    assert_eq!(service.worker(&mountpoint), worker, "nobody was disturbed");
    // The same boot on a fresh worker reads nothing from the source.
    service.kill_worker(&mountpoint, Signal::SIGKILL);
    let before = lab.status(&mountpoint)["served"]["fallthrough_bytes"].clone();
    for index in 0..8 {
        let read = fs::read(mountpoint.join(index.to_string())).unwrap();
        assert_eq!(read, noise(index, LEN), "file {index}");
    }
    let after = lab.status(&mountpoint)["served"]["fallthrough_bytes"].clone();
    assert_eq!(before, after);
    // There is one boot image of that name, and it is whole.
    let images = json(lab.bootimg().args(["ls", "--json"]));
    let named = images.as_array().unwrap().iter();
    let named = named.filter(|image| image["names"].to_string().contains("web"));
    assert_eq!(named.count(), 1, "{images}");
    ok(lab.bootimg().args(["verify", "web"]));
    lab.umount(&mountpoint);
}
