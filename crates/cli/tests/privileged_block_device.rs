//! Containers whose root is a writable block device of their own, and what is committed of it.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod block_attached;
mod block_containers;
mod cri;
mod node;

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use block_attached::{attach, kill_worker};
use block_containers::{DOCUMENTS, NOISE, Running, Source, devices, is_removed, mounted, pull};
use containerd_client::services::v1::snapshots::PrepareSnapshotRequest;
use containerd_client::services::v1::snapshots::snapshots_client::SnapshotsClient;
use containerd_client::tonic::Request;
use containerd_client::types::Mount;
use containerd_client::with_namespace;
use cri::{Cri, Images, until_pods_are_possible};
use lab::service::Service;
use lab::{Lab, noise, ok, output, until};
use node::{Node, archive};

const LABEL: &str = "containerd.io/snapshot/overlaybd.writable";
/// Where the blob of a committed one is.
const COMMITTED: &str = "containerd.io/snapshot/overlaybd.localcommitpath";

/// Starts a container with a device of its own.
fn start<'a>(node: &'a Node<'_>, image: &str, id: &'static str, form: &str) -> Running<'a> {
    Running::start(node, image, id, &[(LABEL, form)])
}

/// The devices that containers write to.
fn own_devices(lab: &Lab) -> Vec<String> {
    let devices = devices(lab);
    let names = devices
        .iter()
        .map(|device| device["name"].as_str().unwrap().to_owned());
    names.filter(|name| name.ends_with("-own")).collect()
}

/// The loop devices of files that are mounts of a node.
fn loop_devices(node: &Node<'_>) -> Vec<String> {
    let all = ok(Command::new("losetup").args(["-nlO", "BACK-FILE"]));
    let root = node.root().display().to_string();
    all.lines()
        .filter(|line| line.contains(&root))
        .map(str::to_owned)
        .collect()
}

/// Returns whether a loop device is of a file in a mount that is gone.
fn is_of_nothing(device: &str) -> bool {
    let name = Path::new(device).file_name().unwrap();
    let of = Path::new("/sys/block").join(name).join("loop/backing_file");
    fs::read_to_string(of).is_ok_and(|file| file.trim_end() == "/disk")
}

/// Has containerd prepare a snapshot with a device, as `ctr` cannot.
fn prepare(node: &Node<'_>, key: &str, parent: &str, form: &str) -> Vec<Mount> {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let channel = containerd_client::connect(node.containerd_socket()).await;
        let request = PrepareSnapshotRequest {
            snapshotter: "yolofs".to_owned(),
            key: key.to_owned(),
            parent: parent.to_owned(),
            labels: HashMap::from([(LABEL.to_owned(), form.to_owned())]),
        };
        let request = with_namespace!(request, "default");
        let mut client = SnapshotsClient::new(channel.unwrap());
        client.prepare(request).await.unwrap().into_inner().mounts
    })
}

/// Mounts what containerd was told of a snapshot.
fn mount(lab: &Lab, mount: &Mount) -> PathBuf {
    let at = lab.make_dir("mounted");
    let mut command = Command::new("mount");
    match mount.r#type.as_str() {
        "bind" => command.arg("--bind"),
        kind => command.args(["-t", kind, "-o", &mount.options.join(",")]),
    };
    ok(command.arg(&mount.source).arg(&at));
    at
}

/// Returns the type of what is mounted on a directory.
fn kind_of(at: &Path) -> String {
    let find = ["-n", "-o", "FSTYPE", "--mountpoint"];
    let kind = ok(Command::new("findmnt").args(find).arg(at));
    kind.trim().to_owned()
}

/// Unmounts a directory. Who is forked by another test has its files open for a moment.
fn unmount(at: &Path) {
    until("nobody to use it", || {
        output(Command::new("umount").arg(at)).status.success()
    });
}

/// What a container changes, and what the next one has of it.
fn change(container: &Running<'_>) {
    container.write("srv/new", b"new\n");
    container.write("etc/config", b"changed\n");
    fs::remove_file(container.root.join("srv/greeting")).unwrap();
    let set_user_id = fs::Permissions::from_mode(0o4755);
    fs::set_permissions(container.root.join("srv/new"), set_user_id).unwrap();
}

#[track_caller]
fn assert_changed(root: &Path) {
    assert_eq!(fs::read(root.join("srv/new")).unwrap(), b"new\n");
    assert_eq!(fs::read(root.join("etc/config")).unwrap(), b"changed\n");
    let mode = root
        .join("srv/new")
        .metadata()
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o7777, 0o4755);
    assert!(!root.join("srv/greeting").exists());
    assert!(fs::read(root.join("srv/noise")).unwrap() == noise(7, NOISE));
}

