//! Devices of the node outlive who serves them, and who owns them.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod block_attached;
mod block_client;
mod block_export;
mod block_guest;

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::sys::signal::Signal;
use serde_json::json;
use testkit::layouts::{LayoutDir, named};
use testkit::registries::{Kind, Registry};

use block_attached::{attach, device, kill_worker, metric, until_served, writable};
use block_client::Writer;
use block_guest::{assert_copied, guest_with_disk, outlives};
use lab::service::{Service, signal_to};
use lab::{Lab, fails, noise, ok, until};

#[test]
fn privileged_block_devices_come_and_go_and_twice_is_once() {
    let lab = Lab::new();
    let why = fails(1, lab.yolofs().args(["block", "attach", "/dev/null", "vm"]));
    assert!(why.contains("yolofs node"), "{why}");
    let service = Service::start(&lab);
    let image = writable(&lab, "image", "live", "16M");
    let attached = attach(&lab, &image, "vm", &[]);
    assert_eq!(
        (&attached["state"], &attached["kind"]),
        (&"serving".into(), &"nbd".into())
    );
    assert_eq!(attached["served"]["writable"], true, "{attached}");
    let socket = lab.run_dir().join("devices/vm.sock");
    assert!(socket.exists());
    let size = ok(Command::new("nbdinfo").args(["--size", attached["address"].as_str().unwrap()]));
    assert_eq!(size.trim(), (16 << 20).to_string());
    let (written, _) = disk(&lab, "written.raw", 1);
    let (written, copy) = (written.to_str().unwrap(), lab.path("copy.raw"));
    let address = attached["address"].as_str().unwrap();
    for ends in [[written, address], [address, copy.to_str().unwrap()]] {
        ok(Command::new("nbdcopy").args(ends));
    }
    for (metric_of_it, least) in [
        ("serving", 1),
        ("size_bytes", 16 << 20),
        ("requests_total", 2),
        ("written_bytes_total", 1 << 20),
        ("read_bytes_total", 1 << 20),
    ] {
        let line = format!("yolofs_device_{metric_of_it}{{device=\"vm\"}}");
        assert!(metric(&lab, &line) >= Some(least), "{line}");
    }
    assert_eq!(metric(&lab, "yolofs_devices{state=\"serving\"}"), Some(1));
    // The same again changes nothing.
    assert_eq!(attach(&lab, &image, "vm", &[])["pid"], attached["pid"]);
    // Another device of that name, two owners of one writable layer, a socket that is in use, what is not
    // there, and names that are paths or flags are refused, and leave nothing.
    let other = writable(&lab, "other", "append", "16M");
    for (image, name, why) in [
        (&other, "vm", "detach it first"),
        (&image, "second", "in use"),
        (&other, socket.to_str().unwrap(), "another process"),
        (&lab.path("none"), "none", "none"),
        (&other, "..", "no name of a device"),
        (&other, "a b", "no name of a device"),
        (&other, "-x", "unexpected argument"),
    ] {
        let mut command = lab.yolofs();
        command.args(["block", "attach"]).arg(image).arg(name);
        let refused = lab::output(&mut command);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(
            !refused.status.success() && said.contains(why),
            "{name}: {said}"
        );
    }
    let devices = lab::json(lab.yolofs().args(["block", "status", "--json"]));
    assert_eq!(devices.as_array().unwrap().len(), 1, "{devices}");
    assert_eq!(service.node()["devices"], 1);
    // Once it is detached, another can have its place, and again is fine.
    for _ in 0..2 {
        ok(lab.yolofs().args(["block", "detach", "vm"]));
        assert!(!socket.exists());
    }
    attach(&lab, &other, socket.to_str().unwrap(), &["--nbd"]);
    ok(lab.yolofs().args(["block", "detach"]).arg(&socket));
    assert_eq!(service.node()["devices"], 0);
    let records = fs::read_dir(lab.path("state/devices")).unwrap().count();
    assert_eq!(records, 0, "nothing is desired");
}

