//! The calls of a kubelet in its order, with a real containerd of today: what it is told of disks is true, and what
//! it collects is gone.

#![cfg(feature = "privileged")]

mod cri;
mod node;

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;

use cri::kubelet::{Kubelet, Relists, RunningPod};
use cri::{Cri, Images};
use lab::{Lab, until};
use node::{Node, archive};

/// Of the image's upper layer, and what nobody can compress.
const NOISE: usize = 1_000_000;
/// What a container writes.
const WRITTEN: u64 = 300 << 10;
/// More than a few directories, and less than anything that is counted here.
const SOME: u64 = 100 << 10;

/// How often containerd asks for usage, in seconds: 10 unless told otherwise.
const EACH_SECOND: &str = "stats_collect_period = 1\n";
/// What an administrator adds for a RuntimeClass.
const HANDLER: &str = "[plugins.'io.containerd.cri.v1.images'.runtime_platforms.fast]\n\
                       snapshotter = \"yolofs\"\n\
                       [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.fast]\n\
                       runtime_type = \"io.containerd.runc.v2\"\n\
                       snapshotter = \"yolofs\"\n";

/// Returns the bytes in the directories of a node's snapshots, of each file once.
fn on_disk(node: &Node<'_>) -> u64 {
    let mut seen = HashSet::new();
    let (mut bytes, mut waiting) = (0, vec![node.root().join("snapshots")]);
    while let Some(path) = waiting.pop() {
        // A container may take away what it has there.
        let Ok(metadata) = fs::symlink_metadata(&path) else {
            continue;
        };
        if seen.insert(metadata.ino()) {
            bytes += metadata.blocks() * 512;
        }
        if metadata.is_dir() {
            let entries = fs::read_dir(&path).into_iter().flatten().flatten();
            waiting.extend(entries.map(|entry| entry.path()));
        }
    }
    bytes
}

/// Waits until a kubelet is told what is on the disk, and returns it: the directories that snapshots are in are not
/// counted, so it is a little less.
fn true_usage(kubelet: &Kubelet<'_>, node: &Node<'_>) -> u64 {
    let mut told = 0;
    until("the usage of the image disk to be true", || {
        told = kubelet.image_disk().bytes();
        let there = on_disk(node);
        told <= there && there - told < SOME
    });
    told
}

/// Has a pod write, and waits until a kubelet is told of that and of nothing else.
fn writes(kubelet: &Kubelet<'_>, node: &Node<'_>, pod: &RunningPod) {
    let write = format!("head -c {WRITTEN} /dev/urandom >/written; md5sum </srv/noise");
    kubelet.probe(pod, &write);
    let mut told = Vec::new();
    until("what a pod wrote to be counted", || {
        told = kubelet.writable_layers(pod);
        told.iter().all(|usage| usage.bytes() >= WRITTEN)
    });
    for usage in told {
        assert!(usage.bytes() < WRITTEN + SOME, "{usage:?}");
        assert_eq!(Some(usage.place()), node.root().to_str());
    }
}

#[test]
fn privileged_a_kubelet_is_told_what_is_on_the_disk_and_collects_all_of_it() {
    let lab = Lab::new();
    let images = Images::new(&lab, &archive(&lab, NOISE));
    let (app, more) = (images.app(), images.config_of_today(&lab) + HANDLER);
    let flags = ["--auto-record", "--until", "quiet:0.5"];
    let node = Node::start_today_with_images(&lab, &flags, EACH_SECOND, &more);
    let cri = Cri::of(&node);
    let relists = Relists::start(&node);
    let kubelet = Kubelet::start(&cri);
    assert_eq!(Some(kubelet.image_disk().place()), node.root().to_str());
    assert_eq!(kubelet.image_disk().bytes(), 0);

    let first = kubelet.sync_pod("first", &app, "");
    writes(&kubelet, &node, &first);
    let with_one = true_usage(&kubelet, &node);
    assert!(with_one > NOISE as u64 + WRITTEN, "{with_one}");
    node.until_recorded(&first.container);
    // Those of the image, and that of the pause image.
    node.until_warm(3);

    // The image is served now. It is there once, whatever runtime a pod chooses.
    let second = kubelet.sync_pod("second", &app, "fast");
    writes(&kubelet, &node, &second);
    let with_two = true_usage(&kubelet, &node);
    assert!(
        with_two >= with_one + WRITTEN,
        "{with_one}, then {with_two}"
    );
    assert!(
        with_two < with_one + WRITTEN + SOME,
        "{with_one}, then {with_two}"
    );
    // What runs is not collected.
    assert_eq!(kubelet.collect_images(), Vec::<String>::new());
    kubelet.end_pod(first);
    assert_eq!(kubelet.collect_images(), Vec::<String>::new());
    kubelet.end_pod(second);
    assert_eq!(kubelet.collect_images(), [app]);

    // The pause image is pinned.
    until("the image's layers to go", || node.directories() == 1);
    until("the image's mounts to go", || node.served() == 1);
    let with_none = true_usage(&kubelet, &node);
    assert!(with_none < with_one - NOISE as u64, "{with_none}");
    cri.remove_image(&images.pause());
    until("all snapshots to go", || node.directories() == 0);
    until("all mounts to go", || node.mounts().is_empty());
    assert_eq!(node.status()["layers"], serde_json::json!([]));
    until("the disk to be empty", || kubelet.image_disk().bytes() == 0);
    assert!(kubelet.is_ready());
    assert!(relists.stop() > 0);
}