/// As `nerdctl commit` and `docker commit` have it made: a layer that could be pushed, of a container that runs, too.
#[track_caller]
fn has_a_usual_layer(lab: &Lab, node: &Node<'_>, id: &str) {
    let diff = lab.path("diff.tar");
    let command = node.command(&["snapshots", "diff", id]);
    ok(Command::new("sh").args(["-ec", &format!("{command} >{}", diff.display())]));
    let listed = ok(Command::new("tar").args(["-tzf", diff.to_str().unwrap()]));
    for name in ["srv/new", "srv/.wh.greeting", "etc/config"] {
        assert!(listed.lines().any(|line| line == name), "{name}: {listed}");
    }
    assert!(!listed.contains("noise"), "{listed}");
    let (diff, name) = (diff.to_str().unwrap(), "etc/config");
    let config = ok(Command::new("tar").args(["-xzOf", diff, name]));
    assert_eq!(config, "changed\n", "what was written last is in it");
}

/// A snapshot that is committed is nobody's to write to any more: who has it mounted is not told. So that is refused, and the
/// container goes on, on the device that it has.
#[track_caller]
fn is_not_committed_while_it_runs(lab: &Lab, node: &Node<'_>, id: &str) {
    let devices = || {
        let flags = ["-nlO", "NAME,AUTOCLEAR,BACK-FILE"];
        let all = ok(Command::new("losetup").args(flags));
        let root = node.root().display().to_string();
        let ours = all.lines().filter(|line| line.contains(&root));
        let words = ours.map(|line| line.split_whitespace().map(str::to_owned));
        words.map(Iterator::collect).collect::<Vec<Vec<_>>>()
    };
    let before = (own_devices(lab), devices());
    let refused = node.try_ctr(&["snapshots", "commit", "committed", id]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success(), "it was committed");
    assert!(said.contains("end the container"), "{said}");
    assert!(said.contains("nerdctl commit"), "{said}");
    assert_eq!((own_devices(lab), devices()), before);
}

/// Commits what a container has written, and has others have it: in an overlay, and on a device of their own.
fn commit_and_go_on(lab: &Lab, node: &Node<'_>, id: &str) {
    node.ctr(&["snapshots", "commit", "committed", id]);
    until("its device to go", || own_devices(lab).is_empty());
    let info = node.ctr(&["snapshots", "info", "committed"]);
    let info: serde_json::Value = serde_json::from_str(&info).unwrap();
    let blob = PathBuf::from(info["Labels"][COMMITTED].as_str().unwrap());
    assert!(
        blob.metadata().unwrap().len() < NOISE as u64,
        "more than was written"
    );
    let next = prepare(node, "next", "committed", "dir");
    let at = mount(lab, &next[0]);
    assert_changed(&at);
    fs::write(at.join("srv/more"), "more").unwrap();
    unmount(&at);
    node.ctr(&["snapshots", "commit", "committed-2", "next"]);
    node.ctr(&["snapshots", "prepare", "read", "committed-2"]);
    let at = mounted(lab, node, "read");
    assert_eq!(kind_of(&at), "overlay");
    assert_changed(&at);
    assert_eq!(fs::read(at.join("srv/more")).unwrap(), b"more");
    unmount(&at);
    is_a_clean_image(lab, node, &blob);
    for key in ["read", "committed-2", "committed"] {
        node.ctr(&["snapshots", "rm", key]);
    }
}

/// The device with the layers that were committed is an image for `yolofs block`, and its file system is clean.
fn is_a_clean_image(lab: &Lab, node: &Node<'_>, blob: &Path) {
    let dirs = fs::read_dir(node.root().join("devices")).unwrap();
    let configs = dirs.map(|dir| dir.unwrap().path().join("config.v1.json"));
    let of_it = blob.parent().unwrap().to_str().unwrap();
    let has_it =
        |config: &PathBuf| fs::read_to_string(config).is_ok_and(|text| text.contains(of_it));
    let config = configs.into_iter().find(has_it).unwrap();
    let image = lab.path("of-committed");
    let create = [
        "block", "create", "--kind", "hybrid", "--size", "64G", "--lower",
    ];
    ok(lab.yolofs().args(create).arg(&config).arg(&image));
    let cache = lab.path("cache-of-committed");
    let flags = ["--mount", "--writable", "--cache", cache.to_str().unwrap()];
    let attached = attach(lab, &image, "clean", &flags);
    ok(Command::new("e2fsck").args(["-fn", attached["address"].as_str().unwrap()]));
    ok(lab.yolofs().args(["block", "detach", "clean"]));
}

