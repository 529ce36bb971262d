//! Mounts that would hide what the node itself needs are refused, and harm no other.

#![cfg(feature = "privileged")]

use nix::sys::signal::Signal;

use lab::service::{Readers, Service};
use lab::{Lab, fails, ok};

#[test]
fn privileged_a_mount_that_would_hide_what_is_needed_is_refused() {
    let lab = Lab::new();
    let service = Service::start(&lab);
    let mountpoint = service.mount("tree");
    let readers = Readers::start(&mountpoint);
    std::fs::create_dir_all(lab.store()).unwrap();
    let tree = lab.path("tree");
    for (what, place) in [
        ("run directory", lab.run_dir()),
        ("run directory", lab.run_dir().join("node")),
        ("state directory", lab.path("state")),
        ("store", lab.store()),
    ] {
        let why = fails(1, lab.yolofs().arg("mount").args([&tree, &place]));
        assert!(why.contains(&format!("would hide the {what}")), "{why}");
    }
    // Over the source itself, with what serves it below.
    let inside = tree.join("store");
    std::fs::create_dir(&inside).unwrap();
    let mut over = lab.yolofs();
    over.arg("mount").args([&tree, &tree]).arg("--store");
    let why = fails(1, over.arg(&inside));
    assert!(why.contains("would hide the store"), "{why}");
    std::fs::remove_dir(&inside).unwrap();
    service.kill_worker(&mountpoint, Signal::SIGKILL);
    readers.until_more();
    readers.stop();
    ok(lab.yolofs().arg("status"));
    lab.umount(&mountpoint);
}

#[test]
fn privileged_a_device_of_a_pipe_is_refused_at_once() {
    let lab = Lab::new();
    let _service = Service::start(&lab);
    let pipe = lab.path("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let why = fails(
        1,
        lab.yolofs().args(["block", "attach"]).arg(&pipe).arg("p"),
    );
    assert!(why.contains("neither a file nor a block device"), "{why}");
    let listed = lab::json(lab.yolofs().args(["block", "status", "--json"]));
    assert_eq!(listed.as_array().map(Vec::len), Some(0), "{listed}");
}
