//! Mounts that ask two block services: one of them stalls, dies or lies, at the end of a long line. What the other one
//! brings is counted, every byte is compared, and no time is measured: what is wrong stays wrong until all is read.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod block_service;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use block_service::{Nic, import};
use lab::{Lab, busybox_root, noise, ok, until};
use link_emulator::{Address, Fault, Link, Shape};
use serde_json::Value;

const FILES: u32 = 60;
/// Two chunks each of noise, which does not compress.
const FILE_BYTES: usize = 200_000;
/// Files that are read before something happens.
const BEFORE: u32 = 12;

/// Two services with the same source, each at the end of a line of its own.
struct Two {
    root: PathBuf,
    lines: [(Link, String); 2],
    _nics: [Nic; 2],
}

impl Two {
    fn start(lab: &Lab) -> Self {
        let root = lab.make_dir("root");
        busybox_root(&root);
        for n in 0..FILES {
            let path = path(&root, n);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, noise(n, FILE_BYTES)).unwrap();
        }
        import(lab, "root", &root);
        let any = "127.0.0.1:0";
        let second = Nic::second(lab, any, &["--blocks-open"]);
        let nics = [Nic::at(lab, any, &["--blocks-open"]), second];
        let lines = nics.each_ref().map(|nic| {
            let mut link = Link::new(Shape::new(Duration::from_millis(20), 1000));
            let listen: Address = any.parse().unwrap();
            let address = link.carry(&listen, nic.address.parse().unwrap()).unwrap();
            (link, address.to_string())
        });
        Self {
            root,
            lines,
            _nics: nics,
        }
    }

    fn mount(&self, lab: &Lab, name: &str, flags: &[&str]) -> PathBuf {
        let [(_, first), (_, second)] = &self.lines;
        let flags = [&["--nic", first, "--nic", second], flags].concat();
        lab.mount(Path::new("nic:root"), name, &flags)
    }

    fn treat(&self, number: usize, fault: Fault) {
        self.lines[number].0.set_fault(fault);
    }

    fn same(&self, mountpoint: &Path) {
        let at = "usr/lib";
        ok(Command::new("diff")
            .arg("-r")
            .args([self.root.join(at), mountpoint.join(at)]));
    }
}

fn path(root: &Path, n: u32) -> PathBuf {
    root.join(format!("usr/lib/d{}/file{n:03}", n % 7))
}

fn read(mountpoint: &Path, files: std::ops::Range<u32>) {
    for n in files {
        let content = fs::read(path(mountpoint, n)).unwrap();
        assert!(content == noise(n, FILE_BYTES), "file {n}");
    }
}

fn count(status: &Value, what: &str) -> u64 {
    let number = status[what].as_u64();
    number.unwrap_or_else(|| panic!("no {what}: {status}"))
}

/// Returns what a mount says of its services, after no read failed.
fn unharmed(lab: &Lab, mountpoint: &Path) -> Value {
    let status = lab.status(mountpoint)["nic"].clone();
    assert_eq!(count(&status, "failed_reads"), 0, "{status}");
    status
}

#[test]
fn privileged_what_one_service_does_not_bring_another_does() {
    let lab = Lab::new();
    let two = Two::start(&lab);
    for (name, fault) in [
        ("stalls", Fault::Stalled),
        ("dies", Fault::Dead),
        ("lies", Fault::Lying),
    ] {
        let mountpoint = two.mount(&lab, name, &[]);
        read(&mountpoint, 0..BEFORE);
        let before = unharmed(&lab, &mountpoint);
        two.treat(0, fault);
        read(&mountpoint, 0..FILES);
        two.same(&mountpoint);
        let status = unharmed(&lab, &mountpoint);
        let [first, second] = [0, 1].map(|number| status["services"][number].clone());
        let came = count(&second, "chunks") - count(&before["services"][1], "chunks");
        // What the first one had not read ahead; of the 120 chunks, that was half or less.
        assert!(came > u64::from(FILES) / 2, "{name}: {status}");
        match fault {
            Fault::Stalled => assert!(count(&first, "stalls") >= 1, "{status}"),
            Fault::Dead => assert_eq!(first["asked"], false, "{status}"),
            _ => assert!((1..16).contains(&count(&first, "lies")), "{status}"),
        }
        two.treat(0, Fault::None);
        lab.umount(&mountpoint);
    }
}