fn is_gone(lab: &Lab, node: &Node<'_>, image: &str, id: &str) {
    node.ctr(&["containers", "rm", id]);
    is_removed(lab, node, image);
    assert!(loop_devices(node).is_empty(), "{:?}", loop_devices(node));
}

#[test]
fn privileged_a_container_writes_to_a_device_of_its_own_whoever_dies() {
    let lab = Lab::new();
    let service = Service::start(&lab);
    let mut node = Node::start_today(&lab, &[]);
    let source = Source::with_ext4(&lab);
    let image = source.image();
    pull(&node, &image);
    assert!(source.proxy.bytes() < DOCUMENTS, "layers were pulled");
    let container = start(&node, &image, "device-1", "dir");
    let (kind, device) = container.mounted();
    assert_eq!(kind, "ext4");
    assert!(device.starts_with("/dev/loop"), "{device}");
    change(&container);
    // Programs with set-user-id bits in it are out of reach of other users of the machine.
    let devices = node.root().join("devices").metadata().unwrap();
    assert_eq!(devices.permissions().mode() & 0o077, 0);
    // Another one of the image has nothing of it.
    let other = start(&node, &image, "device-2", "dir");
    assert_ne!(other.mounted(), container.mounted());
    assert_eq!(other.read("srv/greeting"), b"hello\n");
    other.end();
    node.ctr(&["containers", "rm", "device-2"]);
    until("its device to go", || own_devices(&lab).len() == 1);
    let name = own_devices(&lab).remove(0);
    let root = container.root.clone();
    drop((container, other));
    let write = |round: u32| {
        fs::write(root.join(format!("srv/{round}")), noise(round + 1, 1 << 20)).unwrap();
    };
    write(0);
    node.kill_snapshotter();
    write(1);
    kill_worker(&lab, &name);
    write(2);
    node.start_snapshotter();
    service.kill_node();
    write(3);
    node.kill_containerd();
    write(4);
    node.start_containerd();
    write(5);
    for round in 0..6 {
        let found = fs::read(root.join(format!("srv/{round}"))).unwrap();
        assert!(found == noise(round + 1, 1 << 20), "file {round} differs");
        fs::remove_file(root.join(format!("srv/{round}"))).unwrap();
    }
    is_not_committed_while_it_runs(&lab, &node, "device-1");
    has_a_usual_layer(&lab, &node, "device-1");
    write(6);
    fs::remove_file(root.join("srv/6")).unwrap();
    assert_eq!(own_devices(&lab), [name]);
    node.ctr(&["tasks", "rm", "-f", "device-1"]);
    has_a_usual_layer(&lab, &node, "device-1");
    commit_and_go_on(&lab, &node, "device-1");
    is_gone(&lab, &node, &image, "device-1");
}

#[test]
fn privileged_debians_containerd_runs_containers_on_devices_of_their_own() {
    let lab = Lab::new();
    let _service = Service::start(&lab);
    let node = Node::start(&lab, &[]);
    let source = Source::with_ext4(&lab);
    let image = source.image();
    pull(&node, &image);
    let container = start(&node, &image, "device-3", "dir");
    assert_eq!(container.mounted().0, "ext4");
    container.sh("echo of the container >/srv/said");
    assert_eq!(container.read("srv/said"), b"of the container\n");
    change(&container);
    container.end();
    commit_and_go_on(&lab, &node, "device-3");
    is_gone(&lab, &node, &image, "device-3");
}

/// As after a reboot: all that served the device was killed, and no container runs. What was synced is there, and the
/// file system is checked before it is mounted again.
#[test]
fn privileged_a_container_starts_again_on_its_device() {
    let lab = Lab::new();
    let mut service = Service::start(&lab);
    let node = Node::start_today(&lab, &[]);
    let source = Source::with_ext4(&lab);
    let image = source.image();
    pull(&node, &image);
    for (id, form) in [("device-5", "dir"), ("device-6", "dev")] {
        let container = start(&node, &image, id, form);
        change(&container);
        container.end();
        node.ctr(&["tasks", "start", "-d", id]);
        let container = Running::of(&node, id);
        assert_changed(&container.root);
        container.write("srv/more", b"more");
        container.sync();
        let device = container.mounted().1;
        service.kill_all();
        let _dead = node.try_ctr(&["tasks", "rm", "-f", id]);
        service.start_again();
        until("its device to be served", || {
            let name = own_devices(&lab).pop();
            name.is_some_and(|name| block_attached::device(&lab, &name)["state"] == "serving")
        });
        node.ctr(&["tasks", "start", "-d", id]);
        let container = Running::of(&node, id);
        until("what is left of its loop device to go", || {
            !is_of_nothing(&device)
        });
        assert_changed(&container.root);
        assert_eq!(container.read("srv/more"), b"more");
        container.write("srv/again", b"again");
        container.end();
        node.ctr(&["containers", "rm", id]);
        until("its device to go", || own_devices(&lab).is_empty());
    }
    is_removed(&lab, &node, &image);
    assert!(loop_devices(&node).is_empty(), "{:?}", loop_devices(&node));
}

