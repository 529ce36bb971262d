//! Layers that are warmed before the containers of a pod are made: a containerd of today tells of its sandbox.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod cri;
mod node;

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use cri::{Annotations, Cri, Images, sandbox_config, until_pods_are_possible};
use lab::{Lab, until};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use node::{Node, archive};
use rawio::resident::Resident;

/// Returns how often the snapshotter had both layers of the image warmed for a pod.
fn warmed(node: &Node<'_>, pod: &str) -> usize {
    let said = node.snapshotter_said();
    let lines = said
        .lines()
        .filter(|line| line.contains(&format!("pod tests/{pod}: ")));
    lines.filter(|line| line.contains(" 2 layers of ")).count()
}

fn registered(node: &Node<'_>) -> usize {
    let said = node.snapshotter_said();
    said.matches("layers are warmed for pods").count()
}

const NOISE: usize = 1_000_000;
const READ: &str = "md5sum </srv/noise";

/// Returns the files below a directory.
fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let found = entries.flat_map(|entry| match entry.file_type().unwrap() {
        kind if kind.is_dir() => files(&entry.path()),
        kind if kind.is_file() => vec![entry.path()],
        _ => Vec::new(),
    });
    found.collect()
}

/// Has the kernel forget the content of all layers, as they are served and as they lie on the disk.
fn evict(node: &Node<'_>, dir: &str) {
    for path in files(&node.root().join(dir)) {
        let file = File::open(path).unwrap();
        posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
    }
}

/// Returns whether a file is in the page cache of its mount.
fn is_there(path: &Path) -> bool {
    let file = File::open(path).unwrap();
    let len = file.metadata().unwrap().len();
    Resident::look(&file, 0..len).unwrap().is_all()
}

/// Returns how many reads the served layers were asked for, and how many bytes the snapshotter had from disks.
fn read_so_far(node: &Node<'_>) -> (u64, u64) {
    let io = fs::read_to_string(format!("/proc/{}/io", node.status()["pid"])).unwrap();
    let bytes = io
        .lines()
        .find_map(|line| line.strip_prefix("read_bytes: "));
    (node.reads(), bytes.unwrap().parse().unwrap())
}

/// Evicts all pages, waits until `prepare` has brought back those of a boot, and starts what reads them: nothing
/// is read. Other tests may have pages dropped in the middle, so it is done again then.
fn comes_back<T>(node: &Node<'_>, prepare: impl Fn(u32) -> T, start: impl Fn(u32, T)) {
    let served = files(&node.root().join("served")).into_iter();
    let noise: Vec<PathBuf> = served.filter(|path| path.ends_with("srv/noise")).collect();
    assert_eq!(noise.len(), 1);
    let mut number = 0;
    until("a start that reads nothing", || {
        number += 1;
        evict(node, "served");
        assert!(!is_there(&noise[0]));
        let prepared = prepare(number);
        until("the pages to be back", || {
            is_there(&noise[0]) && node.is_warm()
        });
        // Who reads of the directories would have to ask the disk.
        evict(node, "snapshots");
        let before = read_so_far(node);
        start(number, prepared);
        read_so_far(node) == before
    });
}

#[test]
fn privileged_pages_that_were_evicted_come_back_before_a_container_starts() {
    let lab = Lab::new();
    let images = Images::new(&lab, &archive(&lab, NOISE));
    let app = images.app();
    let flags = ["--auto-record", "--until", "quiet:0.5"];
    let node = Node::start_today_with_nri(&lab, &flags, &images.config_of_today(&lab));
    let cri = Cri::of(&node);
    until_pods_are_possible(&cri);
    until("the snapshotter to register", || registered(&node) == 1);
    cri.pull(&app);
    let first = cri.pod("web", &app);
    first.exec(READ);
    node.until_recorded(&first.container);
    first.remove();
    node.until_warm(3);

    // When the sandbox of a pod is made, which had the image before.
    let config = sandbox_config("web", &HashMap::new());
    let sandbox = |_| cri.sandbox(&config);
    comes_back(&node, sandbox, |_, sandbox| {
        let pod = cri.start_in(sandbox, &config, &app, &HashMap::new());
        pod.exec(READ);
        pod.remove();
    });

    // When a container is prepared of which nobody was told.
    let id = |number: u32| format!("evicted-{}-{number}", std::process::id());
    let create = |number: u32| {
        let create = ["--namespace", "k8s.io", "containers", "create", &app];
        node.ctr(&[&create[..], &[&id(number), "/bin/sh", "-c", READ]].concat());
    };
    comes_back(&node, create, |number, ()| {
        let in_namespace = ["--namespace", "k8s.io"];
        node.ctr(&[&in_namespace[..], &["tasks", "start", &id(number)]].concat());
        node.ctr(&[&in_namespace[..], &["containers", "rm", &id(number)]].concat());
    });
}

#[test]
fn privileged_layers_are_warmed_before_the_containers_of_a_pod_are_made() {
    let lab = Lab::new();
    let images = Images::new(&lab, &archive(&lab, 1_000_000));
    let app = images.app();
    let flags = ["--auto-record", "--until", "quiet:0.5"];
    let mut node = Node::start_today_with_nri(&lab, &flags, &images.config_of_today(&lab));
    let cri = Cri::of(&node);
    until_pods_are_possible(&cri);
    until("the snapshotter to register", || registered(&node) == 1);
    cri.pull(&app);
    let first = cri.pod("web", &app);
    first.exec("md5sum </srv/noise");
    node.until_recorded(&first.container);
    first.remove();
    node.until_warm(3);

    // A pod of this name had the image before; only its sandbox is made.
    let warms = |name: &str, annotations: &Annotations| {
        let sandbox = cri.sandbox(&sandbox_config(name, annotations));
        until("the layers to be warmed", || warmed(&node, name) == 1);
        cri.remove_sandbox(&sandbox);
    };
    warms("web", &HashMap::new());
    let annotation = HashMap::from([("yolofs.warm".to_owned(), app.clone())]);
    warms("another", &annotation);

    // Nobody knows what this one will have: its sandbox is made all the same.
    let sandbox = cri.sandbox(&sandbox_config("stranger", &HashMap::new()));
    cri.remove_sandbox(&sandbox);
    assert_eq!(warmed(&node, "stranger"), 0);

    // A containerd that was killed is registered with again, and tells of the containers that it has.
    let lasting = cri.pod("lasting", &app);
    node.kill_containerd();
    node.start_containerd();
    until("the snapshotter to register again", || {
        registered(&node) == 2
    });
    lasting.remove();
    drop(cri);
    node.kill_snapshotter();
    node.start_snapshotter();
}