/// The first one is out of reach when it is mounted: then the other one says what the source consists of.
#[test]
fn privileged_a_mount_begins_with_whichever_service_is_there() {
    let lab = Lab::new();
    let two = Two::start(&lab);
    for fault in [Fault::Dead, Fault::Stalled] {
        two.treat(0, fault);
        let mountpoint = two.mount(&lab, "mnt", &[]);
        read(&mountpoint, 0..BEFORE);
        let status = unharmed(&lab, &mountpoint);
        assert_eq!(count(&status["services"][0], "chunks"), 0, "{status}");
        two.treat(0, Fault::None);
        until("the first one is asked again", || {
            lab.status(&mountpoint)["nic"]["services"][0]["asked"] == true
        });
        lab.umount(&mountpoint);
    }
}

/// One lies and the other one stalls: then the origin is asked.
#[test]
fn privileged_the_origin_is_asked_when_both_services_fail() {
    let lab = Lab::new();
    let two = Two::start(&lab);
    let origin = two.root.to_str().unwrap().to_owned();
    let mountpoint = two.mount(&lab, "mnt", &["--origin", &origin]);
    read(&mountpoint, 0..BEFORE);
    two.treat(0, Fault::Lying);
    read(&mountpoint, BEFORE..2 * BEFORE);
    two.treat(1, Fault::Stalled);
    read(&mountpoint, 0..FILES);
    two.same(&mountpoint);
    let status = unharmed(&lab, &mountpoint);
    assert!(count(&status, "origin_chunks") > 0, "{status}");
    // What had come ahead is found out when it is read.
    assert!(count(&status, "lies") >= 1, "{status}");
    assert!(count(&status["services"][1], "chunks") > 0, "{status}");
    lab.umount(&mountpoint);
}

/// Records a start that reads everything, for the machines that come later.
fn record(lab: &Lab, two: &Two) {
    let first = two.mount(lab, "first", &["--nic-share"]);
    read(&first, 0..FILES);
    let daemon = lab.status(&first)["pid"].clone();
    lab.umount(&first);
    let process = PathBuf::from(format!("/proc/{daemon}"));
    until("the boot image is at the service", || !process.exists());
}

/// Mounts, and gives the first line a fault when half of the plan came.
fn broken(two: &Two, fault: Fault, mount: impl FnOnce() -> PathBuf) -> PathBuf {
    let line = &two.lines[0].0;
    let half = line.counts().to_client + u64::from(FILES) * FILE_BYTES as u64 / 2;
    std::thread::scope(|scope| {
        let breaking = scope.spawn(|| {
            until("half of the plan came", || line.counts().to_client > half);
            two.treat(0, fault);
        });
        let mountpoint = mount();
        breaking.join().unwrap();
        mountpoint
    })
}

/// A plan is streamed by one service; in the middle of that it goes away, and the other one brings the rest.
#[test]
fn privileged_a_stream_that_breaks_off_is_continued_by_the_other_service() {
    let lab = Lab::new();
    let two = Two::start(&lab);
    record(&lab, &two);
    for (name, fault) in [("stalls", Fault::Stalled), ("dies", Fault::Dead)] {
        let broken = broken(&two, fault, || {
            let mountpoint = two.mount(&lab, name, &[]);
            read(&mountpoint, 0..FILES);
            mountpoint
        });
        two.same(&broken);
        let status = unharmed(&lab, &broken);
        // The one that broke off, and the rest from the other service.
        assert_eq!(count(&status, "streams"), 2, "{status}");
        two.treat(0, Fault::None);
        lab.umount(&broken);
    }
}

/// Programs would wait for each chunk if what replays the plan waited for a service that is silent.
#[test]
fn privileged_a_plan_is_replayed_from_the_origin_while_the_service_is_silent() {
    let lab = Lab::new();
    let two = Two::start(&lab);
    record(&lab, &two);
    let origin = two.root.to_str().unwrap().to_owned();
    let flags = [
        "--nic",
        &two.lines[0].1,
        "--origin",
        &origin,
        "--wait-prewarm",
    ];
    let mount = |name| lab.mount(Path::new("nic:root"), name, &flags);
    let whole = mount("whole");
    let injected = |mountpoint: &Path| count(&lab.status(mountpoint)["boot"], "injected_pages");
    let pages = injected(&whole);
    assert!(pages > 0);
    lab.umount(&whole);
    let stalled = broken(&two, Fault::Stalled, || mount("stalled"));
    let status = unharmed(&lab, &stalled);
    assert_eq!(injected(&stalled), pages, "{status}");
    assert!(
        count(&status, "origin_chunks") > u64::from(FILES) / 2,
        "{status}"
    );
    two.same(&stalled);
    two.treat(0, Fault::None);
    lab.umount(&stalled);
}
