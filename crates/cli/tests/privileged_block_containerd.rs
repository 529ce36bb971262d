//! Containers on block images: containerd pulls the manifest, and the node has the rest when it is read.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod block_containers;
mod block_content;
mod cri;
mod node;

use std::fs;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::Command;

use block_containers::{
    DOCUMENTS, NOISE, Running, Source, devices, expected, is_removed, mounted, pull, run, unpacked,
};
use block_content::{configured, roots_of};
use cri::{Cri, Images, until_pods_are_possible};
use lab::docker29::Docker29;
use lab::service::{Service, signal_to};
use lab::{Lab, noise, ok, until};
use nix::sys::signal::Signal;
use node::{Node, archive};
use oci::Reference;
use oci::registry::{Access, RegistryConfig, Repository, Target, Transport};
use serde_json::json;
use testkit::registries::{Kind, Proxy, Registry};

const READ: &str = "cat /srv/greeting; md5sum </srv/noise";

#[test]
fn privileged_a_block_image_is_pulled_without_its_layers() {
    let lab = Lab::new();
    let _service = Service::start(&lab);
    let node = Node::start_today(&lab, &[]);
    let source = Source::new(&lab);
    let image = source.image();
    pull(&node, &image);
    let documents = source.proxy.bytes();
    assert!(documents < DOCUMENTS, "{documents} bytes were pulled");
    assert!(unpacked(&node).is_empty(), "{:?}", unpacked(&node));
    assert!(devices(&lab).is_empty(), "a device before anything runs");
    // The second container has what the first one read, and not what it wrote.
    let write = format!("{READ}; ls /srv; echo new >/srv/new");
    let said = format!("{}greeting\nnoise\n", expected(&lab));
    for id in ["block-1", "block-2"] {
        assert_eq!(run(&lab, &node, &image, id, &write), said);
    }
    assert_eq!(devices(&lab).len(), 1);
    assert!(
        source.proxy.bytes() > NOISE as u64,
        "it came from elsewhere"
    );
    // The manifest that containerd pulled says what the layers are.
    let dirs = fs::read_dir(node.root().join("devices")).unwrap();
    let mut dirs = dirs.map(|dir| dir.unwrap().path());
    let described = dirs.find(|dir| dir.join("config.v1.json").exists());
    let image_there = format!("{}/small:block", source.registry.host());
    assert_eq!(configured(&described.unwrap()), roots_of(&image_there));
    is_removed(&lab, &node, &image);
}

/// containerd 1.6 has its client pull: that of the CRI leaves layers out that are there, and `ctr` does not.
#[test]
fn privileged_debians_containerd_runs_block_images() {
    let lab = Lab::new();
    let _service = Service::start(&lab);
    let archive = archive(&lab, NOISE);
    let images = Images::new(&lab, &archive);
    let root = "containerd/io.containerd.snapshotter.v1.yolofs";
    let flags = ["--auto-record", "--until", "quiet:0.5"];
    let node = Node::start_with(&lab, &flags, root, &images.config(&lab));
    let cri = Cri::of(&node);
    until_pods_are_possible(&cri);
    let source = Source::of(&lab, &archive);
    let image = source.image();
    cri.pull(&image);
    let documents = source.proxy.bytes();
    assert!(documents < DOCUMENTS, "{documents} bytes were pulled");
    let expected = expected(&lab);
    let pod = cri.pod("block-pod", &image);
    assert_eq!(pod.exec(READ), expected.trim_end());
    assert!(pod.lowers().contains("/devices/"), "{}", pod.lowers());
    node.until_recorded(&pod.container);
    // An image that is none is unpacked as ever.
    cri.pull(&images.app());
    let plain = cri.pod("plain-pod", &images.app());
    assert_eq!(plain.exec(READ), expected.trim_end());
    assert_eq!(devices(&lab).len(), 1);
    pod.remove();
    plain.remove();
    // Blobs that were downloaded are read from the disk.
    pull(&node, &image);
    let downloaded = source.proxy.bytes();
    source.proxy.cut_after(0);
    assert_eq!(run(&lab, &node, &image, "block-3", READ), expected);
    assert_eq!(source.proxy.bytes(), downloaded);
    for image in [&image, &images.app(), &images.pause()] {
        cri.remove_image(image);
    }
    is_removed(&lab, &node, &image);
}

