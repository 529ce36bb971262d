//! A block service that stops answering holds who needs it, and nobody who does not: what the boot
//! image has is served, however many readers wait.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod block_service;

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sys::stat::minor;

use block_service::{Nic, import};
use lab::service::Service;
use lab::stopped::Stopped;
use lab::{Lab, busybox_root, noise, ok, output, until};

/// The file of which each reader that hangs reads a part of its own: more than is read ahead.
const PART: usize = 1 << 20;
const READERS: usize = 64;

/// A source that only a service has, and what a boot of it reads.
struct Rig<'a> {
    lab: &'a Lab,
    nic: Nic,
    boot: PathBuf,
}

impl<'a> Rig<'a> {
    fn new(lab: &'a Lab) -> Self {
        let root = lab.make_dir("root");
        busybox_root(&root);
        fs::write(root.join("large"), noise(7, READERS * PART)).unwrap();
        fs::write(root.join("boot"), noise(8, 4 * PART)).unwrap();
        let _imported = import(lab, "root", &root);
        let nic = Nic::start(lab);
        // The boot is recorded, and its image is taken out of the service.
        let flags = ["--standalone", "--nic", &nic.address, "--nic-share"];
        let first = lab.mount(Path::new("nic:root"), "first", &flags);
        assert!(fs::read(first.join("boot")).unwrap() == noise(8, 4 * PART));
        let daemon = lab.status(&first)["pid"].clone();
        lab.umount(&first);
        let process = PathBuf::from(format!("/proc/{daemon}"));
        until("the daemon to end", || !process.exists());
        let only = |dir: &Path| fs::read_dir(dir).unwrap().next().unwrap().unwrap().path();
        let boot = lab.path("boot.bimg");
        fs::copy(only(&only(&lab.path("nic/sources/boots"))), &boot).unwrap();
        Self { lab, nic, boot }
    }

    fn mount(&self, flags: &[&str]) -> PathBuf {
        let boot = self.boot.to_str().unwrap();
        let mut all = vec!["--nic", &self.nic.address, "--boot", boot, "--no-inject"];
        all.extend(flags);
        self.lab.mount(Path::new("nic:root"), "mnt", &all)
    }

    /// Reads what the boot image has while so many readers wait for the service, and has it come
    /// back.
    fn boot_beside_hung(&self, mountpoint: &Path) {
        let control = self.lab.make_dir("fusectl");
        let mut mount = Command::new("mount");
        ok(mount.args(["-t", "fusectl", "none"]).arg(&control));
        let device = fs::metadata(mountpoint).unwrap().dev();
        let waiting = control.join(minor(device).to_string()).join("waiting");
        let unanswered = || {
            fs::read_to_string(&waiting)
                .unwrap()
                .trim()
                .parse::<usize>()
                .unwrap()
        };

        let stopped = Stopped::stop(self.nic.process.id());
        let mut hung: Vec<_> = (0..READERS).map(|part| hang(mountpoint, part)).collect();
        until("all readers to hang", || unanswered() >= READERS);
        let want = noise(8, 4 * PART);
        for from in 0..4 {
            let mut read = Command::new("timeout");
            read.args(["20", "dd", "bs=1M", "count=1", &format!("skip={from}")]);
            read.arg(format!("if={}", mountpoint.join("boot").display()));
            let got = output(&mut read);
            assert!(got.status.success(), "part {from}: {got:?}");
            assert!(got.stdout == want[from * PART..(from + 1) * PART]);
            let mut look = Command::new("timeout");
            look.args(["20", "stat"]);
            ok(look.arg(mountpoint.join(format!("usr/lib/part{from:02}"))));
        }
        assert_eq!(self.lab.status(mountpoint)["state"], "serving");
        for reader in &mut hung {
            assert!(reader.try_wait().unwrap().is_none(), "it hangs still");
        }
        drop(stopped);
        for mut reader in hung {
            assert!(reader.wait().unwrap().success());
        }
    }
}

/// Begins to read a part of a file that only the service has.
fn hang(mountpoint: &Path, part: usize) -> Child {
    let mut dd = Command::new("dd");
    dd.arg(format!("if={}", mountpoint.join("large").display()));
    dd.args(["of=/dev/null", "bs=4096", "count=1"]);
    dd.arg(format!("skip={}", part * PART / 4096));
    dd.stderr(Stdio::null());
    dd.spawn().unwrap()
}

#[test]
fn privileged_readers_that_wait_for_a_hung_service_keep_nobody_from_booting() {
    let lab = Lab::new();
    let rig = Rig::new(&lab);
    let mountpoint = rig.mount(&["--standalone", "--source-deadline", "600"]);
    rig.boot_beside_hung(&mountpoint);
    let status = lab.status(&mountpoint);
    assert_eq!(status["served"]["late_answers"], 0, "{status}");
    assert_eq!(status["nic"]["failed_reads"], 0, "{status}");
    lab.umount(&mountpoint);
}

#[test]
fn privileged_readers_that_wait_for_a_hung_service_keep_nobody_from_booting_on_a_nodes_mount() {
    let lab = Lab::new();
    let rig = Rig::new(&lab);
    let service = Service::start(&lab);
    let mountpoint = rig.mount(&[]);
    assert!(service.listed(&mountpoint).is_some(), "it is the node's");
    rig.boot_beside_hung(&mountpoint);
    lab.umount(&mountpoint);
    drop(service);
}

#[test]
fn privileged_a_service_that_hangs_too_long_fails_reads_and_nothing_else() {
    let lab = Lab::new();
    let rig = Rig::new(&lab);
    let mountpoint = rig.mount(&["--standalone", "--source-deadline", "0.5"]);
    let stopped = Stopped::stop(rig.nic.process.id());
    for part in 0..2 {
        assert!(!hang(&mountpoint, part).wait().unwrap().success());
    }
    let status = lab.status(&mountpoint);
    assert!(
        status["served"]["late_answers"].as_u64().unwrap() >= 1,
        "{status}"
    );
    drop(stopped);
    until("the file to be read", || {
        hang(&mountpoint, 2).wait().unwrap().success()
    });
    lab.umount(&mountpoint);
}
