//! Layers that the disk has no time for, where a real containerd pulls from a real registry.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod cri;
mod fair;
mod node;

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cri::{Cri, Images};
use fair::Network;
use lab::{Lab, noise, ok, until};
use nix::sys::stat::{major, minor};
use node::{Node, archive};
use oci::digest_of;
use serde_json::{Value, json};
use testkit::layouts::{LayoutDir, gzip, layer, named};

/// Where containerd keeps what it has downloaded whole.
const BLOBS: &str = "io.containerd.content.v1.content/blobs/sha256";

/// How long is waited before a layer is pulled again that did not tell of its disk.
const AGAIN: Duration = Duration::from_secs(8);

/// Returns the file that says how fast the disk of a directory is: by the number of the whole disk.
fn rate_file(lab: &Lab, dir: &Path) -> PathBuf {
    let device = fs::metadata(dir).unwrap().dev();
    let number = format!("{}:{}", major(device), minor(device));
    let of = fs::canonicalize(format!("/sys/dev/block/{number}"));
    let whole = of.ok().filter(|of| of.join("partition").exists());
    let whole = whole.map(|of| fs::read_to_string(of.parent().unwrap().join("dev")).unwrap());
    let number = whole.map_or(number, |whole| whole.trim().to_owned());
    lab.run_dir().join(format!("disk-{number}.rate"))
}

/// Notes how fast a disk is, as if it had been measured so many seconds ago.
fn note(file: &Path, bytes_per_second: u64, ago: u64) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let kept = json!({ "bytes_per_second": bytes_per_second, "measured_at": now.as_secs() - ago });
    fs::write(file, kept.to_string()).unwrap();
}

fn fast(node: &Node<'_>) -> Value {
    node.status()["layers_fast"].clone()
}

fn count(state: &Value, name: &str) -> u64 {
    state[name]
        .as_u64()
        .unwrap_or_else(|| panic!("{name} in {state}"))
}

/// Pushes an image whose layers have a file each, and returns the names of their blobs.
fn push(lab: &Lab, layers: &[Vec<u8>], to: &str) -> Vec<String> {
    let dir = lab.make_dir("layout");
    let layout = LayoutDir(&dir);
    layout.start();
    let tars: Vec<_> = layers
        .iter()
        .map(|bytes| layer(&[("file", bytes)]))
        .collect();
    layout.index(&[named(layout.image(&tars, &json!({})), "1")]);
    ok(Command::new("skopeo")
        .args(["copy", "--quiet", "--dest-tls-verify=false"])
        .arg(format!("oci:{}:1", dir.display()))
        .arg(format!("docker://{to}")));
    fs::remove_dir_all(dir).unwrap();
    tars.iter().map(|tar| digest_of(&gzip(tar)).hex()).collect()
}

/// Of each image the third layer comes last, when those below it were unpacked: by what has been
/// seen of a disk, it has time for them, or none.
#[test]
fn privileged_layers_go_to_the_disk_only_if_it_has_the_time_for_them() {
    let lab = Lab::new();
    let images = Images::new(&lab, &archive(&lab, 1000));
    let network = Network::before(images.port());
    let flags = ["--layers-fast", "tmpfs,max=64M", "--layers-stay", "3600"];
    let node = Node::start_with(&lab, &flags, "root", &images.config(&lab));
    let cri = Cri::of(&node);
    let file = rate_file(&lab, &node.root());
    let store = lab.path("node/containerd").join(BLOBS);
    // Rate, and how many layers have gone then to the disk, to the fast place, and there as too late.
    let turns = [
        (None, [2, 1, 0]),
        (Some(1), [2, 4, 2]),
        (Some(1_000_000_000_000_000), [4, 5, 2]),
    ];
    for (turn, (rate, [disk, on_fast, late])) in turns.into_iter().enumerate() {
        if let Some(rate) = rate {
            note(&file, rate, 0);
        }
        let sizes = [200_000, 90_000, 70_000];
        let noises = sizes.iter().zip(0..).map(|(len, index)| {
            let seed = u32::try_from(turn * 10 + index).unwrap();
            noise(seed, *len)
        });
        let layers: Vec<Vec<u8>> = noises.collect();
        let name = format!("turn-{turn}:1");
        let blobs = push(&lab, &layers, &format!("{}/{name}", images.host()));
        let (dir, known) = (node.root().join("snapshots"), node.directories());
        let (store, others) = (store.clone(), blobs[..2].to_vec());
        network.hold(blobs[2].clone(), move || {
            // The third is prepared once the second is unpacked.
            others.iter().all(|blob| store.join(blob).exists())
                && fs::read_dir(&dir).unwrap().count() == known + 3
        });
        cri.pull(&format!("127.0.0.1:{}/{name}", network.port));
        let state = fast(&node);
        let counts = ["disk", "fast", "late"].map(|name| count(&state, name));
        assert_eq!(counts, [disk, on_fast, late], "turn {turn}: {state}");
        assert_eq!(count(&state, "full") + count(&state, "unknown"), 0);
        assert_eq!(state["disk_bytes_per_second"], json!(rate));
        // Wherever they are, they are whole.
        let mut files: Vec<Vec<u8>> = fs::read_dir(node.root().join("snapshots"))
            .unwrap()
            .map(|entry| fs::read(entry.unwrap().path().join("fs/file")).unwrap())
            .collect();
        files.retain(|file| layers.contains(file));
        assert_eq!(files.len(), layers.len());
    }
}

/// A disk of its own, on which the snapshots are.
struct Disk(PathBuf);

impl Disk {
    fn new(lab: &Lab) -> Self {
        let (image, at) = (lab.path("disk.ext4"), lab.make_dir("node/root"));
        File::create(&image).unwrap().set_len(256 << 20).unwrap();
        ok(Command::new("mkfs.ext4").arg("-q").arg(&image));
        ok(Command::new("mount")
            .args(["-o", "loop"])
            .args([&image, &at]));
        Self(at)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Nothing is left to be told; the loop device goes with its mount.
        let _unmounted = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[test]
fn privileged_a_disk_is_measured_when_a_layer_is_unpacked_to_it() {
    let lab = Lab::new();
    let disk = Disk::new(&lab);
    // The noise has no room on the fast place, so the disk gets it.
    let flags = ["--layers-fast", "tmpfs,max=4M", "--layers-stay", "3600"];
    let node = Node::start(&lab, &flags);
    let file = rate_file(&lab, &disk.0);
    assert_eq!(fast(&node)["disk_bytes_per_second"], Value::Null);
    // Whatever the disk is, it is faster; and a disk that was never waited for tells nothing else. Within
    // ten minutes it is not measured again.
    note(&file, 1000, 1200);
    assert_eq!(fast(&node)["disk_bytes_per_second"], 1000);
    // Where very much waits to be written, by other tests, it is not measured, but by the next layer.
    let mut pulls = 0;
    let mut pulled = Instant::now();
    until("the disk to be known for what it is", || {
        let is_due = pulls == 0 || pulls < 5 && pulled.elapsed() > AGAIN;
        if is_due {
            pulls += 1;
            nix::unistd::sync();
            let archive = archive(&lab, 24_000_000 + pulls);
            node.ctr(&["images", "import", archive.to_str().unwrap()]);
            pulled = Instant::now();
        }
        count(&fast(&node), "disk_bytes_per_second") > 1000
    });
    assert_eq!(count(&fast(&node), "full"), pulls as u64);
    let said = ok(lab.yolofs().args(["snapshotter", "status"]));
    assert!(said.contains("; the disk writes "), "{said}");
    node.forget_everything();
}
