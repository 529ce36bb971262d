//! Docker 29 with its images in containerd, and yolofs as the snapshotter.

#![cfg(feature = "privileged")]

mod lab;
mod node;

use lab::docker29::Docker29;
use lab::{Lab, until};
use node::Node;

const READ: &str = "cat /usr/lib/part* | md5sum";

#[test]
fn privileged_docker_29_has_first_boots_recorded_and_the_second_served() {
    let lab = Lab::new();
    let node = Node::start_today(&lab, &["--auto-record", "--until", "exit"]);
    let docker = Docker29::start(&lab, &node.containerd_socket(), "yolofs");
    docker.import_base(&lab);
    docker.build(&lab, "app", "base");
    let id = docker.run(&["create", "--network=none", "app", "sh", "-c", READ]);
    // Created and removed: nothing was read, and nothing is known of the image.
    docker.run(&["rm", &id]);
    assert_eq!(node.served(), 0);
    let boot = |name: &str, image: &str| {
        let id = docker.run(&[
            "create",
            "--name",
            name,
            "--network=none",
            image,
            "sh",
            "-c",
            READ,
        ]);
        let sum = docker.run(&["start", "-a", name]);
        (id, sum)
    };
    let (id, sum) = boot("first", "app");
    until("the boot to be kept", || {
        node.first_boot(&id).0 == "recorded"
    });
    let (_, boot_status) = node.first_boot(&id);
    assert!(
        boot_status["image"].as_str().unwrap().contains("app"),
        "{boot_status}"
    );
    until("both layers to be served", || {
        node.served() == 2 && node.is_warm()
    });
    let reads = || requests(&node, "read");
    let before = reads();
    let (second, again) = boot("second", "app");
    assert_eq!(again, sum);
    assert_eq!(reads(), before, "the second boot read from the mounts");
    assert_eq!(node.first_boot(&second).0, "", "it was recorded again");
    // A container of an image that was made of a container: it stands on a layer of Docker's own.
    docker.run(&[
        "run",
        "--name",
        "changed",
        "--network=none",
        "app",
        "sh",
        "-c",
        "echo 1 > /new",
    ]);
    docker.run(&["commit", "changed", "kept"]);
    let (id, _) = boot("of-kept", "kept");
    until("its boot to be kept", || {
        let (state, why) = node.first_boot(&id);
        assert_ne!(state, "failed", "{why}");
        state == "recorded"
    });
    docker.run(&["rm", "first", "second", "changed", "of-kept"]);
    docker.run(&["rmi", "kept", "app", "base"]);
}

/// Returns how many requests of a kind all served layers have seen.
fn requests(node: &Node<'_>, kind: &str) -> u64 {
    let status = node.status();
    let layers = status["layers"].as_array().unwrap().iter();
    layers
        .map(|layer| layer["served"]["requests"][kind].as_u64().unwrap_or(0))
        .sum()
}
