//! A virtual machine boots through the mount: SeaBIOS, boot loader, kernel, sshd.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use lab::{Lab, json, ok};
use nix::sys::signal::Signal;
use nix::unistd::Pid;

/// What the guest prints on its serial console when sshd is up.
const READY: &str = "YOLO-BOOT-READY";

/// How a recorded disk is mounted. The kernel may drop an injected page at any time (DAMON does so on some
/// machines, of files that nobody maps, every five seconds); when that page is asked for again, the
/// kernel would read around it, and what lies beside recorded blocks would count as not recorded.
const RECORDED: &[&str] = &["--boot", "vm", "--wait-prewarm", "--readahead", "0"];

fn vm_disk(name: &str) -> PathBuf {
    let disk = lab::images().join(name);
    assert!(
        disk.exists(),
        "{} is missing: run scripts/images/disk.sh",
        disk.display()
    );
    disk
}

/// Boots from the disk image in `$YOLOFS_IMAGE` and shows the console; writes go to a temporary
/// overlay of QEMU's own.
fn qemu(format: &str, cache: &str) -> String {
    format!(
        "exec qemu-system-x86_64 -nodefaults -no-user-config -accel tcg,thread=multi \
         -cpu qemu64,+rdrand -m 256 -machine q35 -display none -no-reboot -serial stdio \
         -object rng-random,id=rng0,filename=/dev/urandom -device virtio-rng-pci,rng=rng0 \
         -drive if=none,id=d0,file=\"$YOLOFS_IMAGE\",format={format},cache={cache},snapshot=on \
         -device virtio-blk-pci,drive=d0,bootindex=1"
    )
}

fn record(lab: &Lab, disk: &Path, format: &str, name: &str) -> serde_json::Value {
    json(
        lab.bootimg()
            .args(["record", "--json", "--name", name, "--timeout", "300"])
            .args(["--until", &format!("line:{READY}")])
            .arg(disk)
            .args(["--", "sh", "-c", &qemu(format, "writeback")]),
    )
}

/// Boots the guest on a mount, and returns what the daemon served meanwhile.
fn boot(lab: &Lab, mountpoint: &Path, image: &str, format: &str, cache: &str) -> (u64, u64) {
    let before = lab.status(mountpoint);
    // `timeout` passes a SIGTERM on, and is the deadline of the reads below.
    let mut guest = Command::new("timeout")
        .args(["300", "sh", "-c", &qemu(format, cache)])
        .env("YOLOFS_IMAGE", mountpoint.join(image))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let console = BufReader::new(guest.stdout.take().unwrap());
    let mut lines = console.split(b'\n').map_while(Result::ok);
    let ready = lines.any(|line| String::from_utf8_lossy(&line).contains(READY));
    let pid = Pid::from_raw(i32::try_from(guest.id()).unwrap());
    nix::sys::signal::kill(pid, Signal::SIGTERM).unwrap();
    guest.wait().unwrap();
    assert!(ready, "the guest did not boot");
    let after = lab.status(mountpoint);
    let served =
        |status: &serde_json::Value, field: &str| status["served"][field].as_u64().unwrap();
    let reads = |status: &serde_json::Value| status["served"]["requests"]["read"].as_u64().unwrap();
    let fell = served(&after, "fallthrough_bytes") - served(&before, "fallthrough_bytes");
    (reads(&after) - reads(&before), fell)
}

/// Has `bootimg` boot the machine by itself.
fn record_machine(lab: &Lab, disk: &Path) -> serde_json::Value {
    let mut source = std::ffi::OsString::from("vm:");
    source.push(disk);
    json(
        lab.bootimg()
            .args(["record", "--json", "--name", "vm", "--timeout", "300"])
            .args(["--until", &format!("line:{READY}")])
            .args([
                "--qemu-args",
                "-accel tcg -cpu qemu64,+rdrand -m 256 -machine q35",
            ])
            .arg(source),
    )
}

/// The names of partitions and files take the place of places on the disk.
fn check_names(disk: &serde_json::Value) {
    let partition = &disk["partitions"][0];
    assert_eq!(partition["name"], "the whole disk, ext4", "{disk}");
    let files = disk["files"].as_array().unwrap();
    let blocks = |path: &str| {
        let file = files.iter().find(|file| file["path"] == path);
        file.map_or(0, |file| file["blocks"].as_u64().unwrap())
    };
    assert!(blocks("/boot/vmlinuz") > 500, "{disk}");
    assert!(blocks("/usr/sbin/sshd") > 10, "{disk}");
}

#[test]
fn privileged_a_vm_boots_from_its_boot_image() {
    let lab = Lab::new();
    let disk = vm_disk("vm.raw");
    let before = disk.metadata().unwrap().modified().unwrap();
    let report = record_machine(&lab, &disk);
    assert_eq!(disk.metadata().unwrap().modified().unwrap(), before);
    check_names(&report["disk"]);
    check_names(&json(lab.bootimg().args(["inspect", "--json", "vm"]))["disk"]);
    let bytes = report["bytes"].as_u64().unwrap();
    assert!(
        (8 << 20..128 << 20).contains(&bytes),
        "a boot reads some 29 MB: {report}"
    );
    let mountpoint = lab.mount(&disk, "mnt", RECORDED);
    let (_, fell) = boot(&lab, &mountpoint, "vm.raw", "raw", "writeback");
    assert!(
        fell * 50 < bytes,
        "{fell} of {bytes} bytes came from the disk"
    );
    let (reads, fell) = boot(&lab, &mountpoint, "vm.raw", "raw", "none");
    assert!(
        reads > 100,
        "O_DIRECT goes past injected pages, to the daemon"
    );
    assert!(
        fell * 50 < bytes,
        "{fell} of {bytes} bytes came from the disk"
    );
    lab.umount(&mountpoint);
}

#[test]
fn privileged_a_vm_boots_from_a_qcow2_image() {
    let lab = Lab::new();
    let disk = vm_disk("vm.qcow2");
    let bytes = record(&lab, &disk, "qcow2", "vm")["bytes"]
        .as_u64()
        .unwrap();
    let mountpoint = lab.mount(&disk, "mnt", RECORDED);
    let (_, fell) = boot(&lab, &mountpoint, "vm.qcow2", "qcow2", "writeback");
    assert!(
        fell * 50 < bytes,
        "{fell} of {bytes} bytes came from the disk"
    );
    ok(lab.bootimg().args(["verify", "vm", "--against"]).arg(&disk));
    lab.umount(&mountpoint);
}
