//! Disks of the node that are full: that of a cache, and that of a container's own device.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod block_attached;
mod block_containers;
mod block_export;
mod block_registry;
mod cri;
mod node;

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use testkit::range_server::Treatment;

use block_attached::{attach, device, kill_worker, metric};
use block_containers::{Source, devices, is_removed, pull};
use block_export::{Process, arg};
use block_registry::disk_elsewhere;
use lab::service::Service;
use lab::{Lab, noise, ok, output, until};
use node::Node;

const MIB: u64 = 1 << 20;

/// A small file system in memory, until it is dropped.
struct Small(PathBuf);

impl Small {
    fn mount(at: &Path, size: &str) -> Self {
        let options = format!("size={size},mode=0700");
        ok(Command::new("mount").args(["-t", "tmpfs", "-o", &options, "small", arg(at)]));
        Self(at.to_owned())
    }

    fn grow(&self, size: &str) {
        let options = format!("remount,size={size}");
        ok(Command::new("mount").args(["-o", &options, arg(&self.0)]));
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _gone = output(Command::new("umount").args(["-l", arg(&self.0)]));
    }
}

/// Fetching into a full disk would fetch in vain: it is paused, and goes on when there is room.
#[test]
fn privileged_block_a_full_cache_is_not_filled_in_vain() {
    const BLOB: u64 = 48 * MIB;
    let lab = Lab::new();
    let content = noise(21, usize::try_from(BLOB).unwrap());
    let (registry, image) = disk_elsewhere(&lab, content, |_| Treatment::Right);
    let cache = lab.make_dir("cache");
    let small = Small::mount(&cache, "4m");
    let (socket, fetched) = (lab.path("disk.sock"), || {
        let asked = registry.asked().into_iter();
        asked
            .map(|asked| asked.range.end - asked.range.start)
            .sum::<u64>()
    });
    let mut export = lab.yolofs();
    export.args(["block", "export", "--nbd", arg(&socket)]);
    export.args(["--cache", arg(&cache)]).arg(&image);
    let mut export = Process(export.stderr(Stdio::piped()).spawn().unwrap());
    let said = Arc::new(Mutex::new(Vec::new()));
    let (lines, told) = (
        BufReader::new(export.0.stderr.take().unwrap()).lines(),
        Arc::clone(&said),
    );
    thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            told.lock().unwrap().push(line);
        }
    });
    let pauses = || {
        let said = said.lock().unwrap();
        said.iter()
            .filter(|line| line.contains("nothing more is fetched in the background"))
            .count()
    };
    until("it to be paused", || pauses() > 0);
    // What was on its way, and no more.
    assert!(
        fetched() < BLOB / 2,
        "{} bytes were fetched in vain",
        fetched()
    );
    // Who reads is served meanwhile.
    let address = format!("nbd+unix:///disk?socket={}", socket.display());
    let mut reader = Command::new("qemu-io");
    ok(reader.args(["-f", "raw", "-r", "-c", "read 40M 64k", &address]));
    small.grow("128m");
    let data = || {
        use std::os::unix::fs::MetadataExt as _;
        let mut blobs = fs::read_dir(&cache)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        let about = blobs.find_map(|blob| fs::metadata(blob.join("data")).ok());
        about.map_or(0, |about| about.blocks() * 512)
    };
    until("it to go on", || data() >= BLOB);
    assert_eq!(pauses(), 1, "{said:?}");
}

/// The same in the node: whoever watches it is told.
#[test]
fn privileged_block_pauses_of_a_full_cache_are_counted_by_the_node() {
    let lab = Lab::new();
    let _service = Service::start(&lab);
    let content = noise(21, usize::try_from(16 * MIB).unwrap());
    let (_registry, image) = disk_elsewhere(&lab, content, |_| Treatment::Right);
    let cache = lab.make_dir("cache");
    let _small = Small::mount(&cache, "4m");
    attach(&lab, &image, "disk", &["--cache", arg(&cache)]);
    until("it to be paused", || {
        device(&lab, "disk")["served"]["pauses"].as_u64() >= Some(1)
    });
    let line = "yolofs_device_pauses_total{device=\"disk\"}";
    assert!(metric(&lab, line) >= Some(1));
    ok(lab.yolofs().args(["block", "detach", "disk"]));
}

