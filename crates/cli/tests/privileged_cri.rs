//! Pods, as a kubelet would have them of a real containerd, on layers that yolofs serves.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod cri;
mod node;

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

use cri::api::{ImageFsInfo, Status};
use cri::{Annotations, Cri, Images, Pod};
use lab::service::Service;
use lab::{Lab, json, noise, ok, until};
use node::{Node, archive};

const READ: &str = "cat /srv/greeting; md5sum </srv/noise";
const BYTES: usize = 1_000_000;
/// Where a kubelet looks how full the disk of images is, whatever the root of the snapshotter.
const ROOT: &str = "containerd/io.containerd.snapshotter.v1.yolofs";
const RECORD: [&str; 3] = ["--auto-record", "--until", "quiet:0.5"];

/// Returns what [`READ`] must say.
fn expected(lab: &Lab) -> String {
    let file = lab.path("noise");
    fs::write(&file, noise(7, BYTES)).unwrap();
    let sum = ok(Command::new("md5sum").stdin(File::open(file).unwrap()));
    format!("hello\n{}", sum.trim_end())
}

/// Returns the mount points in the lab.
fn mounts(lab: &Lab) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let points = table.lines().filter_map(|line| line.split(' ').nth(1));
    let lab = lab.path("");
    let mine = points.filter(|point| point.starts_with(lab.to_str().unwrap()));
    mine.map(str::to_owned).collect()
}

/// Takes the file that is read out of the page cache.
fn forget_noise(pod: &Pod<'_>) {
    let lowers = pod.lowers();
    let mut files = lowers
        .split(':')
        .map(|dir| Path::new(dir).join("srv/noise"));
    let file = files.find_map(|file| File::open(file).ok()).unwrap();
    posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
}

#[test]
fn privileged_a_pods_first_boot_is_recorded_and_the_second_served() {
    let lab = Lab::new();
    let images = Images::new(&lab, &archive(&lab, BYTES));
    let app = images.app();
    let node = Node::start_with(&lab, &RECORD, ROOT, &images.config(&lab));
    let cri = Cri::of(&node);
    let status = cri.call(Status {}).status.unwrap();
    let mut conditions = status.conditions.iter();
    assert!(conditions.any(|condition| condition.kind == "RuntimeReady" && condition.holds));
    let places = cri.call(ImageFsInfo {}).file_systems;
    let place = places[0].id.as_ref().map(|id| id.mountpoint.as_str());
    assert_eq!(place, node.root().to_str());
    cri.pull(&app);
    let expected = expected(&lab);

    let first = cri.pod("first", &app);
    let lowers = first.lowers();
    assert_eq!(lowers.matches("/recorded/").count(), 2, "{lowers}");
    assert_eq!(first.exec(READ), expected);
    node.until_recorded(&first.container);
    assert_eq!(node.first_boot(&first.container).1["image"], *app);
    // Those of the image, and that of the pause image.
    until("all layers to be served", || node.served() == 3);
    first.remove();

    let second = cri.pod("second", &app);
    let lowers = second.lowers();
    assert_eq!(lowers.matches("/served/").count(), 2, "{lowers}");
    assert_eq!(second.exec(READ), expected);
    second.remove();
    lab::until_boot_reads_nothing(
        &lab,
        || node.reads(),
        |number| {
            let pod = cri.pod(&format!("again-{number}"), &app);
            assert_eq!(pod.exec(READ), expected);
            pod.remove();
        },
    );
    until("only served layers to be mounted", || {
        let mounts = mounts(&lab);
        mounts.iter().all(|point| point.contains("/served/"))
    });
    cri.remove_image(&app);
    cri.remove_image(&images.pause());
    until("all snapshots to go", || node.directories() == 0);
    until("the layers to go", || mounts(&lab).is_empty());
}

/// containerd makes labels of a snapshot only of the annotations of its own container.
#[test]
fn privileged_pods_are_recorded_when_asked_for() {
    let lab = Lab::new();
    let images = Images::new(&lab, &archive(&lab, BYTES));
    let app = images.app();
    let node = Node::start_with(&lab, &[], ROOT, &images.config(&lab));
    let cri = Cri::of(&node);
    cri.pull(&app);
    let none = Annotations::new();
    let record = ["containerd.io/snapshot/yolofs.record", "quiet:0.5"].map(str::to_owned);
    let record = Annotations::from([record.into()]);
    let pod = cri.annotated_pod("pod", &app, &record, &none);
    let lowers = pod.lowers();
    assert_eq!(lowers.matches("/snapshots/").count(), 2, "{lowers}");
    pod.remove();
    let pod = cri.annotated_pod("container", &app, &none, &record);
    let lowers = pod.lowers();
    assert_eq!(lowers.matches("/recorded/").count(), 2, "{lowers}");
    node.until_recorded(&pod.container);
    pod.remove();
    // Without a pod, from the images of pods.
    let source = format!("containerd://k8s.io/{app}");
    let mut record = lab.bootimg();
    record.args(["record", &source, "--snapshotter", "yolofs", "--json"]);
    record.arg("--containerd").arg(node.containerd_socket());
    let kept = json(record.args(["--until", "exit", "--", "/bin/cat", "/srv/noise"]));
    assert_eq!(kept["layers"].as_array().unwrap().len(), 2, "{kept}");
}

#[test]
fn privileged_a_pod_reads_on_when_the_snapshotter_is_killed() {
    let lab = Lab::new();
    let _service = Service::start(&lab);
    let images = Images::new(&lab, &archive(&lab, BYTES));
    let app = images.app();
    let mut node = Node::start_with(&lab, &RECORD, ROOT, &images.config(&lab));
    let cri = Cri::of(&node);
    cri.pull(&app);
    let expected = expected(&lab);
    let first = cri.pod("first", &app);
    assert_eq!(first.exec(READ), expected);
    until("all layers to be served", || node.served() == 3);
    first.remove();

    let pod = cri.pod("second", &app);
    let lowers = pod.lowers();
    assert_eq!(lowers.matches("/served/").count(), 2, "{lowers}");
    node.kill_snapshotter();
    forget_noise(&pod);
    assert_eq!(pod.exec(READ), expected);
    node.start_snapshotter();
    forget_noise(&pod);
    assert_eq!(pod.exec(READ), expected);
    pod.remove();
    let last = cri.pod("last", &app);
    assert_eq!(last.exec(READ), expected);
    last.remove();
}
