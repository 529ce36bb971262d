//! Mounts of a block service at the end of a long line: what goes over it is counted, and no time is measured.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod block_service;

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use block_service::{Nic, import};
use lab::{Lab, busybox_root, noise, ok, until};
use link_emulator::{Address, Counts, Link, Shape};
use nix::sys::stat::{major, minor};
use serde_json::Value;
use testkit::undisturbed::undisturbed;

const ROUND_TRIP: Duration = Duration::from_millis(20);
const MBIT: u64 = 1000;
/// What a start reads: noise, which does not compress, so that bytes can be compared.
const READ: u32 = 40;
const FILE_BYTES: usize = 200_000;

/// A service, and the line to it of one machine.
struct Far {
    nic: Nic,
    link: Link,
    address: String,
}

impl Far {
    fn start(lab: &Lab) -> Self {
        let nic = Nic::at(lab, "127.0.0.1:0", &["--blocks-open"]);
        let mut link = Link::new(Shape::new(ROUND_TRIP, MBIT));
        let any: Address = "127.0.0.1:0".parse().unwrap();
        let address = link.carry(&any, nic.address.parse().unwrap()).unwrap();
        Self {
            nic,
            link,
            address: address.to_string(),
        }
    }

    fn mount(&self, lab: &Lab, name: &str, flags: &[&str]) -> PathBuf {
        self.mount_of(lab, "nic:root", name, flags)
    }

    fn mount_of(&self, lab: &Lab, source: &str, name: &str, flags: &[&str]) -> PathBuf {
        let flags: Vec<_> = ["--nic", &self.address]
            .iter()
            .chain(flags)
            .copied()
            .collect();
        lab.mount(Path::new(source), name, &flags)
    }

    fn counts(&self) -> Counts {
        self.link.counts()
    }
}

fn path(root: &Path, n: u32) -> PathBuf {
    root.join(format!("usr/lib/d{}/file{n:03}", n % 7))
}

fn imported(lab: &Lab, files: u32) -> PathBuf {
    let root = lab.make_dir("root");
    busybox_root(&root);
    for n in 0..files {
        let path = path(&root, n);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, noise(n, FILE_BYTES)).unwrap();
    }
    import(lab, "root", &root);
    root
}

fn read(mountpoint: &Path, n: u32) {
    let content = fs::read(path(mountpoint, n)).unwrap();
    assert!(content == noise(n, FILE_BYTES), "file {n}");
}

fn count(status: &Value, what: &str) -> u64 {
    let number = status["nic"][what].as_u64();
    number.unwrap_or_else(|| panic!("no {what}: {status}"))
}

