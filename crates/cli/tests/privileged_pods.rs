//! Pods of containerd 2.4 whose images have volumes, and what its runtimes can do for user namespaces.

#![cfg(feature = "privileged")]

mod cri;
mod lab;
mod node;

use std::fs;

use cri::api::Status;
use cri::{Cri, Images, until_pods_are_possible};
use lab::{Lab, busybox_root, noise, until};
use node::{IMAGE, Node, pack_to_run};

/// What a pod says of the volume, of itself, and of what it writes there.
const SAID: &str = "md5sum </srv/noise; cat /srv/greeting; grep -c ' /srv ' /proc/mounts";

#[test]
fn privileged_pods_get_copies_of_the_volumes_of_their_image() {
    let lab = Lab::new();
    let dir = lab.make_dir("image");
    busybox_root(&dir.join("base"));
    let top = lab.make_dir("image/top/srv");
    fs::write(top.join("greeting"), "hello\n").unwrap();
    fs::write(top.join("noise"), noise(7, 1_000_000)).unwrap();
    let run =
        serde_json::json!({"Env": ["PATH=/bin"], "Cmd": ["/bin/sh"], "Volumes": {"/srv": {}}});
    let archive = pack_to_run(&dir, IMAGE, &run, &["base", "top"]);
    let images = Images::new(&lab, &archive);
    let app = images.app();
    let flags = ["--auto-record", "--until", "quiet:0.5"];
    let node = Node::start_today_for_pods(&lab, &flags, &images.config_of_today(&lab));
    let cri = Cri::of(&node);
    until_pods_are_possible(&cri);
    cri.pull(&app);
    let first = cri.pod("first", &app);
    let said = first.exec(SAID);
    assert!(said.ends_with("hello\n1"), "{said}");
    // What it writes is the pod's alone.
    first.exec("echo changed >/srv/greeting");
    until("the first boot to be kept", || {
        node.first_boot(&first.container).0 == "recorded"
    });
    first.remove();
    until("all layers to be served", || {
        node.served() == 3 && node.is_warm()
    });
    // The second has a copy that is made of the layers as they are served.
    let second = cri.pod("second", &app);
    assert_eq!(second.exec(SAID), said);
    assert!(second.lowers().contains("served/"), "{}", second.lowers());
    second.remove();
    cri.remove_image(&app);
    cri.remove_image(&images.pause());
    until("all snapshots to go", || node.directories() == 0);
}

#[test]
fn privileged_a_kubelet_is_told_that_debians_runtimes_map_no_mounts() {
    let lab = Lab::new();
    let images = Images::new(&lab, &node::archive(&lab, 10_000));
    let node = Node::start_today_for_pods(&lab, &[], &images.config_of_today(&lab));
    let cri = Cri::of(&node);
    until_pods_are_possible(&cri);
    let handlers = cri.call(Status {}).handlers;
    assert!(!handlers.is_empty());
    // When this fails, a pod in a user namespace is to be tested here, as `ctr` does it: runc has idmapped mounts
    // since 1.2.
    for handler in handlers {
        let maps = handler.features.is_some_and(|it| it.user_namespaces);
        assert!(!maps, "runtime {:?} has user namespaces", handler.name);
    }
}
