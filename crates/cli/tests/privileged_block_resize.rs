//! Devices of the node grow.

#![cfg(feature = "privileged")]

mod block_attached;
mod block_client;
mod lab;

use std::fs;
use std::process::Command;

use serde_json::json;

use block_attached::{attach, device, kill_worker, writable};
use block_client::Writer;
use lab::service::Service;
use lab::{Lab, fails, ok};

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