/// Returns how far the kernel reads ahead in a mount, in KiB.
fn readahead_kib(mountpoint: &Path) -> u64 {
    let device = fs::metadata(mountpoint).unwrap().dev();
    let (major, minor) = (major(device), minor(device));
    let kib = fs::read_to_string(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"));
    kib.unwrap().trim().parse().unwrap()
}

/// Records a start that reads some files, for the machines that come later.
fn recorded(lab: &Lab, far: &Far) {
    let first = far.mount(lab, "first", &["--nic-share"]);
    (0..READ).for_each(|n| read(&first, n));
    let daemon = lab.status(&first)["pid"].clone();
    lab.umount(&first);
    let process = PathBuf::from(format!("/proc/{daemon}"));
    until("the boot image is at the service", || !process.exists());
}

#[test]
fn privileged_a_recorded_start_takes_one_exchange_and_brings_each_chunk_once() {
    undisturbed(|| {
        let lab = Lab::new();
        imported(&lab, 2 * READ);
        let far = Far::start(&lab);
        recorded(&lab, &far);
        let before = far.counts();
        let second = far.mount(&lab, "second", &[]);
        (0..READ).for_each(|n| read(&second, n));
        let (status, after) = (lab.status(&second), far.counts());
        assert_eq!(count(&status, "streams"), 1, "{status}");
        assert_eq!(count(&status, "duplicate_bytes"), 0, "{status}");
        // Beside the START: what the kernel reads ahead of what was recorded.
        assert!(count(&status, "requests") <= 4, "{status}");
        let content = u64::from(READ) * FILE_BYTES as u64;
        let came = after.to_client - before.to_client;
        assert!(
            came <= content + content / 10,
            "{came} of {content}: {status}"
        );
        lab.umount(&second);
    });
}

/// What the kernel reads around a page is in chunks that no plan names: a program would wait for them.
#[test]
fn privileged_nothing_is_read_around_a_page_beside_a_plan() {
    let lab = Lab::new();
    imported(&lab, READ);
    let far = Far::start(&lab);
    let without = far.mount(&lab, "without", &[]);
    assert_eq!(readahead_kib(&without), 128);
    lab.umount(&without);
    recorded(&lab, &far);
    for (flags, kib) in [(&[][..], 4), (&["--readahead", "64K"][..], 64)] {
        let planned = far.mount(&lab, "planned", flags);
        assert_eq!(readahead_kib(&planned), kib);
        lab.umount(&planned);
    }
}

/// The second start asks for the plan, which may be a new one, and for no chunk.
#[test]
fn privileged_a_second_start_with_a_cache_brings_no_chunk() {
    undisturbed(|| {
        let lab = Lab::new();
        imported(&lab, READ);
        let far = Far::start(&lab);
        let cache = lab.path("cache").to_str().unwrap().to_owned();
        let flags = ["--nic-cache", &cache];
        let first = far.mount(&lab, "first", &flags);
        (0..READ).for_each(|n| read(&first, n));
        let daemon = lab.status(&first)["pid"].clone();
        lab.umount(&first);
        let process = PathBuf::from(format!("/proc/{daemon}"));
        until("the first one has written what came", || !process.exists());
        let before = far.counts();
        let second = far.mount(&lab, "second", &flags);
        (0..READ).for_each(|n| read(&second, n));
        let (status, after) = (lab.status(&second), far.counts());
        assert_eq!(count(&status, "wire_bytes"), 0, "{status}");
        assert!(count(&status, "local_chunks") > u64::from(READ), "{status}");
        let came = after.to_client - before.to_client;
        assert!(came < 64 << 10, "{came}: {status}");
        lab.umount(&second);
    });
}

/// What is named by its index cannot be another one by now.
#[test]
fn privileged_a_second_start_of_a_named_index_asks_nobody_whether_the_service_is_there_or_not() {
    undisturbed(|| {
        let lab = Lab::new();
        imported(&lab, READ);
        let mut far = Far::start(&lab);
        recorded(&lab, &far);
        let cache = lab.path("cache").to_str().unwrap().to_owned();
        let flags = ["--nic-cache", &cache];
        let started = |far: &Far, name: &str, source: &str| {
            let mountpoint = far.mount_of(&lab, source, name, &flags);
            (0..READ).for_each(|n| read(&mountpoint, n));
            let status = lab.status(&mountpoint);
            let process = PathBuf::from(format!("/proc/{}", status["pid"]));
            lab.umount(&mountpoint);
            until("what came is written", || !process.exists());
            status
        };
        let first = started(&far, "first", "nic:root");
        let named = format!("nic:root@{}", first["nic"]["index"].as_str().unwrap());
        let second = started(&far, "second", &named);
        far.nic.kill();
        // Another one, to which no line leads.
        far.nic = Nic::at(&lab, "127.0.0.1:0", &["--blocks-open"]);
        let third = started(&far, "third", &named);
        for status in [second, third] {
            let counts = ["requests", "streams", "wire_bytes"].map(|what| count(&status, what));
            assert_eq!(counts, [0; 3], "{status}");
            assert!(!status["boot"].is_null(), "it has the plan: {status}");
        }
    });
}

/// Nothing is said of a cache: what came is kept, and what is damaged of it is fetched again.
#[test]
fn privileged_a_second_start_brings_no_chunk_by_default_and_damage_is_fetched_again() {
    undisturbed(|| {
        let lab = Lab::new();
        imported(&lab, READ);
        let far = Far::start(&lab);
        let cache = lab.path("cache");
        let started = |name: &str| {
            let mountpoint = lab.make_dir(name);
            ok(lab
                .yolofs()
                .env("YOLOFS_NIC_CACHE", &cache)
                .args(["mount", "nic:root"])
                .arg(&mountpoint)
                .args(["--nic", &far.address]));
            (0..READ).for_each(|n| read(&mountpoint, n));
            let status = lab.status(&mountpoint);
            let process = PathBuf::from(format!("/proc/{}", status["pid"]));
            lab.umount(&mountpoint);
            until("what came is written", || !process.exists());
            assert_eq!(status["nic"]["filled"], Value::Null, "{status}");
            status
        };
        let first = started("first");
        assert!(count(&first, "wire_bytes") > 0, "{first}");
        let second = started("second");
        assert_eq!(
            (count(&second, "wire_bytes"), count(&second, "requests")),
            (0, 0),
            "{second}"
        );
        for segment in fs::read_dir(cache.join("chunks/segments")).unwrap() {
            let path = segment.unwrap().path();
            let mut bytes = fs::read(&path).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            fs::write(&path, bytes).unwrap();
        }
        let third = started("third");
        let came = count(&third, "wire_bytes");
        assert!(came > 0 && came < count(&first, "wire_bytes"), "{third}");
    });
}

#[test]
fn privileged_files_without_a_plan_cost_few_round_trips() {
    undisturbed(|| {
        let lab = Lab::new();
        let root = imported(&lab, 2 * READ);
        let far = Far::start(&lab);
        let mountpoint = far.mount(&lab, "mnt", &[]);
        // Two chunks each, from all directories in turn: some 160 if each is waited for.
        (0..2 * READ).for_each(|n| read(&mountpoint, n));
        let status = lab.status(&mountpoint);
        assert!(count(&status, "requests") <= 60, "{status}");
        assert_eq!(count(&status, "duplicate_bytes"), 0, "{status}");
        ok(std::process::Command::new("diff")
            .arg("-r")
            .args([root.join("usr/lib"), mountpoint.join("usr/lib")]));
        lab.umount(&mountpoint);
    });
}
