//! The node on a kernel that does not send requests again: Linux before 6.9.
#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::sys::signal::Signal;

use lab::service::{Kernel, Readers, Service, signal_to};
use lab::stopped::Stopped;
use lab::{Lab, noise, ok, until};

/// How long the file is that is read from a source that hangs.
const LEN: usize = 70_000;

/// Upgrades to a copy of the program, and returns what the node says of it.
fn upgrade(lab: &Lab, service: &Service<'_>) -> String {
    let upgraded = lab.path("upgraded");
    if !upgraded.exists() {
        fs::copy(env!("CARGO_BIN_EXE_yolofs"), &upgraded).unwrap();
    }
    let node = service.pid();
    let told = ok(lab.yolofs().args(["upgrade", "--program"]).arg(&upgraded));
    service.until_another(node);
    told
}

#[test]
fn privileged_upgrade_on_an_old_kernel_fails_no_read() {
    let lab = Lab::new();
    let service = Service::start_on(&lab, Kernel::Old);
    let places = ["one", "two"].map(|name| service.mount(name));
    let readers = places.each_ref().map(|place| Readers::start(place));
    let log = || fs::read_to_string(lab.path("node.log")).unwrap();
    for _ in 0..3 {
        let workers = places.each_ref().map(|place| service.worker(place));
        let told = upgrade(&lab, &service);
        println!("{told}");
        for (place, former) in places.iter().zip(workers) {
            assert_ne!(service.worker(place), former);
            assert_eq!(service.listed(place).unwrap()["restarts"], 0);
        }
        readers.iter().for_each(Readers::until_more);
        // Requests that come and go are not taken for lost ones by the node that runs now.
        until("the node to see that nothing was lost", || {
            let log = log();
            let now = log.rsplit("from now on").next().unwrap_or_default();
            now.matches("no request was lost").count() == places.len()
        });
    }
    for (place, readers) in places.iter().zip(readers) {
        readers.stop();
        assert_eq!(service.state(place), "serving");
        lab.umount(place);
    }
    let log = log();
    let orderly = log.matches("has answered what it had read").count();
    assert_eq!(orderly, 3, "{log}");
    assert!(!log.contains("may leave requests unanswered"), "{log}");
}

#[test]
fn privileged_worker_that_is_killed_at_rest_on_an_old_kernel_loses_nothing() {
    let lab = Lab::new();
    let service = Service::start_on(&lab, Kernel::Old);
    let mountpoint = service.mount("tree");
    Readers::start(&mountpoint).stop();
    for _ in 0..3 {
        service.kill_worker(&mountpoint, Signal::SIGKILL);
        Readers::start(&mountpoint).stop();
    }
    assert_eq!(service.state(&mountpoint), "serving");
    lab.umount(&mountpoint);
}

/// A mount of a source that can be made to hang, a thread that reads it, and who serves that source.
struct Hanging {
    source: PathBuf,
    mountpoint: PathBuf,
    stopped: Stopped,
    reader: JoinHandle<std::io::Result<Vec<u8>>>,
}

impl Hanging {
    fn start(lab: &Lab, service: &Service<'_>) -> Self {
        let root = lab.make_dir("root");
        fs::write(root.join("file"), noise(0, LEN)).unwrap();
        let source = lab.mount(&root, "source", &["--standalone"]);
        let server = u32::try_from(lab.status(&source)["pid"].as_u64().unwrap()).unwrap();
        let mountpoint = lab.mount(&source, "mnt", &[]);
        let file = File::open(mountpoint.join("file")).unwrap();
        let stopped = Stopped::stop(server);
        let reader = std::thread::spawn(move || {
            posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
            let mut bytes = vec![0; LEN];
            file.read_exact_at(&mut bytes, 0)?;
            Ok(bytes)
        });
        let hanging = Self {
            source,
            mountpoint,
            stopped,
            reader,
        };
        until("the read to wait for the source", || {
            hanging.in_hand(service) > 0
        });
        hanging
    }

    fn in_hand(&self, service: &Service<'_>) -> u64 {
        let listed = service.listed(&self.mountpoint).unwrap();
        listed["served"]["in_hand"].as_u64().unwrap_or(0)
    }
}

#[test]
fn privileged_read_that_a_killed_worker_had_on_an_old_kernel_ends() {
    let lab = Lab::new();
    let service = Service::start_on(&lab, Kernel::Old);
    let other = service.mount("other");
    Readers::start(&other).stop();
    let hanging = Hanging::start(&lab, &service);
    signal_to(service.worker(&hanging.mountpoint), Signal::SIGKILL);
    until("the read to end", || hanging.reader.is_finished());
    assert!(hanging.reader.join().unwrap().is_err());
    let mountpoint = &hanging.mountpoint;
    service.until_state(mountpoint, "failed");
    let why = service.listed(mountpoint).unwrap()["error"].to_string();
    assert!(why.contains("does not send them again"), "{why}");
    until("the place to be as it was", || is_empty(mountpoint));
    // The source answers again, and so does the mount when it is asked for again.
    drop(hanging.stopped);
    lab.mount(&hanging.source, "mnt", &[]);
    let content = fs::read(mountpoint.join("file")).unwrap();
    assert!(content == noise(0, LEN));
    // Nobody waited for that one when its worker was killed.
    Readers::start(&other).stop();
    for place in [mountpoint, &other, &hanging.source] {
        lab.umount(place);
    }
}

fn is_empty(dir: &Path) -> bool {
    fs::read_dir(dir).is_ok_and(|names| names.count() == 0)
}

#[test]
fn privileged_upgrade_on_an_old_kernel_waits_for_the_source() {
    let lab = Lab::new();
    let service = Service::start_on(&lab, Kernel::Old);
    let hanging = Hanging::start(&lab, &service);
    let worker = service.worker(&hanging.mountpoint);
    let stopped = hanging.stopped;
    std::thread::scope(|scope| {
        let upgrading = scope.spawn(|| upgrade(&lab, &service));
        // It has been told to read no more, and has a read in its hand: a request stays in the kernel.
        let log = || fs::read_to_string(lab.path("node.log")).unwrap();
        until("the worker to be retired", || {
            log().contains("reads no more requests")
        });
        assert!(!hanging.reader.is_finished());
        drop(stopped);
        let bytes = hanging.reader.join().unwrap().unwrap();
        assert!(bytes == noise(0, LEN));
        upgrading.join().unwrap();
    });
    assert_ne!(service.worker(&hanging.mountpoint), worker);
    let content = fs::read(hanging.mountpoint.join("file")).unwrap();
    assert!(content == noise(0, LEN));
    for place in [&hanging.mountpoint, &hanging.source] {
        lab.umount(place);
    }
}
