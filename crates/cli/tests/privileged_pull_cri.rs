//! What `yolofs pull` has brought is what a kubelet uses: it downloads nothing again.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod cri;
mod fair;
mod node;

use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use cri::{Cri, Images, until_pods_are_possible};
use fair::Network;
use lab::{Lab, json, ok, until};
use node::{Node, archive};
use serde_json::Value;

#[test]
fn privileged_a_kubelet_uses_what_was_pulled() {
    let lab = Lab::new();
    let images = Images::new(&lab, &archive(&lab, 1_000_000));
    let node = Node::start_with(&lab, &[], "root", &images.config(&lab));
    a_kubelet_uses_what_was_pulled(&lab, &node, &images);
}

#[test]
fn privileged_a_kubelet_of_today_uses_what_was_pulled() {
    let lab = Lab::new();
    let images = Images::new(&lab, &archive(&lab, 1_000_000));
    let hosts = lab.make_dir("certs.d");
    let registry = "[plugins.'io.containerd.cri.v1.images'.registry]";
    let more = format!(
        "{}{registry}\nconfig_path = \"{}\"\n",
        images.config_of_today(&lab),
        hosts.display()
    );
    let node = Node::start_today_for_pods(&lab, &[], &more);
    a_kubelet_uses_what_was_pulled(&lab, &node, &images);
}

fn a_kubelet_uses_what_was_pulled(lab: &Lab, node: &Node<'_>, images: &Images) {
    let network = Network::before(images.port());
    let host = format!("127.0.0.1:{}", network.port);
    // It speaks no TLS, which containerd 2 is to know.
    let place = lab.make_dir(&format!("certs.d/{host}"));
    fs::write(
        place.join("hosts.toml"),
        format!("server = \"http://{host}\"\n"),
    )
    .unwrap();
    let app = format!("{host}/small:1");
    let mut pull = lab.yolofs();
    pull.args(["pull", &app, "--json", "--namespace", "k8s.io", "--address"]);
    let report = json(pull.arg(node.containerd_socket()));
    let layers = report["layers"].as_array().unwrap().iter();
    let went: Vec<_> = layers.map(|layer| &layer["went"]).collect();
    assert_eq!(went, ["disk"; 2]);
    // Whoever asks for a layer now waits for ever.
    let manifest = ok(Command::new("skopeo")
        .args(["inspect", "--raw", "--tls-verify=false"])
        .arg(format!("docker://{}", images.app())));
    let manifest: Value = serde_json::from_str(&manifest).unwrap();
    let asked = Arc::new(AtomicBool::new(false));
    for layer in manifest["layers"].as_array().unwrap() {
        let hex = layer["digest"].as_str().unwrap().replace("sha256:", "");
        let asked = Arc::clone(&asked);
        network.hold(hex, move || {
            asked.store(true, SeqCst);
            true
        });
    }
    let cri = Cri::of(node);
    until_pods_are_possible(&cri);
    cri.pull(&app);
    assert!(!asked.load(SeqCst), "a layer was downloaded again");
    let pod = cri.pod("pulled", &app);
    assert_eq!(pod.exec("cat /srv/greeting"), "hello");
    pod.remove();
    cri.remove_image(&app);
    cri.remove_image(&images.pause());
    until("all layers to go", || node.directories() == 0);
}