/// What a container writes to its device finds no room on the node's disk: it gets errors, loses nothing that was synced,
/// and goes on when there is room.
#[test]
fn privileged_a_container_survives_a_full_disk_under_its_device() {
    let lab = Lab::new();
    let _service = Service::start(&lab);
    let node = Node::start_today(&lab, &["--block-background", "plan"]);
    let at = node.root().join("devices");
    let _made = fs::create_dir(&at);
    let small = Small::mount(&at, "24m");
    let source = Source::with_ext4(&lab);
    let image = source.image();
    pull(&node, &image);
    let label = "containerd.io/snapshot/overlaybd.writable=dev";
    let run = ["run", "-d", "--snapshotter-label", label, &image, "full"];
    node.ctr(&[&run[..], &["/bin/sleep", "1000000"]].concat());
    let tasks = node.ctr(&["tasks", "ls"]);
    let line = tasks.lines().find(|line| line.starts_with("full")).unwrap();
    let process = PathBuf::from("/proc").join(line.split_whitespace().nth(1).unwrap());
    let root = process.join("root");
    let mounts = fs::read_to_string(process.join("mounts")).unwrap();
    let device = mounts.split(' ').next().unwrap().to_owned();
    assert!(device.starts_with("/dev/loop"), "{mounts}");
    let write = |name: &str, seed: u32, mib: usize| {
        let mut file = File::create(root.join(name))?;
        file.write_all(&noise(seed, mib << 20))?;
        file.sync_all()
    };
    write("srv/before", 31, 2).unwrap();
    let mut refused = None;
    for number in 0..40 {
        if let Err(why) = write(&format!("srv/more-{number}"), 40 + number, 2) {
            refused = Some((number, why));
            break;
        }
    }
    let (number, why) = refused.expect("all of it found room");
    assert!(
        matches!(why.raw_os_error(), Some(nix::libc::ENOSPC | nix::libc::EIO)),
        "{why}"
    );
    let is_whole = |name: &str, seed: u32, mib: usize| {
        let mut dd = Command::new("dd");
        let name = root.join(name);
        // Not what the page cache has.
        dd.args([&format!("if={}", arg(&name)), "iflag=nocache", "count=0"]);
        ok(dd.stderr(Stdio::null()));
        assert!(
            fs::read(name).unwrap() == noise(seed, mib << 20),
            "it differs"
        );
    };
    is_whole("srv/before", 31, 2);
    // Meanwhile somebody else serves the device, from the full disk.
    let names = devices(&lab).into_iter();
    let mut names = names.map(|device| device["name"].as_str().unwrap().to_owned());
    let own = names.find(|name| name.ends_with("-own")).unwrap();
    kill_worker(&lab, &own);
    is_whole("srv/before", 31, 2);
    small.grow("256m");
    write("srv/after", 32, 4).unwrap();
    let all = File::open(&root).unwrap();
    let _told = nix::unistd::syncfs(&all);
    nix::unistd::syncfs(&all).unwrap();
    drop(all);
    is_whole("srv/before", 31, 2);
    for done in 0..number {
        is_whole(&format!("srv/more-{done}"), 40 + done, 2);
    }
    is_whole("srv/after", 32, 4);
    node.ctr(&["tasks", "rm", "-f", "full"]);
    // Of what was not synced in time it may have to repair something, by itself.
    let check = output(Command::new("e2fsck").args(["-fp", &device]));
    let said = String::from_utf8_lossy(&check.stdout).into_owned();
    assert!(matches!(check.status.code(), Some(0 | 1)), "{said}");
    node.ctr(&["containers", "rm", "full"]);
    is_removed(&lab, &node, &image);
}