/// What cannot be attached again after a restart is shown, and can be detached: it does not come back.
#[test]
fn privileged_block_a_device_that_is_lost_can_be_detached() {
    let lab = Lab::new();
    let mut service = Service::start(&lab);
    let (image, _) = disk(&lab, "disk.raw", 1);
    let place = lab.make_dir("place");
    attach(&lab, &image, place.to_str().unwrap(), &["--mount"]);
    let name = lab::json(lab.yolofs().args(["block", "status", "--json"]))[0]["name"].clone();
    let name = name.as_str().unwrap();
    let aside = lab.path("aside.raw");
    service.kill_all();
    fs::rename(&image, &aside).unwrap();
    service.start_again();
    until("the device to be shown as failed", || {
        device(&lab, name)["state"] == "failed"
    });
    ok(lab.yolofs().args(["block", "detach", name]));
    assert!(device(&lab, name).is_null());
    let records = fs::read_dir(lab.path("state/devices")).unwrap().count();
    assert_eq!(records, 0, "it is still desired");
    fs::rename(&aside, &image).unwrap();
    attach(&lab, &image, place.to_str().unwrap(), &["--mount"]);
    ok(lab.yolofs().args(["block", "detach", name]));
}

/// A client that reconnects has all that it has flushed, whatever is killed meanwhile: the worker, the node, and
/// all processes at once.
#[test]
fn privileged_block_what_a_client_flushed_outlives_all_that_is_killed() {
    for kind in ["append", "sparse", "hybrid", "live"] {
        let lab = Lab::new();
        let mut service = Service::start(&lab);
        let image = writable(&lab, "image", kind, "16M");
        let address = attach(&lab, &image, "vm", &[])["address"].clone();
        let mut writer = Writer::start(&lab.run_dir().join("devices/vm.sock"));
        for round in 0..9 {
            let worker = until_served(&lab, "vm", 0);
            // In flight when the worker dies, and begun when there is none.
            writer.write_without_waiting(32);
            match round {
                0..=4 => signal_to(worker, Signal::SIGKILL),
                5 | 6 => service.kill_node(),
                _ => {
                    service.kill_all();
                    service.start_again();
                }
            }
            writer.write_without_waiting(32);
            writer.flush();
            if round == 4 {
                assert_eq!(device(&lab, "vm")["restarts"], 5, "{kind}");
            }
        }
        let written = writer.stop();
        // What another client reads is what was written.
        kill_worker(&lab, "vm");
        let copy = lab.path("copy.raw");
        let address = address.as_str().unwrap();
        ok(Command::new("nbdcopy").arg(address).arg(&copy));
        let copy = fs::read(copy).unwrap();
        assert!(copy == written, "{kind}: what was flushed is lost");
        assert!(written.iter().filter(|byte| **byte != 0).count() > 1 << 19);
        ok(lab.yolofs().args(["block", "detach", "vm"]));
        ok(lab.yolofs().args(["block", "verify"]).arg(&image));
    }
}

/// An upgrade replaces the worker and the node under a client.
#[test]
fn privileged_block_a_device_outlives_an_upgrade_and_an_orderly_end() {
    let lab = Lab::new();
    let mut service = Service::start(&lab);
    let image = writable(&lab, "image", "live", "16M");
    attach(&lab, &image, "vm", &[]);
    let mut writer = Writer::start(&lab.run_dir().join("devices/vm.sock"));
    let (node, worker) = (service.pid(), until_served(&lab, "vm", 0));
    writer.write_without_waiting(32);
    ok(lab.yolofs().arg("upgrade"));
    service.until_another(node);
    let next = until_served(&lab, "vm", worker);
    writer.flush();
    // The node ends; its worker serves on.
    service.stop();
    writer.write_without_waiting(8);
    writer.flush();
    service.start_again();
    assert_eq!(until_served(&lab, "vm", 0), next, "nobody was replaced");
    writer.write_without_waiting(8);
    kill_worker(&lab, "vm");
    writer.flush();
    writer.stop();
}

/// A virtual machine keeps its disk while its worker, and once the node, is killed.
#[test]
fn privileged_block_a_virtual_machine_outlives_killed_workers() {
    let lab = Lab::new();
    let service = Service::start(&lab);
    let disk = guest_with_disk(&lab.path(""));
    attach(&lab, &disk, "vm", &["--vhost-user", "--writable"]);
    let mut killed = 0;
    let socket = lab.run_dir().join("devices/vm.sock");
    outlives(&lab.path(""), &socket, &mut || {
        killed += 1;
        match killed {
            2 => service.kill_node(),
            _ => kill_worker(&lab, "vm"),
        }
    });
    ok(lab.yolofs().args(["block", "detach", "vm"]));
    assert_copied(&disk);
}

