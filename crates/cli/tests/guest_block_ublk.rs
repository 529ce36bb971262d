//! Block devices of the machine that the node owns: in a guest with a kernel of Debian 13, since not every machine has
//! ublk.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod block_attached;

use std::fs;
use std::path::Path;
use std::process::Command;

use testkit::guest::Guest;

/// How many tests there are in `inside`, so that none is left out unseen.
const INSIDE: usize = 4;

#[test]
fn privileged_block_devices_of_the_machine_in_a_guest() {
    let guest = Guest::new(include_str!("block_ublk/init"));
    guest.add_module("ublk_drv.ko");
    let busybox = Command::new("which").arg("busybox").output().unwrap();
    let busybox = String::from_utf8(busybox.stdout).unwrap();
    guest.add_program("busybox", Path::new(busybox.trim()));
    guest.add_program("yolofs", Path::new(env!("CARGO_BIN_EXE_yolofs")));
    // What the lab looks for where it was built.
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    let packaging = packaging.canonicalize().unwrap();
    let inside = guest.root().join(packaging.strip_prefix("/").unwrap());
    fs::create_dir_all(&inside).unwrap();
    let unit = "yolofs-node.service";
    fs::copy(packaging.join(unit), inside.join(unit)).unwrap();
    guest.must_pass(INSIDE);
}

/// What the guest runs.
mod inside {
    use std::fs::{self, File};
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::os::unix::fs::FileExt as _;
    use std::path::Path;
    use std::process::{Child, Command, Stdio};
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

    use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
    use nix::sys::signal::Signal;

    use crate::block_attached::{attach, device, until_served, writable};
    use lab::service::{Service, signal_to};
    use lab::{Lab, fails, noise, ok, until};

    /// Bytes of a file that is written and read.
    const FILE: usize = 200_000;
    /// Files there are at a time.
    const FILES: u64 = 8;

    /// The capabilities and the files of a worker that answers a block device.
    fn assert_has_its_device_only(worker: u32) {
        let files = fs::read_dir(format!("/proc/{worker}/fd")).unwrap();
        // One that was closed meanwhile is none.
        let files = files.filter_map(|file| fs::read_link(file.unwrap().path()).ok());
        let names =
            files.filter_map(|file| Some(file.to_str()?.strip_prefix("/dev/ublk")?.to_owned()));
        let mut names: Vec<_> = names.collect();
        names.sort();
        names.dedup();
        assert!(names.len() == 1 && names[0].starts_with('c'), "{names:?}");
        let status = fs::read_to_string(format!("/proc/{worker}/status")).unwrap();
        let line = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        let capabilities = line("CapPrm:\t").unwrap();
        let capabilities = u64::from_str_radix(capabilities, 16).unwrap();
        assert_eq!(capabilities & 1 << 21, 0, "it has CAP_SYS_ADMIN");
        assert_eq!(line("Seccomp:\t"), Some("2"));
    }

    /// Writes files and reads them again from the device, each step another one.
    fn write_and_read(mounted: &Path, over: &AtomicBool, steps: &AtomicU64) -> std::io::Result<()> {
        let mut step = 0;
        while !over.load(SeqCst) {
            let path = mounted.join((step % FILES).to_string());
            let content = noise(u32::try_from(step).unwrap(), FILE);
            let mut file = File::create(&path)?;
            file.write_all(&content)?;
            file.sync_all()?;
            let file = File::open(&path)?;
            posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
            let mut read = vec![0; FILE];
            file.read_exact_at(&mut read, 0)?;
            if read != content {
                return Err(std::io::Error::other(format!("step {step}: wrong bytes")));
            }
            step = steps.fetch_add(1, SeqCst) + 1;
        }
        Ok(())
    }

