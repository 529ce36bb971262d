//! What `yolofs pull` has brought is what a kubelet uses, and what another namespace has is not pulled: nothing is downloaded
//! twice.

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

/// Pulls into a namespace, and returns where the layers went.
fn pulled(lab: &Lab, node: &Node<'_>, app: &str, namespace: &str, flags: &[&str]) -> Vec<String> {
    let mut pull = lab.yolofs();
    pull.args(["pull", app, "--json", "--namespace", namespace]);
    let report = json(
        pull.arg("--address")
            .arg(node.containerd_socket())
            .args(flags),
    );
    let layers = report["layers"].as_array().unwrap().iter();
    let went: Vec<_> = layers
        .map(|layer| layer["went"].as_str().unwrap().to_owned())
        .collect();
    let new = went.iter().any(|place| place != "present") && report["dry_run"] == false;
    assert_eq!(report["fetched_bytes"] != 0, new, "{report}");
    went
}

#[test]
fn privileged_a_pull_downloads_nothing_that_another_namespace_has() {
    let lab = Lab::new();
    let images = Images::new(&lab, &archive(&lab, 1_000_000));
    let node = Node::start_with(&lab, &[], "root", &images.config(&lab));
    a_pull_downloads_nothing_that_another_namespace_has(&lab, &node, &images);
}

#[test]
fn privileged_nor_does_one_into_a_containerd_of_today() {
    let lab = Lab::new();
    let images = Images::new(&lab, &archive(&lab, 1_000_000));
    let node = Node::start_today_for_pods(&lab, &[], &images.config_of_today(&lab));
    a_pull_downloads_nothing_that_another_namespace_has(&lab, &node, &images);
}

fn a_pull_downloads_nothing_that_another_namespace_has(
    lab: &Lab,
    node: &Node<'_>,
    images: &Images,
) {
    let app = images.app();
    let pulled = |namespace: &str, flags: &[&str]| pulled(lab, node, &app, namespace, flags);
    assert_eq!(pulled("default", &[]), ["disk"; 2]);
    // A plan makes nothing.
    assert_eq!(pulled("k8s.io", &["--dry-run"]), ["present"; 2]);
    let theirs = || node.ctr(&["--namespace", "k8s.io", "snapshots", "ls"]);
    assert_eq!(theirs().lines().count(), 1, "{}", theirs());
    assert_eq!(pulled("k8s.io", &[]), ["present"; 2]);
    assert_eq!(node.directories(), 2);
    // Each namespace keeps its own, whoever was first.
    node.ctr(&["images", "rm", "--sync", &app]);
    node.collect_garbage();
    assert_eq!(node.directories(), 2);
    let cri = Cri::of(node);
    until_pods_are_possible(&cri);
    let pod = cri.pod("second", &app);
    assert_eq!(pod.exec("cat /srv/greeting"), "hello");
    pod.remove();
    assert_eq!(pulled("default", &[]), ["present"; 2]);
    cri.remove_image(&app);
    cri.remove_image(&images.pause());
    until("only what is left in one", || node.directories() == 2);
    // Blobs are another matter: who keeps them has them downloaded. Not where the CRI looks, which names images by itself, some
    // time after they came.
    let kept = json(
        lab.yolofs()
            .args(["pull", &app, "--json", "--namespace", "third"])
            .args(["--blobs", "keep", "--address"])
            .arg(node.containerd_socket()),
    );
    assert_eq!(kept["layers"][0]["went"], "present", "{kept}");
    assert!(
        kept["fetched_bytes"].as_u64().unwrap() > 1_000_000,
        "{kept}"
    );
    let remove = || node.ctr(&["--namespace", "third", "images", "rm", "--sync", &app]);
    remove();
    node.forget_everything();
    assert_eq!(pulled("third", &[]), ["disk"; 2]);
    remove();
    until("all layers to go", || node.directories() == 0);
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
    assert_eq!(pulled(lab, node, &app, "k8s.io", &[]), ["disk"; 2]);
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