#[test]
fn privileged_pods_of_containerd_24_run_on_block_images() {
    let lab = Lab::new();
    let _service = Service::start(&lab);
    let archive = archive(&lab, NOISE);
    let images = Images::new(&lab, &archive);
    let flags = ["--auto-record", "--until", "quiet:0.5"];
    let mut node = Node::start_today_for_pods(&lab, &flags, &images.config_of_today(&lab));
    let cri = Cri::of(&node);
    until_pods_are_possible(&cri);
    let source = Source::of(&lab, &archive);
    let image = source.image();
    cri.pull(&image);
    let documents = source.proxy.bytes();
    assert!(documents < DOCUMENTS, "{documents} bytes were pulled");
    let expected = expected(&lab);
    let first = cri.pod("block-first", &image);
    assert_eq!(first.exec(READ), expected.trim_end());
    assert!(first.lowers().contains("/devices/"), "{}", first.lowers());
    node.until_recorded(&first.container);
    // What a pod wrote is its own, and it reads on whoever dies.
    first.exec("echo new >/srv/new");
    node.kill_snapshotter();
    node.start_snapshotter();
    let second = cri.pod("block-second", &image);
    assert_eq!(second.exec("ls /srv"), "greeting\nnoise");
    assert_eq!(first.exec("cat /srv/new"), "new");
    assert_eq!(devices(&lab).len(), 1);
    first.remove();
    second.remove();
    for image in [&image, &images.pause()] {
        cri.remove_image(image);
    }
    until("all snapshots to go", || node.directories() == 0);
    until("the device to go", || devices(&lab).is_empty());
}

#[test]
fn privileged_docker_29_runs_containers_on_block_images() {
    let lab = Lab::new();
    let _service = Service::start(&lab);
    let flags = ["--auto-record", "--until", "exit", "--all-xattrs"];
    let node = Node::start_today(&lab, &flags);
    let docker = Docker29::start(&lab, &node.containerd_socket(), "yolofs");
    let source = Source::new(&lab);
    let image = source.image();
    docker.run(&["pull", "--quiet", &image]);
    let documents = source.proxy.bytes();
    assert!(documents < DOCUMENTS, "{documents} bytes were pulled");
    let start = ["--network=none", &image, "sh", "-c", READ];
    let id = docker.run(&[&["create", "--name", "block-docker"], &start[..]].concat());
    assert_eq!(
        docker.run(&["start", "-a", "block-docker"]),
        expected(&lab).trim_end()
    );
    node.until_recorded(&id);
    // What it changed becomes a usual layer above the device.
    let write = "echo new >/srv/new; rm /srv/greeting; ls /srv";
    let writes = [
        "run",
        "--name",
        "block-writes",
        "--network=none",
        &image,
        "sh",
        "-c",
        write,
    ];
    assert_eq!(docker.run(&writes), "new\nnoise");
    docker.run(&["commit", "block-writes", "committed"]);
    let read = [
        "run",
        "--rm",
        "--network=none",
        "committed",
        "sh",
        "-c",
        "cat /srv/new; ls /srv",
    ];
    assert_eq!(docker.run(&read), "new\nnew\nnoise");
    assert_eq!(devices(&lab).len(), 1);
    docker.run(&["rm", "block-docker", "block-writes"]);
    docker.run(&["rmi", "committed", &image]);
    until("all snapshots to go", || node.directories() == 0);
    until("the device to go", || devices(&lab).is_empty());
}

