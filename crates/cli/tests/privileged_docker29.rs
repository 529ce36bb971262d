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

/// A registry with an image, a containerd of today with the yolofs snapshotter, and a Docker 29 on that.
struct Host<'a> {
    lab: &'a Lab,
    // Ended first.
    docker: Docker29,
    node: Node<'a>,
    image: String,
    _registry: Registry,
}

impl<'a> Host<'a> {
    fn start(lab: &'a Lab) -> Self {
        let registry = Registry::start(Kind::Docker);
        let image = format!("{}/app:1", registry.host());
        let archive = archive(lab, 500_000);
        ok(Command::new("skopeo")
            .args(["copy", "--quiet", "--dest-tls-verify=false"])
            .arg(format!("docker-archive:{}", archive.display()))
            .arg(format!("docker://{image}")));
        // BuildKit reads attributes of what a step changed.
        let flags = ["--auto-record", "--until", "exit", "--all-xattrs"];
        let node = Node::start_today(lab, &flags);
        let docker = Docker29::start(lab, &node.containerd_socket(), "yolofs");
        Self {
            lab,
            docker,
            node,
            image,
            _registry: registry,
        }
    }

    fn pull(&self, flags: &[&str]) -> Command {
        let mut command = self.lab.yolofs();
        command.args(["pull", &self.image, "--namespace", "moby", "--json"]);
        command.arg("--address").arg(self.node.containerd_socket());
        command.args(flags);
        command
    }

    /// Returns how many layers `docker save` writes.
    fn saved_layers(&self) -> usize {
        let tar = self.lab.path("saved.tar");
        let save = ["save", "-o", tar.to_str().unwrap(), &self.image];
        self.docker.run(&save);
        let list = ok(Command::new("tar").arg("-tvf").arg(&tar));
        let blobs = list.lines().filter(|line| line.contains("blobs/sha256/"));
        let sizes = blobs.filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok());
        sizes.filter(|size| *size > 100_000).count()
    }

    fn run(&self, image: &str, script: &str) -> String {
        let run = ["run", "--rm", "--network=none", image, "/bin/sh", "-c"];
        self.docker.run(&[&run[..], &[script]].concat())
    }
}

#[test]
fn privileged_docker_29_saves_what_yolofs_pulled() {
    let lab = Lab::new();
    let host = Host::start(&lab);
    let why = fails(1, &mut host.pull(&["--blobs", "drop"]));
    assert!(why.contains("docker save"), "{why}");
    json(&mut host.pull(&[]));
    assert_eq!(host.saved_layers(), 2, "layers are missing");
    // Blobs that are not there come by another pull, though the layers are.
    let node = &host.node;
    let blobs = node.ctr(&["--namespace", "moby", "content", "ls"]);
    let large = blobs
        .lines()
        .filter(|line| line.contains("containerd.io/uncompressed"));
    let large: Vec<_> = large
        .map(|line| line.split_whitespace().next().unwrap())
        .collect();
    assert_eq!(large.len(), 2, "{blobs}");
    node.ctr(&["--namespace", "moby", "content", "rm", large[0]]);
    json(&mut host.pull(&[]));
    assert_eq!(host.saved_layers(), 2, "a layer is still missing");
}

#[test]
fn privileged_docker_29_builds_on_layers_that_the_snapshotter_serves() {
    let lab = Lab::new();
    let host = Host::start(&lab);
    let (docker, image) = (&host.docker, host.image.as_str());
    json(&mut host.pull(&[]));
    let read = "cat /srv/greeting /srv/noise | md5sum";
    let sum = host.run(image, read);
    until("the layers to be served", || host.node.served() == 2);
    assert_eq!(host.run(image, read), sum);
    let lines = format!("FROM {image}\nCOPY --link data /linked\nRUN {read} > /sum\n");
    docker.build_with(&lab, "built", &lines);
    let built = host.run("built", "cat /sum; ls /linked");
    assert!(
        built.starts_with(&sum) && built.contains("built0"),
        "{built}"
    );
    let run = ["run", "--name", "changed", "--network=none", image];
    let change = ["/bin/sh", "-c", "echo 1 > /srv/greeting"];
    docker.run(&[&run[..], &change].concat());
    assert_eq!(docker.run(&["diff", "changed"]), "C /srv\nC /srv/greeting");
    // Nothing is to be attached, and the program says so.
    for args in [&["attach", image][..], &["status"]] {
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
