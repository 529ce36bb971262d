//! Containers of a real containerd, on snapshots that yolofs keeps and layers that it serves.

#![cfg(feature = "privileged")]

mod lab;
mod node;

use std::fs;

use lab::{Lab, noise, ok, until};
use node::{IMAGE, Node, archive};

/// Says which directories the container's root is made of.
const LOWERS: &str = "while read -r _ at _ options _; do \
                      [ \"$at\" = / ] && echo \"$options\"; done </proc/mounts; true";

#[test]
fn privileged_runs_images_with_runc_and_crun() {
    let lab = Lab::new();
    let node = Node::start(&lab, &["--upper", "tmpfs,max=64M"]);
    let archive = archive(&lab, 100_000);
    node.ctr(&["images", "import", archive.to_str().unwrap()]);
    assert_eq!(node.directories(), 2, "layers stay on the disk");
    let script = "echo new >/file; cat /file /srv/greeting /etc/config; mv /srv /moved; ls /moved";
    let expected = "new\nhello\nanswer = 42\ngreeting\nnoise";
    let crun = node.crun();
    assert_eq!(node.run(&[], "with-runc", script), expected);
    let flags = ["--runc-binary", &crun];
    assert_eq!(node.run(&flags, "with-crun", script), expected);
    let mounts = node.run(&[], "upper", LOWERS);
    assert!(mounts.contains("/root/upper/snapshots/"), "{mounts}");
    node.forget_everything();
}

#[test]
fn privileged_the_first_boot_is_recorded_and_the_second_served() {
    let lab = Lab::new();
    let node = Node::start(&lab, &["--auto-record", "--until", "quiet:0.5"]);
    let archive = archive(&lab, 3_000_000);
    node.ctr(&["images", "import", archive.to_str().unwrap()]);
    let script = format!("{LOWERS}; cat /srv/greeting; md5sum /srv/noise");
    let first = node.run(&[], "first", &script);
    assert!(first.contains("/root/recorded/"), "{first}");
    until("both layers to be served", || node.served() == 2);
    let second = node.run(&[], "second", &script);
    assert!(second.contains("/root/served/"), "{second}");
    assert!(!second.contains("/recorded/"), "{second}");
    let bytes = |said: &str| said.split_once('\n').unwrap().1.to_owned();
    assert_eq!(bytes(&second), bytes(&first));
    until("the recorder to go", || node.mounts().len() == 2);
    node.forget_everything();
    until("the layers to go", || node.mounts().is_empty());
}

#[test]
fn privileged_a_label_asks_for_a_recording() {
    let lab = Lab::new();
    let node = Node::start(&lab, &[]);
    let archive = archive(&lab, 100_000);
    node.ctr(&["images", "import", archive.to_str().unwrap()]);
    let plain = node.run(&[], "plain", LOWERS);
    assert!(plain.contains("/root/snapshots/1/fs"), "{plain}");
    let label = "containerd.io/snapshot/yolofs.record=quiet:0.2";
    let recorded = node.run(&["--snapshotter-label", label], "recorded", LOWERS);
    assert!(recorded.contains("/root/recorded/"), "{recorded}");
    until("a layer to be served", || node.served() > 0);
}

#[test]
fn privileged_a_layer_changed_by_hand_is_served_as_it_is() {
    let lab = Lab::new();
    let node = Node::start(&lab, &["--auto-record", "--until", "quiet:0.2"]);
    let archive = archive(&lab, 100_000);
    node.ctr(&["images", "import", archive.to_str().unwrap()]);
    node.run(&[], "first", "cat /srv/greeting /srv/noise");
    until("both layers to be served", || node.served() == 2);
    let mut node = node;
    node.stop_snapshotter();
    fs::write(node.root().join("snapshots/2/fs/srv/greeting"), "changed\n").unwrap();
    node.start_snapshotter();
    until("both layers to be served", || node.served() == 2);
    assert_eq!(node.run(&[], "second", "cat /srv/greeting"), "changed");
}

#[test]
fn privileged_containers_outlive_the_snapshotter() {
    let lab = Lab::new();
    let mut node = Node::start(&lab, &["--auto-record", "--until", "quiet:0.2"]);
    let archive = archive(&lab, 3_000_000);
    node.ctr(&["images", "import", archive.to_str().unwrap()]);
    // One over recorders, one over served layers.
    for id in ["recorded", "served"] {
        let script = "echo up >/up; while :; do sleep 1; done";
        node.ctr(&["run", "-d", IMAGE, id, "/bin/sh", "-c", script]);
        until("both layers to be served", || node.served() == 2);
    }
    node.stop_snapshotter();
    node.start_snapshotter();
    let expected = lab.path("noise");
    fs::write(&expected, noise(7, 3_000_000)).unwrap();
    let sum = ok(std::process::Command::new("md5sum").arg(&expected));
    let sum = sum.split(' ').next().unwrap();
    for id in ["recorded", "served"] {
        let said = node.ctr(&[
            "tasks",
            "exec",
            "--exec-id",
            "x",
            id,
            "/bin/md5sum",
            "/srv/noise",
        ]);
        assert!(said.starts_with(sum), "{id}: {said}");
    }
    until("both layers to be served", || node.served() == 2);
    assert_eq!(node.run(&[], "new", "cat /srv/greeting"), "hello");
    assert!(
        !node.former_ended(),
        "somebody must serve the old containers"
    );
    for id in ["recorded", "served"] {
        node.ctr(&["tasks", "rm", "-f", id]);
        node.ctr(&["containers", "rm", id]);
    }
    until("the former snapshotter to end", || node.former_ended());
}

#[test]
fn privileged_a_killed_snapshotter_is_followed_by_another() {
    let lab = Lab::new();
    let mut node = Node::start(&lab, &["--auto-record", "--until", "quiet:0.2"]);
    let archive = archive(&lab, 100_000);
    node.ctr(&["images", "import", archive.to_str().unwrap()]);
    let mut expected = String::new();
    for round in 0..3 {
        let said = node.run(
            &[],
            &format!("round-{round}"),
            "cat /srv/greeting; md5sum /srv/noise",
        );
        assert!(round == 0 || said == expected, "{said}");
        expected = said;
        until("both layers to be served", || node.served() == 2);
        node.kill_snapshotter();
        let down = node.try_ctr(&["run", "--rm", IMAGE, "down", "/bin/sh", "-c", "true"]);
        assert!(!down.status.success());
        node.start_snapshotter();
    }
    node.forget_everything();
}

#[test]
fn privileged_a_containerd_killed_while_it_unpacks_leaves_nothing() {
    let lab = Lab::new();
    let mut node = Node::start(&lab, &[]);
    let archive = archive(&lab, 20_000_000);
    let archive = archive.to_str().unwrap();
    for _ in 0..3 {
        let before = node.directories();
        let mut import = node.spawn_ctr(&["images", "import", archive]);
        until("a layer to be unpacked", || {
            node.directories() > before || import.try_wait().unwrap().is_some()
        });
        node.kill_containerd();
        import.wait().unwrap();
        node.start_containerd();
    }
    node.ctr(&["images", "import", archive]);
    assert_eq!(node.run(&[], "after", "cat /srv/greeting"), "hello");
    // Only a snapshot that goes makes containerd look for those that it does not know.
    node.forget_everything();
}