/// Reads a part of the large file that nobody has read before.
#[track_caller]
fn reads(root: &Path, part: usize) {
    let len = NOISE / PARTS;
    let mut file = fs::File::open(root.join("srv/noise")).unwrap();
    file.seek(SeekFrom::Start((part * len) as u64)).unwrap();
    let mut found = vec![0; len];
    file.read_exact(&mut found).unwrap();
    assert!(
        found == noise(7, NOISE)[part * len..][..len],
        "part {part} differs"
    );
}

/// What a test reads at a time of the large file.
const PARTS: usize = 8;

#[test]
fn privileged_without_a_node_block_images_are_pulled_and_their_containers_say_what_is_missing() {
    let lab = Lab::new();
    let node = Node::start_today(&lab, &[]);
    let source = Source::new(&lab);
    pull(&node, &source.image());
    let refused = node.try_ctr(&["run", "--rm", &source.image(), "no-node", "/bin/true"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success());
    assert!(said.contains("yolofs node"), "{said}");
}

#[test]
fn privileged_containers_on_block_images_read_on_whoever_dies() {
    let lab = Lab::new();
    let service = Service::start(&lab);
    let mut node = Node::start_today(&lab, &[]);
    let source = Source::new(&lab);
    let image = source.image();
    pull(&node, &image);
    let layers = node.directories();
    // Without the registry no container starts, and what was begun is taken back.
    source.proxy.cut_after(0);
    for id in ["away-1", "away-1"] {
        let refused = node.try_ctr(&["run", "--rm", &image, id, "/bin/true"]);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        let _gone = node.try_ctr(&["containers", "rm", id]);
        assert!(!refused.status.success());
        let why = ["cannot be served", "cannot be fetched", "127.0.0.1"];
        assert!(why.iter().all(|why| said.contains(why)), "{said}");
    }
    until("what was begun to go", || {
        node.collect_garbage();
        node.directories() == layers
    });
    source.proxy.stop_cutting();
    let root = Running::start(&node, &image, "block-reader", &[]).root;
    let reads = |part| reads(&root, part);
    reads(0);
    node.kill_snapshotter();
    reads(1);
    // What it had no time to bring away.
    let stale = node.root().join("devices/99999");
    fs::create_dir_all(stale.join("fs")).unwrap();
    node.start_snapshotter();
    reads(2);
    until("what is stale to go", || !stale.exists());
    let worker = devices(&lab)[0]["pid"].as_u64().unwrap();
    signal_to(u32::try_from(worker).unwrap(), Signal::SIGKILL);
    reads(3);
    service.kill_node();
    reads(4);
    node.kill_containerd();
    node.start_containerd();
    reads(5);
    let expected = expected(&lab);
    assert_eq!(run(&lab, &node, &image, "block-after", READ), expected);
    // All of it was read by then: the registry is not needed any more.
    source.proxy.cut_after(0);
    reads(6);
    assert_eq!(run(&lab, &node, &image, "block-without", READ), expected);
    assert_eq!(devices(&lab).len(), 1);
    node.ctr(&["tasks", "rm", "-f", "block-reader"]);
    node.ctr(&["containers", "rm", "block-reader"]);
    is_removed(&lab, &node, &image);
}

#[test]
fn privileged_what_a_container_changed_on_a_block_image_is_committed() {
    let lab = Lab::new();
    let _service = Service::start(&lab);
    let node = Node::start_today(&lab, &[]);
    let source = Source::new(&lab);
    let image = source.image();
    pull(&node, &image);
    let write = "echo new >/srv/new; rm /srv/greeting; echo more >>/etc/config; chmod 700 /srv";
    node.ctr(&["run", &image, "block-writer", "/bin/sh", "-c", write]);
    let _ended = node.try_ctr(&["tasks", "rm", "-f", "block-writer"]);
    // As a layer that could be pushed.
    let diff = lab.path("diff.tar");
    let mut program = Command::new("tar");
    ok(Command::new("sh").args([
        "-ec",
        &format!(
            "{} >{}",
            node.command(&["snapshots", "diff", "block-writer"]),
            diff.display()
        ),
    ]));
    let listed = ok(program.args(["-tzf", diff.to_str().unwrap()]));
    for name in ["srv/new", "srv/.wh.greeting", "etc/config"] {
        assert!(listed.lines().any(|line| line == name), "{name}: {listed}");
    }
    assert!(!listed.contains("noise"), "{listed}");
    // As a snapshot that others are prepared on.
    node.ctr(&["snapshots", "commit", "committed", "block-writer"]);
    node.ctr(&["snapshots", "prepare", "next", "committed"]);
    let next = mounted(&lab, &node, "next");
    let read = |name: &str| fs::read(next.join(name)).unwrap();
    assert_eq!(read("srv/new"), b"new\n");
    assert_eq!(read("etc/config"), b"answer = 42\nmore\n");
    assert!(
        read("srv/noise") == noise(7, NOISE),
        "the image's file differs"
    );
    assert!(!next.join("srv/greeting").exists());
    assert_eq!(devices(&lab).len(), 1);
    ok(Command::new("umount").arg(&next));
    for key in ["next", "committed"] {
        node.ctr(&["snapshots", "rm", key]);
    }
    node.ctr(&["containers", "rm", "block-writer"]);
    is_removed(&lab, &node, &image);
}

/// Pushes blobs that overlaybd's own tools made as an image, as its convertor does.
fn push_of_overlaybd(lab: &Lab, image: &str, blobs: &[&str]) {
    let reference: Reference = image.parse().unwrap();
    let config = RegistryConfig {
        transport: Transport::Plain,
        ..RegistryConfig::default()
    };
    let repository = Repository::open(&reference, Access::Push, &config).unwrap();
    let mut watch = |_| ControlFlow::Continue(());
    let mut push = |path: &Path| {
        let sum = ok(Command::new("sha256sum").arg(path));
        let digest = format!("sha256:{}", sum.split(' ').next().unwrap());
        let file = fs::File::open(path).unwrap();
        let size = file.metadata().unwrap().len();
        repository
            .push_blob(digest.parse().unwrap(), size, file, &mut watch)
            .unwrap();
        (digest, size)
    };
    let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lsmt/tests/vectors");
    let blobs: Vec<_> = blobs.iter().map(|blob| push(&vectors.join(blob))).collect();
    let diff_ids: Vec<_> = blobs.iter().map(|(digest, _)| digest).collect();
    let path = lab.path("config.json");
    let rootfs = json!({"type": "layers", "diff_ids": diff_ids});
    let config = json!({"architecture": "amd64", "os": "linux", "config": {}, "rootfs": rootfs});
    fs::write(&path, config.to_string()).unwrap();
    let (config, config_size) = push(&path);
    let layer = |(digest, size): &(String, u64)| {
        json!({
            "mediaType": "application/vnd.oci.image.layer.v1.tar",
            "digest": digest,
            "size": size,
            "annotations": {
                "containerd.io/snapshot/overlaybd/blob-digest": digest,
                "containerd.io/snapshot/overlaybd/blob-size": size.to_string(),
                "containerd.io/snapshot/overlaybd/version": "0.1.0",
            },
        })
    };
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {
            "mediaType": "application/vnd.oci.image.config.v1+json",
            "digest": config,
            "size": config_size,
        },
        "layers": blobs.iter().map(layer).collect::<Vec<_>>(),
    });
    let target = Target::of(&reference);
    repository
        .push_image(&target, manifest.to_string().as_bytes(), &mut watch)
        .unwrap();
}

