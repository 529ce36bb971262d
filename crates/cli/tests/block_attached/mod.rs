//! Devices of a node, as `yolofs block` attaches and shows them.

#![allow(
    clippy::allow_attributes,
    clippy::unwrap_used,
    reason = "a test that cannot go on has failed"
)]
#![allow(dead_code, reason = "each test uses its own part of it")]

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;
use serde_json::Value;

use lab::service::signal_to;
use lab::{Lab, json, ok, output, until};

/// What `yolofs block status --json` says of a device; null if it is not attached.
pub(crate) fn device(lab: &Lab, name: &str) -> Value {
    let devices = output(lab.yolofs().args(["block", "status", "--json"]));
    let devices: Value = serde_json::from_slice(&devices.stdout).unwrap();
    let mut devices = devices.as_array().unwrap().iter();
    let found = devices.find(|device| device["name"] == name);
    found.cloned().unwrap_or_default()
}

/// Returns a line of the node's metrics, by what it begins with.
pub(crate) fn metric(lab: &Lab, begins: &str) -> Option<u64> {
    let mut node = UnixStream::connect(lab.run_dir().join("node.sock")).unwrap();
    node.write_all(b"GET /metrics HTTP/1.1\r\nhost: node\r\n\r\n")
        .unwrap();
    let mut page = String::new();
    node.read_to_string(&mut page).unwrap();
    let line = page.lines().find(|line| line.starts_with(begins))?;
    line.rsplit_once(' ')?.1.parse().ok()
}

/// Waits until a process other than `former` serves a device, and returns it.
pub(crate) fn until_served(lab: &Lab, name: &str, former: u32) -> u32 {
    let mut pid = 0;
    until("another worker to serve", || {
        let device = device(lab, name);
        assert_ne!(device["state"], "failed", "{device}");
        pid = u32::try_from(device["pid"].as_u64().unwrap_or(0)).unwrap();
        device["state"] == "serving" && pid != former
    });
    pid
}

/// Kills the worker of a device, and waits until there is another one.
pub(crate) fn kill_worker(lab: &Lab, name: &str) {
    let worker = until_served(lab, name, 0);
    signal_to(worker, Signal::SIGKILL);
    until_served(lab, name, worker);
}

/// Makes an image with a writable layer on nothing.
pub(crate) fn writable(lab: &Lab, name: &str, kind: &str, size: &str) -> PathBuf {
    let image = lab.path(name);
    let create = ["block", "create", "--size", size, "--kind", kind];
    ok(lab.yolofs().args(create).arg(&image));
    image
}

pub(crate) fn attach(lab: &Lab, image: &Path, name: &str, flags: &[&str]) -> Value {
    let attach = ["block", "attach", "--json"];
    json(lab.yolofs().args(attach).args(flags).arg(image).arg(name))
}