/// The same with the block device itself, which containerd mounts.
#[test]
fn privileged_a_container_is_given_the_block_device_itself() {
    let lab = Lab::new();
    let service = Service::start(&lab);
    let node = Node::start_today(&lab, &[]);
    let source = Source::with_ext4(&lab);
    let image = source.image();
    pull(&node, &image);
    let container = start(&node, &image, "device-4", "dev");
    let (kind, device) = container.mounted();
    assert_eq!(kind, "ext4");
    let name = own_devices(&lab).remove(0);
    let shown = block_attached::device(&lab, &name);
    assert_eq!(
        (&shown["loop_device"], &shown["erofs"]),
        (&device.into(), &serde_json::Value::Null)
    );
    change(&container);
    kill_worker(&lab, &name);
    service.kill_node();
    assert_eq!(container.read("etc/config"), b"changed\n");
    is_not_committed_while_it_runs(&lab, &node, "device-4");
    container.write("srv/more", b"more\n");
    container.sync();
    fs::remove_file(container.root.join("srv/more")).unwrap();
    // containerd would mount the device to be read only, which the kernel does of none that is written to.
    let diff = node.try_ctr(&["snapshots", "diff", "device-4"]);
    let said = String::from_utf8_lossy(&diff.stderr).into_owned();
    assert!(said.contains("device or resource busy"), "{said}");
    container.end();
    has_a_usual_layer(&lab, &node, "device-4");
    commit_and_go_on(&lab, &node, "device-4");
    is_gone(&lab, &node, &image, "device-4");
}

#[test]
fn privileged_an_image_that_cannot_be_written_to_says_what_can() {
    let lab = Lab::new();
    let _service = Service::start(&lab);
    let node = Node::start_today(&lab, &[]);
    let source = Source::new(&lab);
    let image = source.image();
    pull(&node, &image);
    let layers = node.directories();
    for form in ["dir", "dev"] {
        let label = format!("{LABEL}={form}");
        let run = [
            "run",
            "--rm",
            "--snapshotter-label",
            &label,
            &image,
            "refused",
        ];
        let refused = node.try_ctr(&[&run[..], &["/bin/true"]].concat());
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(said.contains("convert it to an ext4"), "{said}");
        let _gone = node.try_ctr(&["containers", "rm", "refused"]);
    }
    until("what was begun to go", || {
        node.collect_garbage();
        node.directories() == layers && own_devices(&lab).is_empty()
    });
    is_removed(&lab, &node, &image);
}

/// Pods have devices where that is set up, and an overlay where there can be none. containerd 2.4 passes no annotation on
/// as a label.
#[test]
fn privileged_pods_write_to_devices_of_their_own() {
    let lab = Lab::new();
    let _service = Service::start(&lab);
    let archive = archive(&lab, NOISE);
    let images = Images::new(&lab, &archive);
    let flags = ["--block-writable", "dir"];
    let mut node = Node::start_today_for_pods(&lab, &flags, &images.config_of_today(&lab));
    let source = Source::of(&lab, &archive);
    let (erofs, ext4) = (source.image(), source.add_ext4(&lab, &archive));
    let root = "head -n 1 /proc/mounts | cut -d ' ' -f 3";
    let cri = Cri::of(&node);
    until_pods_are_possible(&cri);
    cri.pull(&ext4);
    cri.pull(&erofs);
    for (name, image, kind) in [
        ("device-pod-1", &erofs, "overlay"),
        ("device-pod-2", &ext4, "ext4"),
    ] {
        let pod = cri.pod(name, image);
        assert_eq!(pod.exec(root), kind, "{name}");
        pod.remove();
    }
    until("its device to go", || own_devices(&lab).is_empty());
    node.kill_snapshotter();
    node.start_snapshotter();
    let pod = cri.pod("device-pod-3", &ext4);
    pod.exec("echo new >/srv/new; rm /srv/greeting; sync");
    kill_worker(&lab, &own_devices(&lab)[0]);
    assert_eq!(pod.exec("cat /srv/new; ls /srv"), "new\nnew\nnoise");
    pod.remove();
    until("its device to go", || own_devices(&lab).is_empty());
    for image in [&ext4, &erofs, &images.pause()] {
        cri.remove_image(image);
    }
    until("all snapshots to go", || node.directories() == 0);
    until("all devices to go", || devices(&lab).is_empty());
    assert!(loop_devices(&node).is_empty(), "{:?}", loop_devices(&node));
}
