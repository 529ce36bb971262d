//! How much a container may write to a device of its own.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod block_containers;
mod node;

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use block_containers::{NOISE, Running, Source, is_removed, pull};
use lab::service::Service;
use lab::{Lab, noise};
use nix::sys::statvfs::statvfs;
use node::Node;

const WRITABLE: &str = "containerd.io/snapshot/overlaybd.writable";
const QUOTA: &str = "containerd.io/snapshot/disk_quota";
const MIB: u64 = 1 << 20;
/// Bytes that the container may write.
const LIMIT: u64 = 64 * MIB;

/// Writes to a file until there is no space, and returns how many mebibytes found some.
fn fill(path: &Path) -> (u64, io::Error) {
    let mut file = File::create(path).unwrap();
    for written in 0.. {
        let done = file.write_all(&noise(u32::try_from(written).unwrap(), 1 << 20));
        if let Err(error) = done {
            return (written, error);
        }
        assert!(written < 10 * LIMIT / MIB, "there is no bound");
    }
    unreachable!()
}

/// The bytes that files of devices take on the disk.
fn taken(node: &Node<'_>) -> u64 {
    let dirs = fs::read_dir(node.root().join("devices")).unwrap();
    let own = dirs.map(|dir| dir.unwrap().path());
    let own = own.filter(|dir| dir.to_str().unwrap().ends_with("-own"));
    let files = own.flat_map(|dir| fs::read_dir(dir).unwrap());
    let files = files.map(|file| file.unwrap());
    let files = files.filter(|file| file.file_type().unwrap().is_file());
    files
        .map(|file| file.metadata().unwrap().blocks() * 512)
        .sum()
}

fn available(root: &Path) -> u64 {
    let about = statvfs(root).unwrap();
    about.blocks_available() * about.fragment_size()
}

#[test]
fn privileged_block_a_container_writes_no_more_than_its_quota() {
    let lab = Lab::new();
    let _service = Service::start(&lab);
    let node = Node::start_today(&lab, &[]);
    let source = Source::with_ext4(&lab);
    let image = source.image();
    pull(&node, &image);
    let labels = [(WRITABLE, "dir"), (QUOTA, "64M")];
    let container = Running::start(&node, &image, "quota-1", &labels);
    let file = container.root.join("srv/large");
    let left = available(&container.root);
    assert!(left > LIMIT / 2 && left <= LIMIT, "{left}");
    for round in 0..3 {
        let (written, error) = fill(&file);
        // The program hears of it at once, and all that it wrote is there.
        assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
        assert!(
            written * MIB > LIMIT * 3 / 4 && written * MIB < LIMIT,
            "{round}: {written}"
        );
        container.sync();
        File::open(&file).unwrap().sync_all().unwrap();
        let found = fs::read(&file).unwrap();
        for part in 0..written {
            let at = usize::try_from(part * MIB).unwrap();
            let expected = noise(u32::try_from(part).unwrap(), 1 << 20);
            assert!(found[at..at + (1 << 20)] == expected, "part {part} differs");
        }
        let taken = taken(&node);
        assert!(taken < LIMIT * 9 / 8, "{round}: {taken} bytes on the disk");
        // What is deleted can be written again.
        fs::remove_file(&file).unwrap();
        container.sync();
    }
    // It starts again with what was left.
    container.write("srv/more", &noise(1, 16 << 20));
    container.end();
    node.ctr(&["tasks", "start", "-d", "quota-1"]);
    let container = Running::of(&node, "quota-1");
    assert!(
        container.read("srv/more") == noise(1, 16 << 20),
        "it differs"
    );
    let left = available(&container.root);
    assert!(left < LIMIT - 16 * MIB, "{left}");
    container.end();
    node.ctr(&["containers", "rm", "quota-1"]);
    is_removed(&lab, &node, &image);
}

/// Files of the image are overwritten in place, which takes no space in the file system: the layer itself has a bound.
#[test]
fn privileged_block_the_layer_refuses_what_the_file_system_does_not_count() {
    let lab = Lab::new();
    let _service = Service::start(&lab);
    let node = Node::start_today(&lab, &["--block-quota", "4M"]);
    let source = Source::with_ext4(&lab);
    let image = source.image();
    pull(&node, &image);
    for (id, form) in [("quota-2", "dir"), ("quota-3", "dev")] {
        let container = Running::start(&node, &image, id, &[(WRITABLE, form)]);
        let path = container.root.join("srv/noise");
        let file = File::options().write(true).open(&path).unwrap();
        let mut refused = None;
        for part in 0..NOISE / 500_000 {
            let at = (part * 500_000) as u64;
            let written = file.write_all_at(&noise(9, 500_000), at);
            if let Err(error) = written.and_then(|()| file.sync_all()) {
                refused = Some((part, error));
                break;
            }
        }
        let (part, error) = refused.unwrap();
        assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
        assert!(part >= 4, "{part}");
        let taken = taken(&node);
        assert!(taken < 9 * MIB / 2, "{form}: {taken} bytes on the disk");
        drop(file);
        container.end();
        node.ctr(&["containers", "rm", id]);
        lab::until("its device to go", || own(&node).is_empty());
    }
    // A label that is no size is no bound.
    let label = format!("{QUOTA}=all");
    let form = format!("{WRITABLE}=dir");
    let run = [
        "run",
        "--rm",
        "--snapshotter-label",
        &label,
        "--snapshotter-label",
        &form,
    ];
    let refused = node.try_ctr(&[&run[..], &[&image, "quota-4", "/bin/true"]].concat());
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("such as 20G"), "{said}");
    let _gone = node.try_ctr(&["containers", "rm", "quota-4"]);
    node.collect_garbage();
    is_removed(&lab, &node, &image);
}

fn own(node: &Node<'_>) -> Vec<PathBuf> {
    let dirs = fs::read_dir(node.root().join("devices")).unwrap();
    let dirs = dirs.map(|dir| dir.unwrap().path());
    dirs.filter(|dir| dir.to_str().unwrap().ends_with("-own"))
        .collect()
}
