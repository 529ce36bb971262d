//! Clones of a recorded disk on a mount: served from one recording, and right when they change.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use lab::{Lab, json};

/// What a boot of the disk reads: the first MiB of its 4 MiB.
const BOOT: usize = 1 << 20;

/// Longer than it takes until a change in the directory is seen, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Makes a disk with different blocks, and records a command that reads its beginning.
fn recorded(lab: &Lab, disk: &Path) -> Vec<u8> {
    let words = 0..(4 * BOOT as u64) / 8;
    let bytes = words.map(|word| word.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let bytes: Vec<u8> = bytes.flat_map(u64::to_le_bytes).collect();
    fs::write(disk, &bytes).unwrap();
    let read = "exec dd if=\"$YOLOFS_IMAGE\" of=/dev/null bs=64k count=16 status=none";
    let report = json(
        lab.bootimg()
            .args(["record", "--json", "--name", "base"])
            .arg(disk)
            .args(["--", "sh", "-c", read]),
    );
    assert_eq!(report["bytes"], BOOT, "{report}");
    bytes
}

fn fell_through(lab: &Lab, mountpoint: &Path) -> u64 {
    lab.status(mountpoint)["served"]["fallthrough_bytes"]
        .as_u64()
        .unwrap()
}

/// Reads what a boot reads.
fn boot(path: &Path) -> Vec<u8> {
    let mut bytes = vec![0; BOOT];
    fs::File::open(path)
        .unwrap()
        .read_exact_at(&mut bytes, 0)
        .unwrap();
    bytes
}

/// Waits until a file of the mount is as it should be.
fn wait_for(path: &Path, wanted: &[u8]) {
    let started = Instant::now();
    while fs::read(path).map_or(true, |found| found != wanted) {
        assert!(started.elapsed() < PATIENCE, "{}", path.display());
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn privileged_a_directory_of_clones_is_served_from_one_recording() {
    let lab = Lab::new();
    let elsewhere = tempfile::tempdir().unwrap();
    let bytes = recorded(&lab, &elsewhere.path().join("base.raw"));
    let images = tempfile::tempdir().unwrap();
    let image = |name: &str| images.path().join(name);
    let mut changed = bytes.clone();
    changed[5000..9000].fill(0xee);
    for (name, bytes) in [
        ("one.raw", &bytes),
        ("two.raw", &bytes),
        ("other.raw", &changed),
    ] {
        fs::write(image(name), bytes).unwrap();
    }
    let served = ["--mode", "disk", "--revalidate", "1"];
    let options = [&served[..], &["--wait-prewarm", "--readahead", "0"]].concat();
    let mountpoint = lab.mount(images.path(), "mnt", &options);
    let before = fell_through(&lab, &mountpoint);
    for (name, bytes) in [
        ("one.raw", &bytes),
        ("two.raw", &bytes),
        ("other.raw", &changed),
    ] {
        assert!(boot(&mountpoint.join(name)) == bytes[..BOOT], "{name}");
    }
    let fell = fell_through(&lab, &mountpoint) - before;
    assert!(
        fell * 20 < 3 * BOOT as u64,
        "{fell} bytes came from the disk"
    );

    // One that comes later appears, and one that is written to is served as it is then.
    fs::write(image("three.raw"), &bytes).unwrap();
    wait_for(&mountpoint.join("three.raw"), &bytes);
    let two = fs::File::options()
        .write(true)
        .open(image("two.raw"))
        .unwrap();
    two.write_all_at(&[0x77; 4096], 8192).unwrap();
    let mut now = bytes.clone();
    now[8192..12288].fill(0x77);
    wait_for(&mountpoint.join("two.raw"), &now);
    lab.umount(&mountpoint);

    // The next mount finds out what is a clone by then.
    let mountpoint = lab.mount(images.path(), "mnt", &options);
    let before = fell_through(&lab, &mountpoint);
    assert!(boot(&mountpoint.join("three.raw")) == bytes[..BOOT]);
    assert!(boot(&mountpoint.join("two.raw")) == now[..BOOT]);
    let fell = fell_through(&lab, &mountpoint) - before;
    assert!(
        fell * 20 < 2 * BOOT as u64,
        "{fell} bytes came from the disk"
    );
    lab.umount(&mountpoint);
}

#[test]
fn privileged_a_clone_needs_no_recording_of_its_own() {
    let lab = Lab::new();
    let dir = tempfile::tempdir().unwrap();
    let bytes = recorded(&lab, &dir.path().join("base.raw"));
    let clone = dir.path().join("clone.raw");
    fs::write(&clone, &bytes).unwrap();
    let mountpoint = lab.mount(&clone, "mnt", &["--wait-prewarm", "--readahead", "0"]);
    assert!(boot(&mountpoint.join("clone.raw")) == bytes[..BOOT]);
    let status = lab.status(&mountpoint);
    let fell = fell_through(&lab, &mountpoint);
    assert!(fell * 20 < BOOT as u64, "{status}");
    lab.umount(&mountpoint);
}