    #[test]
    #[ignore = "in the guest"]
    fn a_file_system_is_written_and_read_while_all_that_serves_it_is_killed() {
        let lab = Lab::new();
        let mut service = Service::start(&lab);
        let image = writable(&lab, "image", "live", "64M");
        let attached = attach(&lab, &image, "vm", &["--ublk"]);
        assert_eq!(
            (&attached["state"], &attached["kind"]),
            (&"serving".into(), &"ublk".into())
        );
        let link = lab.run_dir().join("devices/vm.dev");
        assert_eq!(attached["address"], link.to_str().unwrap());
        let kernels = fs::canonicalize(&link).unwrap();
        assert_has_its_device_only(until_served(&lab, "vm", 0));
        ok(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&link));
        let mounted = lab.make_dir("mounted");
        ok(Command::new("mount").arg(&link).arg(&mounted));
        let (over, steps) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let busy = scope.spawn(|| write_and_read(&mounted, &over, &steps));
            let until_more = |count| {
                let wanted = steps.load(SeqCst) + count;
                until("the file system to be used on", || {
                    assert!(!busy.is_finished(), "it failed");
                    steps.load(SeqCst) >= wanted
                });
            };
            until_more(2);
            for round in 0..6 {
                let worker = until_served(&lab, "vm", 0);
                match round {
                    0..=2 => signal_to(worker, Signal::SIGKILL),
                    3 => service.kill_node(),
                    4 => {
                        let node = service.pid();
                        ok(lab.yolofs().arg("upgrade"));
                        service.until_another(node);
                    }
                    _ => {
                        service.kill_all();
                        service.start_again();
                    }
                }
                let now = until_served(&lab, "vm", if round == 3 { 0 } else { worker });
                assert!(round != 3 || now == worker, "the worker served on");
                until_more(3);
                assert_eq!(
                    fs::canonicalize(&link).unwrap(),
                    kernels,
                    "it is the same device"
                );
            }
            over.store(true, SeqCst);
            busy.join().unwrap().unwrap();
        });
        assert!(device(&lab, "vm")["restarts"].as_u64() >= Some(3));
        assert!(device(&lab, "vm")["served"]["bytes_written"].as_u64() > Some(0));
        // What is mounted is not taken away; afterwards nothing is left.
        let why = fails(1, lab.yolofs().args(["block", "detach", "vm"]));
        assert!(why.contains("in use"), "{why}");
        ok(Command::new("umount").arg(&mounted));
        ok(Command::new("e2fsck").args(["-f", "-n"]).arg(&link));
        ok(lab.yolofs().args(["block", "detach", "vm"]));
        assert!(!link.is_symlink());
        until("the device to be gone", || !kernels.exists());
        ok(lab.yolofs().args(["block", "verify"]).arg(&image));
    }

    /// Starts an export of an image as a block device, and waits until it serves.
    fn export(lab: &Lab, image: &Path, link: &Path) -> Child {
        let mut export = lab.yolofs();
        export.args(["block", "export"]).arg(image);
        export.arg("--ublk").arg(link).stdout(Stdio::piped());
        let mut export = export.spawn().unwrap();
        let mut said = String::new();
        let mut output = BufReader::new(export.stdout.as_mut().unwrap());
        output.read_line(&mut said).unwrap();
        assert!(said.contains("is served at"), "{said}");
        export
    }

    /// Without a node, the process that has the driver makes and ends the device of one that has not.
    #[test]
    #[ignore = "in the guest"]
    fn an_export_without_the_driver_serves_a_device_and_the_next_one_goes_on() {
        let lab = Lab::new();
        let image = writable(&lab, "image", "live", "64M");
        let link = lab.path("link");
        let mut first = export(&lab, &image, &link);
        assert_has_its_device_only(first.id());
        let status = fs::read_to_string(format!("/proc/{}/status", first.id())).unwrap();
        assert!(status.contains("\nSeccomp_filters:\t4\n"), "{status}");
        let kernels = fs::canonicalize(&link).unwrap();
        let content = noise(3, 1 << 20);
        fs::write(&link, &content).unwrap();
        let user = File::open(&link).unwrap();
        user.sync_all().unwrap();
        first.kill().unwrap();
        first.wait().unwrap();
        let mut next = export(&lab, &image, &link);
        assert_eq!(fs::canonicalize(&link).unwrap(), kernels);
        let mut read = vec![0; content.len()];
        user.read_exact_at(&mut read, 0).unwrap();
        assert!(read == content);
        drop(user);
        signal_to(next.id(), Signal::SIGTERM);
        assert!(next.wait().unwrap().success());
        assert!(!link.is_symlink());
        until("the device to be gone", || !kernels.exists());
    }

    #[test]
    #[ignore = "in the guest"]
    fn users_of_a_device_get_no_other_image_and_an_end_if_it_is_detached() {
        let lab = Lab::new();
        let mut service = Service::start(&lab);
        let (image, other) = (lab.path("disk.raw"), lab.path("other.raw"));
        fs::write(&image, vec![1; 1 << 20]).unwrap();
        fs::write(&other, vec![2; 1 << 20]).unwrap();
        let link = lab.path("link");
        let name = attach(&lab, &image, link.to_str().unwrap(), &["--ublk"])["name"].clone();
        let name = name.as_str().unwrap();
        let user = File::open(&link).unwrap();
        let mut read = vec![0; 4096];
        user.read_exact_at(&mut read, 0).unwrap();
        assert_eq!(read, vec![1; 4096]);
        service.kill_all();
        // Nobody else goes on with it.
        let mut export = lab.yolofs();
        export.args(["block", "export"]).arg(&other);
        let why = fails(1, export.arg("--ublk").arg(&link));
        assert!(why.contains("of another image"), "{why}");
        service.start_again();
        until_served(&lab, name, 0);
        user.read_exact_at(&mut read, 1 << 19).unwrap();
        assert_eq!(read, vec![1; 4096]);
        let resize = ["block", "resize", "--attached", name, "2M"];
        assert!(fails(1, lab.yolofs().args(resize)).contains("read"));
        // It is only read: it has no one to itself, and ends for those that have it open.
        ok(lab.yolofs().args(["block", "detach"]).arg(&link));
        assert!(user.read_exact_at(&mut read, 1 << 18).is_err());
        attach(
            &lab,
            &other,
            link.to_str().unwrap(),
            &["--ublk", "--writable"],
        );
        assert_eq!(fs::read(&link).unwrap(), vec![2; 1 << 20]);
        assert!(user.read_exact_at(&mut read, 0).is_err());
        // An image that has grown is served on with the size that its users know, until it is attached again.
        ok(lab.yolofs().args(resize));
        let worker = until_served(&lab, name, 0);
        signal_to(worker, Signal::SIGKILL);
        until_served(&lab, name, worker);
        assert_eq!(fs::read(&link).unwrap(), vec![2; 1 << 20]);
        ok(lab.yolofs().args(["block", "detach"]).arg(&link));
        attach(
            &lab,
            &other,
            link.to_str().unwrap(),
            &["--ublk", "--writable"],
        );
        assert_eq!(fs::read(&link).unwrap().len(), 2 << 20);
        ok(lab.yolofs().args(["block", "detach"]).arg(&link));
        assert_eq!(service.node()["devices"], 0);
    }

    /// A worker that images share because of their cache gets io_uring when one of them is a block device, and keeps it.
    #[test]
    #[ignore = "in the guest"]
    fn images_with_a_cache_share_a_worker_with_a_block_device() {
        let lab = Lab::new();
        let service = Service::start(&lab);
        let cache = lab.path("cache");
        let options = ["--cache", cache.to_str().unwrap()];
        let first = attach(
            &lab,
            &writable(&lab, "first", "append", "64M"),
            "first",
            &options,
        );
        let ublk = ["--ublk", options[0], options[1]];
        let image = writable(&lab, "second", "sparse", "64M");
        let second = attach(&lab, &image, "second", &ublk);
        assert_ne!(second["pid"], first["pid"], "the first one has no io_uring");
        let worker = until_served(&lab, "second", 0);
        assert_eq!(until_served(&lab, "first", 0), worker);
        let link = lab.run_dir().join("devices/second.dev");
        let content = noise(5, 1 << 20);
        fs::write(&link, &content).unwrap();
        File::open(&link).unwrap().sync_all().unwrap();
        signal_to(worker, Signal::SIGKILL);
        let next = until_served(&lab, "second", worker);
        assert_eq!(until_served(&lab, "first", worker), next);
        service.kill_node();
        let third = attach(
            &lab,
            &writable(&lab, "third", "append", "64M"),
            "third",
            &ublk,
        );
        assert_eq!(third["pid"], next, "it was replaced again");
        let file = File::open(&link).unwrap();
        posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
        let mut read = vec![0; content.len()];
        file.read_exact_at(&mut read, 0).unwrap();
        assert!(read == content);
        drop(file);
        for name in ["first", "second", "third"] {
            ok(lab.yolofs().args(["block", "detach", name]));
        }
        assert_eq!(service.node()["devices"], 0);
    }
}