/// Makes a disk with different blocks.
fn disk(lab: &Lab, name: &str, mib: usize) -> (PathBuf, Vec<u8>) {
    let path = lab.path(name);
    let content = noise(7, mib << 20);
    fs::write(&path, &content).unwrap();
    (path, content)
}

/// The file of a mount of a block image is read while its workers and the node are killed.
#[test]
fn privileged_block_readers_of_a_file_outlive_killed_workers() {
    let lab = Lab::new();
    let service = Service::start(&lab);
    let (image, content) = disk(&lab, "disk.raw", 4);
    let attached = attach(&lab, &image, "data", &["--mount"]);
    let path = attached["address"].as_str().unwrap().to_owned();
    let file = fs::File::open(&path).unwrap();
    let read = |round: usize| {
        posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
        let mut bytes = vec![0; 1 << 20];
        let at = (round % 4) << 20;
        file.read_exact_at(&mut bytes, at as u64).unwrap();
        assert!(bytes == content[at..at + (1 << 20)], "round {round}");
    };
    for round in 0..6 {
        read(round);
        kill_worker(&lab, "data");
        read(round + 1);
    }
    service.kill_node();
    read(0);
    assert_eq!(device(&lab, "data")["state"], "serving");
    drop(file);
    ok(lab.yolofs().args(["block", "detach", "data"]));
    assert!(!Path::new(&path).exists());
}

/// Makes an image with one file in its EROFS, pushes it, and makes an image of it whose layer is in the registry only.
fn pushed(lab: &Lab, registry: &Registry, content: &[u8]) -> PathBuf {
    let layout = lab.make_dir("layout");
    let (file, tar) = (lab.path("file"), lab.path("layer.tar"));
    fs::write(&file, content).unwrap();
    let mut pack = Command::new("tar");
    pack.arg("-cf").arg(&tar).arg("-C").arg(lab.path(""));
    ok(pack.arg("file"));
    let source = LayoutDir(&layout);
    source.start();
    let image = source.image(&[fs::read(tar).unwrap()], &json!({}));
    source.index(&[named(image, "app")]);
    let reference = format!("{}/app:block", registry.host());
    let (here, image) = (lab.path("here"), lab.path("app"));
    let source = format!("oci:{}:app", layout.display());
    let convert = ["block", "convert", "--push", &reference, &source];
    ok(lab.yolofs().args(convert).arg(here));
    let lower = format!("docker://{reference}");
    let create = ["block", "create", "--kind", "sealed", "--lower", &lower];
    ok(lab.yolofs().args(create).arg(&image));
    image
}

/// Reads a file of an EROFS, and nothing of it from memory.
fn read_anew(file: &Path, disk: &Path) -> std::io::Result<Vec<u8>> {
    for path in [file, disk] {
        let opened = fs::File::open(path)?;
        posix_fadvise(&opened, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
    }
    fs::read(file)
}

/// An EROFS on a file of the node, whose layer comes from a registry, is read while workers and the node are killed; a
/// device with the same cache is served by the same process.
#[test]
fn privileged_block_readers_of_an_erofs_outlive_killed_workers() {
    let lab = Lab::new();
    let mut service = Service::start(&lab);
    let registry = Registry::start(Kind::Olareg);
    let content = noise(11, 6 << 20);
    let image = pushed(&lab, &registry, &content);
    let (cache, mounted) = (lab.path("cache"), lab.make_dir("mounted"));
    let options = ["--cache", cache.to_str().unwrap()];
    let erofs = ["--mount", "--erofs", mounted.to_str().unwrap()];
    let attached = attach(&lab, &image, "app", &[&options[..], &erofs].concat());
    let shared = attach(&lab, &image, "same", &options);
    assert_eq!(shared["pid"], attached["pid"], "one process owns a cache");
    let (file, disk) = (
        mounted.join("file"),
        PathBuf::from(attached["address"].as_str().unwrap()),
    );
    let (stop, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            while !stop.load(SeqCst) {
                let read = read_anew(&file, &disk).map_err(|error| error.to_string())?;
                if read != content {
                    return Err("wrong bytes".to_owned());
                }
                reads.fetch_add(1, SeqCst);
            }
            Ok(())
        });
        for round in 0..6 {
            match round {
                3 => service.kill_node(),
                _ => kill_worker(&lab, "app"),
            }
            let wanted = reads.load(SeqCst) + 2;
            until("the reader to go on", || {
                reads.load(SeqCst) >= wanted || reader.is_finished()
            });
        }
        stop.store(true, SeqCst);
        reader.join().unwrap().unwrap();
    });
    assert!(device(&lab, "app")["restarts"].as_u64() >= Some(5));
    // As a reboot does, but for the mounts.
    service.kill_all();
    service.start_again();
    until_served(&lab, "app", 0);
    until("the EROFS to be there again", || {
        read_anew(&file, &disk).is_ok_and(|read| read == content)
    });
    // What is in use is not detached.
    let used = fs::File::open(&file).unwrap();
    let why = fails(1, lab.yolofs().args(["block", "detach", "app"]));
    assert!(why.contains("in use"), "{why}");
    drop(used);
    ok(lab.yolofs().args(["block", "detach", "app", "same"]));
    assert!(!file.exists() && !disk.exists());
}

