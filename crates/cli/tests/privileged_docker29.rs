//! Docker 29 with its images in containerd, and yolofs as the snapshotter.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod lab;
mod node;

use std::process::Command;

use lab::docker29::Docker29;
use lab::{Lab, fails, json, ok, until};
use node::{Node, archive};
use testkit::registries::{Kind, Registry};

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
    lab::until_boot_reads_nothing(
        &lab,
        || requests(&node, "read"),
        |number| {
            let (id, again) = boot(&format!("second-{number}"), "app");
            assert_eq!(again, sum);
            assert_eq!(node.first_boot(&id).0, "", "it was recorded again");
            docker.run(&["rm", &id]);
        },
    );
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
    docker.run(&["rm", "first", "changed", "of-kept"]);
    docker.run(&["rmi", "kept", "app", "base"]);
}

#[test]
fn privileged_docker_29_saves_and_builds_what_yolofs_pulled() {
    let lab = Lab::new();
    let registry = Registry::start(Kind::Docker);
    let image = format!("{}/app:1", registry.host());
    let archive = archive(&lab, 500_000);
    ok(Command::new("skopeo")
        .args(["copy", "--quiet", "--dest-tls-verify=false"])
        .arg(format!("docker-archive:{}", archive.display()))
        .arg(format!("docker://{image}")));
    // BuildKit reads attributes of what a step changed.
    let node = Node::start_today(&lab, &["--auto-record", "--until", "exit", "--all-xattrs"]);
    let docker = Docker29::start(&lab, &node.containerd_socket(), "yolofs");
    let pull = |flags: &[&str]| {
        let mut command = lab.yolofs();
        command.args(["pull", &image, "--namespace", "moby", "--json"]);
        command.arg("--address").arg(node.containerd_socket());
        command.args(flags);
        command
    };
    let why = fails(1, &mut pull(&["--blobs", "drop"]));
    assert!(why.contains("docker save"), "{why}");
    json(&mut pull(&[]));
    let saved = || {
        let tar = lab.path("saved.tar");
        docker.run(&["save", "-o", tar.to_str().unwrap(), &image]);
        let list = ok(Command::new("tar").arg("-tvf").arg(&tar));
        let sizes = list.lines().filter(|line| line.contains("blobs/sha256/"));
        let sizes = sizes.filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok());
        sizes.filter(|size| *size > 100_000).count()
    };
    assert_eq!(saved(), 2, "layers are missing");
    let read = "cat /srv/greeting /srv/noise | md5sum";
    let run = [
        "run",
        "--rm",
        "--network=none",
        &image,
        "/bin/sh",
        "-c",
        read,
    ];
    let sum = docker.run(&run);
    until("the layers to be served", || node.served() == 2);
    assert_eq!(docker.run(&run), sum);
    // Blobs that are not there come by another pull, though the layers are.
    let blobs = node.ctr(&["--namespace", "moby", "content", "ls"]);
    let large = blobs
        .lines()
        .filter(|line| line.contains("containerd.io/uncompressed"));
    let large: Vec<_> = large
        .map(|line| line.split_whitespace().next().unwrap())
        .collect();
    assert_eq!(large.len(), 2, "{blobs}");
    node.ctr(&["--namespace", "moby", "content", "rm", large[0]]);
    json(&mut pull(&[]));
    assert_eq!(saved(), 2, "a layer is still missing");
    // Built on layers that are served, with one that is merged.
    let lines = format!("FROM {image}\nCOPY --link data /linked\nRUN {read} > /sum\n");
    docker.build_with(&lab, "built", &lines);
    let built = [
        "run",
        "--rm",
        "--network=none",
        "built",
        "/bin/sh",
        "-c",
        "cat /sum; ls /linked",
    ];
    let built = docker.run(&built);
    assert!(
        built.starts_with(&sum) && built.contains("built0"),
        "{built}"
    );
    let changed = [
        "run",
        "--name",
        "changed",
        "--network=none",
        &image,
        "/bin/sh",
        "-c",
        "echo 1 > /srv/greeting",
    ];
    docker.run(&changed);
    assert_eq!(docker.run(&["diff", "changed"]), "C /srv\nC /srv/greeting");
    // Nothing is to be attached, and the program says so.
    for args in [&["attach", &image][..], &["status"]] {
        let said = ok(&mut docker.yolofs(&lab, args));
        assert!(said.contains("served by the snapshotter"), "{said}");
    }
    // The service ends at once, and its unit is content.
    ok(&mut docker.yolofs(&lab, &["serve"]));
    docker.run(&["rm", "changed"]);
}

/// Returns how many requests of a kind all served layers have seen.
fn requests(node: &Node<'_>, kind: &str) -> u64 {
    let status = node.status();
    let layers = status["layers"].as_array().unwrap().iter();
    layers
        .map(|layer| layer["served"]["requests"][kind].as_u64().unwrap_or(0))
        .sum()
}