/// Of an image that refers to the layers of another, containerd pulls and unpacks the metadata.
#[test]
fn privileged_containers_run_on_an_image_that_refers_to_the_layers_of_another() {
    let lab = Lab::new();
    let service = Service::start(&lab);
    let node = Node::start_today(&lab, &["--block-background", "plan"]);
    let registry = Registry::start(Kind::Docker);
    let proxy = Proxy::before(&registry);
    let archive = archive(&lab, NOISE);
    let plain = format!("docker://{}/small:plain", registry.host());
    let mut skopeo = Command::new("skopeo");
    skopeo.args(["copy", "--insecure-policy", "--dest-tls-verify=false"]);
    ok(skopeo.args([&format!("docker-archive:{}", archive.display()), &plain]));
    let turbo = format!("{}/small:turbo", registry.host());
    let convert = ["block", "convert", "--turbo", "--push", &turbo, &plain];
    ok(lab.yolofs().args(convert).arg(lab.path("converted")));
    let image = format!("{}/small:turbo", proxy.host());
    pull(&node, &image);
    let pulled = proxy.bytes();
    assert!(pulled < NOISE as u64 / 4, "{pulled} bytes were pulled");
    for id in ["turbo-1", "turbo-2"] {
        assert_eq!(run(&lab, &node, &image, id, READ), expected(&lab));
    }
    assert!(proxy.bytes() > NOISE as u64, "it came from elsewhere");
    assert_eq!(devices(&lab).len(), 1);
    service.kill_node();
    assert_eq!(run(&lab, &node, &image, "turbo-3", READ), expected(&lab));
    is_removed(&lab, &node, &image);
}