/// A worker that only reads images is confined to its cache; one that is written to, too, is served by another one.
#[test]
fn privileged_block_an_image_that_is_written_to_shares_the_cache_of_others() {
    let lab = Lab::new();
    let service = Service::start(&lab);
    let registry = Registry::start(Kind::Olareg);
    let sealed = pushed(&lab, &registry, &noise(11, 6 << 20));
    let cache = lab.path("cache");
    let options = ["--cache", cache.to_str().unwrap()];
    let first = attach(&lab, &sealed, "sealed", &options);
    let image = |name: &str| {
        let image = lab.path(name);
        let sealed = sealed.to_str().unwrap();
        let create = ["block", "create", "--size", "64M", "--lower", sealed];
        ok(lab.yolofs().args(create).arg(&image));
        image
    };
    let attached = attach(&lab, &image("vm"), "vm", &options);
    assert_ne!(
        attached["pid"], first["pid"],
        "the first one may not write to it"
    );
    let serving = until_served(&lab, "sealed", 0);
    assert_eq!(attached["pid"], serving, "one process owns a cache");
    let address = attached["address"].as_str().unwrap();
    let written = lab.path("written.raw");
    fs::write(&written, noise(3, 1 << 20)).unwrap();
    ok(Command::new("nbdcopy").arg(&written).arg(address));
    // From now on it is the worker of all, also for the next node.
    service.kill_node();
    let next = attach(&lab, &image("vm2"), "vm2", &options);
    assert_eq!(next["pid"], serving, "it was replaced again");
    let readable = device(&lab, "sealed");
    let address = readable["address"].as_str().unwrap();
    ok(Command::new("nbdcopy").args([address, "null:"]));
    assert_eq!(until_served(&lab, "sealed", 0), serving);
}

