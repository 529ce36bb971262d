//! A kubelet's pulls of images whose layers the node knows: nothing of these is downloaded.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod cri;
mod node;

use std::fs;

use cri::{Cri, Images, until_pods_are_possible};
use lab::{Lab, until};
use node::{Node, archive};
use testkit::registries::Proxy;

/// What nobody can compress, of each of the images.
const NOISE: usize = 1_000_000;
/// A manifest and a configuration, with their headers.
const DOCUMENTS: u64 = 100_000;

/// Returns what a containerd of today needs to know of a registry behind a line: that it speaks no TLS.
fn config(lab: &Lab, images: &Images, line: &Proxy) -> String {
    let hosts = lab.make_dir("certs.d");
    let place = lab.make_dir(&format!("certs.d/{}", line.host()));
    let server = format!("server = \"http://{}\"\n", line.host());
    fs::write(place.join("hosts.toml"), server).unwrap();
    format!(
        "{}[plugins.'io.containerd.cri.v1.images'.registry]\nconfig_path = \"{}\"\n",
        images.config_of_today(lab),
        hosts.display()
    )
}

/// Removes the layers' blobs from a namespace, so that they would have to be downloaded.
fn forget_blobs(node: &Node<'_>, namespace: &str) {
    let list = node.ctr(&["--namespace", namespace, "content", "ls"]);
    let lines = list.lines().skip(1);
    let layers = lines.filter(|line| !line.contains("gc.ref") && !line.contains("config"));
    let mut removed = 0;
    for layer in layers {
        let digest = layer.split_whitespace().next().unwrap();
        node.ctr(&["--namespace", namespace, "content", "rm", digest]);
        removed += 1;
    }
    assert!(removed > 1, "{list}");
    node.collect_garbage();
}

#[test]
fn privileged_a_kubelet_downloads_no_layer_that_the_node_knows() {
    let lab = Lab::new();
    let images = Images::new(&lab, &archive(&lab, NOISE));
    let line = images.line();
    let app = format!("{}/small:1", line.host());
    let node = Node::start_today_for_pods(&lab, &[], &config(&lab, &images, &line));
    let cri = Cri::of(&node);
    until_pods_are_possible(&cri);
    let pull = ["images", "pull", "--plain-http", "--snapshotter", "yolofs"];
    node.ctr(&[&pull[..], &[&app]].concat());
    let all = line.bytes();
    assert!(all > NOISE as u64, "only {all} bytes were counted");
    forget_blobs(&node, "default");
    let before = line.bytes();
    cri.pull(&app);
    let downloaded = line.bytes() - before;
    assert!(
        downloaded < DOCUMENTS,
        "{downloaded} of {all} bytes were downloaded again"
    );
    let pod = cri.pod("known", &app);
    assert_eq!(pod.exec("cat /srv/greeting"), "hello");
    pod.remove();
    // Whoever unpacked the layers removes them: the kubelet keeps its own.
    node.ctr(&["images", "rm", "--sync", &app]);
    node.collect_garbage();
    let pod = cri.pod("alone", &app);
    assert_eq!(pod.exec("cat /srv/greeting"), "hello");
    pod.remove();
    cri.remove_image(&app);
    cri.remove_image(&images.pause());
    until("all layers to go", || node.directories() == 0);
}