/// The file systems of overlaybd's own images are ext4, which needs a loop device.
#[test]
fn privileged_images_of_overlaybds_own_convertor_are_served() {
    let lab = Lab::new();
    let service = Service::start(&lab);
    let node = Node::start_today(&lab, &[]);
    let registry = Registry::start(Kind::Docker);
    let proxy = Proxy::before(&registry);
    push_of_overlaybd(
        &lab,
        &format!("{}/b:1", registry.host()),
        &["B1.obd", "B2.obd"],
    );
    let image = format!("{}/b:1", proxy.host());
    pull(&node, &image);
    assert!(
        proxy.bytes() < DOCUMENTS,
        "{} bytes were pulled",
        proxy.bytes()
    );
    let list = node.ctr(&["snapshots", "ls"]);
    let rows = list
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let mut rows = rows.filter(|row| row.len() == 3 && row[2] == "Committed");
    let top = rows.next().unwrap()[0].to_owned();
    node.ctr(&["snapshots", "prepare", "b", &top]);
    let root = mounted(&lab, &node, "b");
    // What tar makes of the same layers.
    let unpacked = lab.make_dir("unpacked");
    let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lsmt/tests/vectors");
    for layer in ["layer1.tar.gz", "layer2.tar"] {
        let mut tar = Command::new("tar");
        ok(tar
            .arg("-xf")
            .arg(vectors.join(layer))
            .arg("-C")
            .arg(&unpacked));
    }
    for (name, is_there) in [
        ("usr/bin/rnd", true),
        ("usr/bin/rnd-hard", true),
        ("etc/hostname", true),
        ("gone/new", true),
        ("etc/deleted", false),
        ("gone/file", false),
    ] {
        let found = fs::read(root.join(name)).ok();
        let expected = fs::read(unpacked.join(name)).ok().filter(|_| is_there);
        assert!(found == expected, "{name} differs");
    }
    service.kill_node();
    let worker = devices(&lab)[0]["pid"].as_u64().unwrap();
    signal_to(u32::try_from(worker).unwrap(), Signal::SIGKILL);
    let text = fs::read(root.join("usr/bin/text")).unwrap();
    assert!(
        text == fs::read(unpacked.join("usr/bin/text")).unwrap(),
        "text differs"
    );
    fs::write(root.join("gone/mine"), "written").unwrap();
    ok(Command::new("umount").arg(&root));
    node.ctr(&["snapshots", "rm", "b"]);
    is_removed(&lab, &node, &image);
}