/// A mount of a block image is a mount as any other: of the node, and of a daemon of its own.
#[test]
fn privileged_block_an_image_is_mounted_as_any_source() {
    let lab = Lab::new();
    let (image, content) = disk(&lab, "disk.raw", 2);
    let source = PathBuf::from(format!("overlaybd:{}", image.display()));
    let look = |mountpoint: &Path| {
        assert!(fs::read(mountpoint.join("disk")).unwrap() == content);
        let status = lab.status(mountpoint);
        assert_eq!(status["source"], source.to_str().unwrap());
        assert_eq!(status["state"], "serving");
        lab.umount(mountpoint);
        assert!(!mountpoint.join("disk").exists());
    };
    let as_nobody = ["--standalone", "--worker-user", "65534:65534"];
    look(&lab.mount(&source, "alone", &as_nobody));
    look(&lab.mount(&source, "no-node", &[]));
    let mut service = Service::start(&lab);
    let mountpoint = lab.mount(&source, "of-the-node", &[]);
    // Again is no change, and after a reboot it is there.
    lab.mount(&source, "of-the-node", &[]);
    service.kill_worker(&mountpoint, Signal::SIGKILL);
    service.kill_all();
    service.start_again();
    service.until_state(&mountpoint, "serving");
    look(&mountpoint);
    // The node serves as its own user, whoever else is named.
    let mut named = lab.yolofs();
    named.args(["mount", "--worker-user", "65534:65534"]);
    let said = fails(1, named.arg(&source).arg(lab.make_dir("named")));
    assert!(said.contains("--standalone"), "{said}");
    // Layers of a registry are fetched when they are read.
    let registry = Registry::start(Kind::Olareg);
    let content = noise(13, 3 << 20);
    let pushed = pushed(&lab, &registry, &content);
    let source = PathBuf::from(format!("overlaybd:{}", pushed.display()));
    for (name, flags) in [("fetched", &as_nobody[..]), ("by-node", &[])] {
        let cache = lab.path(&format!("cache-{name}"));
        // A mirror that has nothing is asked first.
        let mirror = testkit::scripted::Scripted::start(|_| (404, vec![], ""));
        let url = mirror.url("");
        let cache = ["--image-cache", cache.to_str().unwrap(), "--mirror", &url];
        let mountpoint = lab.mount(&source, name, &[&cache, flags].concat());
        // The device is much larger than what is in it.
        let mut disk = Vec::new();
        let opened = fs::File::open(mountpoint.join("disk")).unwrap();
        opened.take(16 << 20).read_to_end(&mut disk).unwrap();
        let mut blocks = disk.chunks(4096);
        let at = 4096 * blocks.position(|block| block == &content[..4096]).unwrap();
        assert!(disk[at..at + content.len()] == content[..], "{name}");
        assert!(!mirror.seen().is_empty(), "{name}");
        lab.umount(&mountpoint);
    }
    // What is not for it is refused.
    for (source, flags, why) in [
        (&source, &["--boot", "some"][..], "boot image"),
        (&image, &["--image-cache", "c"], "overlaybd:IMAGE"),
    ] {
        for standalone in [&["--standalone"][..], &[]] {
            let mut mount = lab.yolofs();
            mount.arg("mount").args(flags).args(standalone);
            let said = fails(1, mount.arg(source).arg(lab.make_dir("refused")));
            assert!(said.contains(why), "{said}");
        }
    }
    // What can be written to is no file, and what is not there is no image.
    let written = writable(&lab, "written", "live", "16M");
    for (image, why) in [(written, "writable layer"), (lab.path("none"), "none")] {
        for flags in [&["--standalone"][..], &[]] {
            let mut mount = lab.yolofs();
            mount
                .arg("mount")
                .arg(format!("overlaybd:{}", image.display()));
            let said = fails(1, mount.arg(lab.make_dir("refused")).args(flags));
            assert!(said.contains(why), "{said}");
        }
    }
}

/// A hundred devices are attached at once, and all are there: with a cache in one process, without in one each.
#[test]
fn privileged_block_of_a_hundred_attaches_at_once_none_is_lost() {
    let lab = Lab::new();
    let mut service = Service::start(&lab);
    let (image, content) = disk(&lab, "disk.raw", 1);
    let started = std::time::Instant::now();
    let mut attaches: Vec<_> = (0..100)
        .map(|number| {
            let mut command = lab.yolofs();
            command.args(["block", "attach"]).arg(&image);
            command.arg(format!("d{number}"));
            command.stdout(std::process::Stdio::null()).spawn().unwrap()
        })
        .collect();
    for attach in &mut attaches {
        assert!(attach.wait().unwrap().success());
    }
    println!("100 attaches took {:?}", started.elapsed());
    service.kill_all();
    service.start_again();
    for number in 0..100 {
        until_served(&lab, &format!("d{number}"), 0);
        let socket = lab.run_dir().join(format!("devices/d{number}.sock"));
        let address = format!("nbd+unix:///disk?socket={}", socket.display());
        let copy = ok(Command::new("sh")
            .arg("-c")
            .arg(format!("nbdcopy '{address}' - | sha256sum")));
        let expected = oci::digest_of(&content).hex();
        assert!(copy.starts_with(&expected), "d{number}: {copy}");
    }
    assert_eq!(service.node()["devices"], 100);
}
