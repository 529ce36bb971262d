//! Mounts of the node whose blocks come from a block service: whoever dies, of the worker, the node and
//! the service, no read fails, and every byte is compared.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod block_service;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::Signal;
use serde_json::Value;

use block_service::{Nic, import};
use lab::service::{Readers, Service};
use lab::{Lab, fails, ok, until};

/// Makes the source that readers read, and imports it.
fn imported(service: &Service<'_>) -> PathBuf {
    let source = service.source("tree");
    let _imported = import(service.lab, "tree", &source);
    source
}

/// Has the node mount the source of the service.
fn mounted(service: &Service<'_>, nic: &Nic, name: &str, flags: &[&str]) -> PathBuf {
    let flags = [&["--nic", &nic.address], flags].concat();
    let mountpoint = service.lab.mount(Path::new("nic:tree"), name, &flags);
    assert!(service.listed(&mountpoint).is_some(), "it is the node's");
    mountpoint
}

fn nic_of(service: &Service<'_>, mountpoint: &Path) -> Value {
    service.lab.status(mountpoint)["nic"].clone()
}

fn same(source: &Path, mountpoint: &Path) {
    ok(Command::new("diff").arg("-r").args([source, mountpoint]));
}

/// A worker that cannot tell whether the one before has ended may serve what that one injects late.
fn assert_waits_for_earlier_workers(lab: &Lab) {
    let log = fs::read_to_string(lab.path("node.log")).unwrap();
    assert!(!log.contains("cannot wait for the end"), "{log}");
}

/// The cache that a mount has by default is enough for the second start of an image.
#[test]
fn privileged_the_second_start_by_the_node_asks_a_block_service_for_nothing() {
    let lab = Lab::new();
    let service = Service::start(&lab);
    let source = imported(&service);
    let nic = Nic::start(&lab);
    let mount = |name: &str| {
        let mountpoint = lab.make_dir(name);
        let mut command = lab.yolofs();
        command.arg("mount").args(["--nic", &nic.address]);
        command.env("YOLOFS_NIC_CACHE", lab.path("cache"));
        ok(command.arg("nic:tree").arg(&mountpoint));
        assert!(service.listed(&mountpoint).is_some(), "it is the node's");
        mountpoint
    };
    let first = mount("first");
    same(&source, &first);
    assert!(nic_of(&service, &first)["chunks"].as_u64().unwrap() >= 24);
    lab.umount(&first);
    let second = mount("second");
    same(&source, &second);
    let said = nic_of(&service, &second);
    assert_eq!(said["chunks"], 0, "{said}");
    nic.kill();
    same(&source, &second);
    lab.umount(&second);
    assert_waits_for_earlier_workers(&lab);
}

/// The node connects its worker to both, whose sockets the worker may not reach.
#[test]
fn privileged_readers_read_on_from_the_other_service_when_one_dies() {
    let lab = Lab::new();
    let service = Service::start(&lab);
    let source = imported(&service);
    let nic = Nic::start(&lab);
    let second = format!("unix:{}", lab.path("second.sock").display());
    let second = Nic::second(&lab, &second, &["--blocks-open"]);
    let mountpoint = mounted(&service, &nic, "mnt", &["--nic", &second.address]);
    let readers = Readers::start(&mountpoint);
    readers.until_more();
    nic.kill();
    readers.until_more();
    service.kill_worker(&mountpoint, Signal::SIGKILL);
    readers.until_more();
    same(&source, &mountpoint);
    let status = nic_of(&service, &mountpoint);
    let services = status["services"].as_array().unwrap();
    assert_eq!(services.len(), 2, "{status}");
    assert_eq!(services[0]["asked"], false, "{status}");
    assert_eq!(services[1]["asked"], true, "{status}");
    assert_eq!(status["failed_reads"], 0, "{status}");
    readers.stop();
    lab.umount(&mountpoint);
}

#[test]
fn privileged_whoever_dies_readers_of_a_block_service_read_on() {
    let lab = Lab::new();
    let service = Service::start(&lab);
    imported(&service);
    let nic = Nic::start(&lab);
    let mountpoint = mounted(&service, &nic, "mnt", &[]);
    let readers = Readers::start(&mountpoint);
    for _ in 0..3 {
        service.kill_worker(&mountpoint, Signal::SIGKILL);
        readers.until_more();
    }
    let worker = service.worker(&mountpoint);
    service.kill_node();
    assert_eq!(service.worker(&mountpoint), worker);
    readers.until_more();
    // The next worker begins while there is no service: it knows what is served without it.
    nic.kill();
    service.kill_worker(&mountpoint, Signal::SIGKILL);
    let _again = Nic::start(&lab);
    readers.until_more();
    readers.stop();
    assert_eq!(nic_of(&service, &mountpoint)["lies"], 0);
    lab.umount(&mountpoint);
    assert!(service.listed(&mountpoint).is_none());
}

#[test]
fn privileged_a_worker_goes_on_from_the_cache_of_the_one_before() {
    let lab = Lab::new();
    let service = Service::start(&lab);
    let source = imported(&service);
    let nic = Nic::start(&lab);
    let cache = lab.path("cache").to_str().unwrap().to_owned();
    let flags = ["--nic-cache", &cache, "--nic-cache-size", "256M"];
    let mountpoint = mounted(&service, &nic, "mnt", &flags);
    until("all of it is here", || {
        nic_of(&service, &mountpoint)["filled"] == true
    });
    nic.kill();
    service.kill_worker(&mountpoint, Signal::SIGKILL);
    until("the cache is there again", || {
        nic_of(&service, &mountpoint)["filled"] == true
    });
    same(&source, &mountpoint);
    let said = nic_of(&service, &mountpoint);
    assert_eq!(
        (&said["chunks"], &said["failed_reads"]),
        (&0.into(), &0.into())
    );
    lab.umount(&mountpoint);
}

#[test]
fn privileged_the_node_asks_a_block_service_beside_a_disk() {
    let lab = Lab::new();
    let service = Service::start(&lab);
    let source = imported(&service);
    let nic = Nic::start(&lab);
    let flags = ["--nic", &nic.address, "--nic-source", "tree"];
    let mountpoint = lab.mount(&source, "mnt", &flags);
    assert!(service.listed(&mountpoint).is_some(), "it is the node's");
    same(&source, &mountpoint);
    let said = nic_of(&service, &mountpoint);
    assert!(said["chunks"].as_u64().unwrap() >= 24, "{said}");
    nic.kill();
    service.kill_worker(&mountpoint, Signal::SIGKILL);
    same(&source, &mountpoint);
    lab.umount(&mountpoint);
    assert_waits_for_earlier_workers(&lab);
    // What cannot be is refused in words.
    let other = lab.make_dir("other");
    fs::write(lab.path("key"), "no key").unwrap();
    let mut command = lab.yolofs();
    command.arg("mount").arg("nic:tree").arg(&other);
    let why = fails(1, &mut command);
    assert!(why.contains("--nic ADDR"), "{why}");
    command.args(["--nic", "unix:/nowhere", "--nic-key"]);
    let why = fails(1, command.arg(lab.path("key")));
    assert!(why.contains("has no valid key"), "{why}");
}
