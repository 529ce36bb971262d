//! Docker 29 with its images in containerd, and yolofs as the snapshotter.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod node;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use lab::docker29::Docker29;
use lab::service::Service;
use lab::{Lab, fails, json, ok, until};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::sys::signal::Signal;
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
        || node.reads(),
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

impl Host<'_> {
    /// Reads in a container that runs, past the page cache.
    #[track_caller]
    fn reads_on(&self, container: &str, sum: &str) {
        let pid = ["inspect", "--format", "{{.State.Pid}}", container];
        let root = PathBuf::from(format!("/proc/{}/root", self.docker.run(&pid)));
        let noise = File::open(root.join("srv/noise")).unwrap();
        posix_fadvise(&noise, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
        assert_eq!(
            self.docker.run(&["exec", container, "/bin/sh", "-c", SUM]),
            sum
        );
    }

    /// Waits for a containerd, or a dockerd, that has just started.
    fn until_usable(&self) {
        until("Docker to find containerd again", || {
            let run = ["run", "--rm", "--network=none", &self.image, "/bin/true"];
            self.docker.try_run(&run).status.success()
        });
    }
}

/// What reads the image of a [`Host`].
const SUM: &str = "cat /srv/greeting /srv/noise | md5sum";

#[test]
fn privileged_docker_29_reads_on_whoever_dies() {
    let lab = Lab::new();
    let service = Service::start(&lab);
    let mut host = Host::start(&lab);
    let image = host.image.clone();
    json(&mut host.pull(&[]));
    let saved = host.docker.saved(&lab, &image);
    let sum = host.run(&image, SUM);
    until("the layers to be served", || host.node.served() == 2);
    assert_eq!(host.node.status()["served_by"], "node");
    assert!(
        host.docker.saved(&lab, &image) == saved,
        "docker save differs of served layers"
    );
    host.docker.stop();
    host.docker.set_flags(&["--live-restore"]);
    host.docker.start_again();
    let run = ["run", "-d", "--name", "reader", "--network=none", &image];
    host.docker
        .run(&[&run[..], &["/bin/sleep", "1000000"]].concat());
    host.reads_on("reader", &sum);
    host.docker.stop();
    host.docker.start_again();
    host.reads_on("reader", &sum);
    host.docker.kill();
    host.docker.start_again();
    host.reads_on("reader", &sum);
    // The snapshotter is killed while a container starts, twice.
    for name in ["torn-1", "torn-2"] {
        let before = host.node.directories();
        let run = ["run", "-d", "--name", name, "--network=none", &image];
        let mut starting = host
            .docker
            .spawn(&[&run[..], &["/bin/sleep", "1000000"]].concat());
        until("a snapshot to be made", || {
            host.node.directories() > before || starting.try_wait().unwrap().is_some()
        });
        host.node.kill_snapshotter();
        host.node.start_snapshotter();
        until("the start to end", || {
            starting.try_wait().unwrap().is_some()
        });
        host.reads_on("reader", &sum);
        // One that did not get as far is not there.
        let _gone = host.docker.try_run(&["rm", "-f", name]);
    }
    host.node.kill_containerd();
    host.node.start_containerd();
    host.until_usable();
    host.reads_on("reader", &sum);
    let mut mounts = host.node.mounts().into_iter();
    let served = mounts.find(|mount| mount.contains("/served/")).unwrap();
    service.kill_worker(Path::new(&served), Signal::SIGKILL);
    host.reads_on("reader", &sum);
    service.kill_node();
    host.reads_on("reader", &sum);
    assert_eq!(host.run(&image, SUM), sum);
    // What is removed is gone.
    host.docker.run(&["rm", "-f", "reader"]);
    host.docker.run(&["rmi", &image]);
    host.docker.run(&["system", "prune", "-af"]);
    // Docker itself leaves the leases of containers whose making was torn.
    let ctr = |args: &[&str]| host.node.ctr(&[&["--namespace", "moby"], args].concat());
    let leases = ctr(&["leases", "ls", "-q"]);
    let torn = leases.split_whitespace().collect::<Vec<_>>();
    assert!(torn.len() <= 2, "{torn:?}");
    for lease in torn {
        ctr(&["leases", "rm", "--sync", lease]);
    }
    until("all snapshots to go", || {
        // containerd collects when it sees fit.
        let lease = ctr(&["leases", "create"]);
        ctr(&["leases", "rm", "--sync", &lease]);
        host.node.directories() == 0
    });
    assert_eq!(host.node.served(), 0);
}
