//! Devices of the node grow.

#![cfg(feature = "privileged")]

mod block_attached;
mod block_client;

use std::fs;
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;
use serde_json::json;

use block_attached::{attach, device, kill_worker, until_served, writable};
use block_client::Writer;
use lab::service::{Service, signal_to};
use lab::{Lab, fails, ok, until};

/// A device grows under a client: those that connect later see its new size, also after its worker was killed.
#[test]
fn privileged_block_a_device_grows_while_it_is_used() {
    let lab = Lab::new();
    let service = Service::start(&lab);
    let raw = lab.path("disk.raw");
    fs::write(&raw, vec![0; 16 << 20]).unwrap();
    for (image, flags) in [
        (writable(&lab, "pair", "sparse", "16M"), &[][..]),
        (writable(&lab, "live", "live", "16M"), &[]),
        (raw, &["--writable"]),
    ] {
        let attached = attach(&lab, &image, "vm", flags);
        let address = attached["address"].as_str().unwrap();
        let size = || ok(Command::new("nbdinfo").args(["--size", address]));
        let resize = |size: &str| {
            let mut resize = lab.yolofs();
            resize.args(["block", "resize", "--json", "--attached", "vm", size]);
            resize
        };
        let mut writer = Writer::start(&lab.run_dir().join("devices/vm.sock"));
        writer.write_without_waiting(32);
        for _twice in 0..2 {
            let resized = lab::json(&mut resize("32M"));
            assert_eq!(resized, json!({"size": 32 << 20}));
        }
        writer.write_without_waiting(32);
        kill_worker(&lab, "vm");
        writer.flush();
        let mut written = writer.stop();
        assert_eq!(size().trim(), (32 << 20).to_string());
        assert_eq!(device(&lab, "vm")["served"]["size"], 32 << 20);
        let end = ["-f", "raw", "-c", "write -P 7 31M 1M", address];
        ok(Command::new("qemu-io").args(end));
        let why = fails(1, &mut resize("16M"));
        assert!(why.contains("cannot be made smaller"), "{why}");
        let copy = lab.path("copy.raw");
        ok(Command::new("nbdcopy").arg(address).arg(&copy));
        written.resize(31 << 20, 0);
        written.resize(32 << 20, 7);
        assert!(fs::read(copy).unwrap() == written);
        // One that is served has an owner; afterwards it grows where it is.
        let mut here = lab.yolofs();
        here.args(["block", "resize", "--json"])
            .arg(&image)
            .arg("48M");
        fails(1, &mut here);
        ok(lab.yolofs().args(["block", "detach", "vm"]));
        assert_eq!(lab::json(&mut here), json!({"size": 48 << 20}));
        attach(&lab, &image, "vm", flags);
        assert_eq!(size().trim(), (48 << 20).to_string());
        ok(lab.yolofs().args(["block", "detach", "vm"]));
    }
    let mut none = lab.yolofs();
    none.args(["block", "resize", "--attached", "vm", "48M"]);
    assert!(fails(1, &mut none).contains("no device"));
    drop(service);
}

/// A worker is killed while it makes its device larger: the device has the old size or the new one, and can be made larger
/// again.
#[test]
fn privileged_block_a_worker_that_is_killed_in_a_resize_leaves_one_of_both_sizes() {
    let lab = Lab::new();
    let service = Service::start(&lab);
    let image = writable(&lab, "image", "live", "16M");
    let attached = attach(&lab, &image, "vm", &[]);
    let address = attached["address"].as_str().unwrap();
    let start = ["-f", "raw", "-c", "write -P 7 0 1M", "-c", "flush", address];
    ok(Command::new("qemu-io").args(start));
    for round in 0..4_u64 {
        let sizes = [16 << 20, 17 << 20].map(|size| size + (round << 20));
        let worker = until_served(&lab, "vm", 0);
        let mut resize = lab.yolofs();
        resize.args(["block", "resize", "--attached", "vm"]);
        resize.arg(sizes[1].to_string());
        let mut resize = resize.stderr(Stdio::null()).spawn().unwrap();
        // At once, and when it has just grown.
        if round % 2 == 1 {
            until("the device to grow", || {
                device(&lab, "vm")["served"]["size"] == sizes[1]
            });
        }
        signal_to(worker, Signal::SIGKILL);
        let said = resize.wait().unwrap().success();
        until_served(&lab, "vm", worker);
        let size = device(&lab, "vm")["served"]["size"].as_u64().unwrap();
        assert!(sizes.contains(&size), "{round}: {size}");
        assert!(!said || size == sizes[1], "{round}: it was said to be done");
        let mut again = lab.yolofs();
        again.args(["block", "resize", "--attached", "vm"]);
        ok(again.arg(sizes[1].to_string()));
        let end = sizes[1] - (1 << 20);
        let write = format!("write -P 9 {end} 1M");
        let read = ["-c", "read -P 7 0 1M", address];
        ok(Command::new("qemu-io")
            .args(["-f", "raw", "-c", &write])
            .args(read));
    }
    ok(lab.yolofs().args(["block", "detach", "vm"]));
    drop(service);
}
