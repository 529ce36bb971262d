//! A containerd of today with the configuration of `packaging`: pods, and layers that are unpacked at once.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod cri;
mod lab;
mod node;

use std::fs;
use std::path::Path;
use std::process::Command;

use cri::api::{ImageFsInfo, Status};
use cri::{Cri, Images};
use lab::{Lab, busybox_root, noise, ok, until};
use node::{IMAGE, Node, archive, pack};
use testkit::registries::{Kind, Registry};

const READ: &str = "cat /srv/greeting; md5sum </srv/noise";

/// Returns how many requests to read all served layers have had.
fn reads(node: &Node<'_>) -> u64 {
    let status = node.status();
    let layers = status["layers"].as_array().unwrap().iter();
    layers
        .map(|layer| layer["served"]["requests"]["read"].as_u64().unwrap_or(0))
        .sum()
}

#[test]
fn privileged_pods_run_with_the_packaged_configuration_and_the_second_reads_nothing() {
    let lab = Lab::new();
    let images = Images::new(&lab, &archive(&lab, 1_000_000));
    let app = images.app();
    let flags = ["--auto-record", "--until", "quiet:0.5"];
    let node = Node::start_today_for_pods(&lab, &flags, &images.config_of_today(&lab));
    let cri = Cri::of(&node);
    until("pods to be possible", || {
        let status = cri.call(Status {}).status.unwrap();
        let mut conditions = status.conditions.iter();
        conditions.any(|condition| condition.kind == "RuntimeReady" && condition.holds)
    });
    let places = cri.call(ImageFsInfo {}).file_systems;
    let place = places[0].id.as_ref().map(|id| id.mountpoint.as_str());
    assert_eq!(
        place,
        node.root().to_str(),
        "a kubelet looks at another disk"
    );
    cri.pull(&app);
    let first = cri.pod("first", &app);
    let said = first.exec(READ);
    assert!(said.starts_with("hello"), "{said}");
    until("the first boot to be kept", || {
        node.first_boot(&first.container).0 == "recorded"
    });
    first.remove();
    // Those of the image, and that of the pause image.
    until("all layers to be served", || {
        node.served() == 3 && node.is_warm()
    });
    lab::until_boot_reads_nothing(
        &lab,
        || reads(&node),
        |number| {
            let pod = cri.pod(&format!("second-{number}"), &app);
            assert_eq!(pod.exec(READ), said);
            pod.remove();
        },
    );
    // overlayfs is there beside it.
    let pull = ["--namespace", "k8s.io", "images", "pull", "--plain-http"];
    node.ctr(&[&pull[..], &["--snapshotter", "overlayfs", &app]].concat());
    let list = [
        "--namespace",
        "k8s.io",
        "snapshots",
        "--snapshotter",
        "overlayfs",
        "ls",
    ];
    assert_eq!(node.ctr(&list).matches("Committed").count(), 2);
    cri.remove_image(&app);
    cri.remove_image(&images.pause());
    until("all snapshots to go", || node.directories() == 0);
}

/// Makes `docker save`'s archive of an image whose layers change what is below: each replaces a file, takes
/// one away and makes one.
fn stacked(lab: &Lab, layers: u32) -> std::path::PathBuf {
    let dir = lab.make_dir("stacked");
    busybox_root(&dir.join("layer0"));
    fs::write(dir.join("layer0/made0"), "").unwrap();
    let mut names = vec!["layer0".to_owned()];
    for number in 1..layers {
        let name = format!("layer{number}");
        let root = lab.make_dir(&format!("stacked/{name}"));
        fs::write(root.join("latest"), format!("{number}\n")).unwrap();
        fs::write(root.join(format!("made{number}")), noise(number, 300_000)).unwrap();
        fs::write(root.join(format!(".wh.made{}", number - 1)), "").unwrap();
        names.push(name);
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    pack(&dir, IMAGE, &["/bin/sh"], &names)
}

fn push(archive: &Path, to: &str) {
    ok(Command::new("skopeo")
        .args(["copy", "--quiet", "--dest-tls-verify=false"])
        .arg(format!("docker-archive:{}", archive.display()))
        .arg(format!("docker://{to}")));
}

#[test]
fn privileged_layers_that_are_unpacked_at_once_are_stacked_as_they_should() {
    let lab = Lab::new();
    let registry = Registry::start(Kind::Docker);
    let image = format!("{}/stacked:1", registry.host());
    push(&stacked(&lab, 12), &image);
    let node = Node::start_today(&lab, &[]);
    node.ctr(&[
        "images",
        "pull",
        "--plain-http",
        "--snapshotter",
        "yolofs",
        &image,
    ]);
    let said = node.containerd_said();
    assert!(!said.contains("unpacking will be sequential"), "{said}");
    let list = node.ctr(&["snapshots", "ls"]);
    let rows: Vec<Vec<&str>> = list
        .lines()
        .skip(1)
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(rows.len(), 12, "{list}");
    assert_eq!(
        rows.iter().filter(|row| row.len() == 2).count(),
        1,
        "{list}"
    );
    let out = lab.path("said");
    let uri = format!("file://{}", out.display());
    let run = [
        "run",
        "--rm",
        "--log-uri",
        &uri,
        &image,
        "all",
        "/bin/sh",
        "-c",
    ];
    node.ctr(
        &[
            &run[..],
            &["cat /latest; ls / | grep made; md5sum </made11"],
        ]
        .concat(),
    );
    let said = fs::read_to_string(&out).unwrap();
    let file = lab.path("made11");
    fs::write(&file, noise(11, 300_000)).unwrap();
    let sum = ok(Command::new("md5sum").stdin(fs::File::open(&file).unwrap()));
    assert_eq!(said, format!("11\nmade11\n{sum}"));
    node.ctr(&["images", "rm", "--sync", &image]);
    until("all snapshots to go", || node.directories() == 0);
}
