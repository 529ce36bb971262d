//! Layers that are warmed before the containers of a pod are made: a containerd of today tells of its sandbox.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod cri;
mod lab;
mod node;

use std::collections::HashMap;

use cri::api::Status;
use cri::{Annotations, Cri, Images, sandbox_config};
use lab::{Lab, until};
use node::{Node, archive};

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

#[test]
fn privileged_layers_are_warmed_before_the_containers_of_a_pod_are_made() {
    let lab = Lab::new();
    let images = Images::new(&lab, &archive(&lab, 1_000_000));
    let app = images.app();
    let flags = ["--auto-record", "--until", "quiet:0.5"];
    let mut node = Node::start_today_with_nri(&lab, &flags, &images.config_of_today(&lab));
    let cri = Cri::of(&node);
    until("pods to be possible", || {
        let Ok(reply) = cri.try_call(Status {}) else {
            return false;
        };
        let conditions = reply.status.unwrap().conditions;
        let mut conditions = conditions.iter();
        conditions.any(|it| it.kind == "RuntimeReady" && it.holds)
    });
    until("the snapshotter to register", || registered(&node) == 1);
    cri.pull(&app);
    let first = cri.pod("web", &app);
    first.exec("md5sum </srv/noise");
    until("the first boot to be kept", || {
        node.first_boot(&first.container).0 == "recorded"
    });
    first.remove();
    until("all layers to be served", || {
        node.served() == 3 && node.is_warm()
    });

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
