//! Layers of Docker's images that the node serves: whoever dies, containers read on.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::sys::signal::Signal;
use nix::sys::statvfs::statvfs;
use serde_json::Value;

use lab::dockerd::Dockerd;
use lab::service::{Service, signal_to};
use lab::stopped::Stopped;
use lab::{Lab, ok, until};

const MD5: &str = "cat /usr/lib/part* /data/* | md5sum";

/// A Docker with an image of two layers that the node serves.
struct Room<'a> {
    lab: &'a Lab,
    docker: Dockerd,
    node: Service<'a>,
    sum: String,
}

impl<'a> Room<'a> {
    fn new(lab: &'a Lab, flags: &[&str]) -> Self {
        let docker = Dockerd::start(lab, flags);
        docker.import_base(lab);
        docker.build(lab, "app", "base");
        docker.record(lab, "app");
        let node = Service::start(lab);
        let sum = docker.run(&["run", "--rm", "--network=none", "app", "sh", "-c", MD5]);
        ok(&mut docker.yolofs(lab, &["attach", "--all"]));
        let room = Self {
            lab,
            docker,
            node,
            sum,
        };
        assert_eq!(room.status()["served_by"], "node");
        room.assert_served();
        room
    }

    fn status(&self) -> Value {
        self.docker.status(self.lab)
    }

    /// The processes of the Docker service: the worker and its guardian.
    fn service(&self) -> [u32; 2] {
        let worker = self.status()["pid"].as_u64().unwrap();
        let worker = u32::try_from(worker).unwrap();
        let stat = fs::read_to_string(format!("/proc/{worker}/stat")).unwrap();
        let (_, rest) = stat.rsplit_once(") ").unwrap();
        [worker, rest.split(' ').nth(1).unwrap().parse().unwrap()]
    }

    fn assert_served(&self) {
        assert_eq!(self.docker.served_layers(self.lab, "app"), 2);
        let run = ["run", "--rm", "--network=none", "app", "sh", "-c", MD5];
        assert_eq!(self.docker.run(&run), self.sum);
    }

    /// The mounts over layers, by place, and what tells each from those that come after it.
    fn mounts(&self) -> BTreeMap<PathBuf, u64> {
        let mounts = self.docker.mounts();
        let device = |place: String| {
            let device = fs::metadata(&place).unwrap().dev();
            (PathBuf::from(place), device)
        };
        mounts.into_iter().map(device).collect()
    }

    /// Kills the worker of the node that serves the layers, and waits for the next.
    fn kill_server(&self) {
        let place = self.mounts().into_keys().next().unwrap();
        self.node.kill_worker(&place, Signal::SIGKILL);
    }

    fn until_serving(&self) {
        until("the service to be there", || {
            self.status()["state"] == "serving"
                && self.docker.served_layers(self.lab, "app") == 2
                && self.status()["problems"] == serde_json::json!([])
        });
    }
}

/// A container that reads all of its image, again and again.
struct Reader<'a> {
    room: &'a Room<'a>,
    root: PathBuf,
}

impl<'a> Reader<'a> {
    fn start(room: &'a Room<'a>) -> Self {
        let script = format!("while :; do {MD5} || echo failed; sleep 0.02; done 2>&1");
        let run = ["run", "-d", "--name", "reader", "--network=none", "app"];
        room.docker
            .run(&[&run[..], &["sh", "-c", &script]].concat());
        let pid = ["inspect", "--format", "{{.State.Pid}}", "reader"];
        let root = format!("/proc/{}/root", room.docker.run(&pid));
        let reader = Self {
            room,
            root: root.into(),
        };
        reader.goes_on();
        reader
    }

    fn sums(&self) -> Vec<String> {
        let said = self.room.docker.run(&["logs", "reader"]);
        said.lines().map(str::to_owned).collect()
    }

    /// Takes the files out of the page cache, and waits until all were read again; each time.
    fn goes_on(&self) {
        let before = self.sums().len();
        evict(&self.root.join("usr/lib"));
        evict(&self.root.join("data"));
        // One may have been half done.
        until("the container to read on", || {
            self.sums().len() >= before + 2
        });
        let sums = self.sums();
        let failed = sums.iter().find(|sum| **sum != self.room.sum);
        assert_eq!(failed, None, "of {} reads", sums.len());
    }

    fn stop(self) {
        self.goes_on();
        self.room.docker.run(&["rm", "-f", "reader"]);
    }
}

/// The page cache must not answer for who serves.
fn evict(dir: &Path) {
    for entry in fs::read_dir(dir).unwrap() {
        let file = File::open(entry.unwrap().path()).unwrap();
        posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
    }
}

#[test]
fn privileged_docker_containers_read_on_whoever_dies() {
    let lab = Lab::new();
    let room = Room::new(&lab, &[]);
    until("the layers to be in the page cache", || {
        room.docker.is_warm(&lab)
    });
    let mounts = room.mounts();
    assert_eq!(mounts.len(), 2);
    // As long as these are open, no other mount gets their device numbers.
    let roots: Vec<_> = mounts
        .keys()
        .map(|place| File::open(place).unwrap())
        .collect();
    let reader = Reader::start(&room);
    // The worker of the service: the guardian starts another, which finds what is attached.
    let [worker, _] = room.service();
    signal_to(worker, Signal::SIGKILL);
    until("another worker", || {
        room.status()["state"] == "serving" && room.service()[0] != worker
    });
    room.until_serving();
    reader.goes_on();
    // Both: the layers stay attached, and are nobody's to clear.
    let [worker, guardian] = room.service();
    let stuck = Stopped::stop(guardian);
    signal_to(worker, Signal::SIGKILL);
    stuck.kill();
    until("the service to be gone", || {
        room.status()["state"] == "not running"
    });
    assert_eq!(room.status()["dead_mounts"], 0);
    ok(&mut room.docker.yolofs(&lab, &["clear"]));
    reader.goes_on();
    ok(&mut room.docker.yolofs(&lab, &["attach", "--all"]));
    room.until_serving();
    // The guardian alone: nobody has asked to detach anything.
    let [worker, guardian] = room.service();
    signal_to(guardian, Signal::SIGKILL);
    let process = PathBuf::from(format!("/proc/{worker}"));
    until("the worker to leave", || !process.exists());
    assert_eq!(room.mounts(), mounts);
    reader.goes_on();
    ok(&mut room.docker.yolofs(&lab, &["attach", "--all"]));
    room.until_serving();
    // Who serves, who owns, and both.
    room.kill_server();
    reader.goes_on();
    room.node.kill_node();
    reader.goes_on();
    let node = room.node.pid();
    signal_to(node, Signal::SIGKILL);
    room.kill_server();
    reader.goes_on();
    // Another program.
    let upgraded = lab.path("upgraded");
    fs::copy(env!("CARGO_BIN_EXE_yolofs"), &upgraded).unwrap();
    let node = room.node.pid();
    ok(lab.yolofs().args(["upgrade", "--program"]).arg(&upgraded));
    room.node.until_another(node);
    reader.goes_on();
    // All that time these were the same mounts.
    room.until_serving();
    assert_eq!(room.mounts(), mounts);
    drop(roots);
    room.assert_served();
    reader.stop();
    ok(&mut room.docker.yolofs(&lab, &["detach", "--all"]));
    assert_eq!(room.docker.mounts(), [""; 0]);
}

#[test]
fn privileged_docker_and_its_node_let_go_of_what_docker_takes_away() {
    let lab = Lab::new();
    let mut room = Room::new(&lab, &["--live-restore"]);
    {
        let reader = Reader::start(&room);
        reader.goes_on();
    }
    // Docker unmounts what lies below its directory when it ends: the container keeps it.
    room.docker.stop();
    room.docker.start_again();
    room.until_serving();
    room.assert_served();
    let exec = ["exec", "reader", "sh", "-c", MD5];
    assert_eq!(room.docker.run(&exec), room.sum);
    room.kill_server();
    assert_eq!(room.docker.run(&exec), room.sum);
    room.docker.run(&["rm", "-f", "reader"]);
    let dirs = room.docker.layers("app");
    room.docker.run(&["rmi", "app", "base"]);
    for (_, dir) in &dirs {
        assert!(!dir.exists(), "{} stays", dir.display());
    }
    until("the node to let go", || room.node.node()["mounts"] == 0);
    let desired = fs::read_dir(lab.path("state/mounts")).unwrap().count();
    assert_eq!(desired, 0, "layers are no desired mounts");
    ok(&mut room.docker.yolofs(&lab, &["detach", "--all"]));
}

#[test]
fn privileged_docker_without_its_service_is_detached_from_the_node() {
    let lab = Lab::new();
    let room = Room::new(&lab, &[]);
    let [worker, guardian] = room.service();
    signal_to(guardian, Signal::SIGKILL);
    let process = PathBuf::from(format!("/proc/{worker}"));
    until("the worker to leave", || !process.exists());
    assert_eq!(room.mounts().len(), 2);
    ok(&mut room.docker.yolofs(&lab, &["detach", "--all"]));
    assert_eq!(room.docker.mounts(), [""; 0]);
    assert_eq!(room.node.node()["mounts"], 0);
    // When everybody is killed at once, the mounts are dead, and are made again.
    let mut room = room;
    ok(&mut room.docker.yolofs(&lab, &["attach", "app"]));
    room.node.kill_all();
    let dead = room.docker.mounts().into_iter().next().unwrap();
    let answer = statvfs(&*dead).err();
    let no_answer = [Errno::ENOTCONN, Errno::ECONNABORTED].map(Some);
    assert!(no_answer.contains(&answer), "{answer:?}");
    room.node.start_again();
    room.until_serving();
    until("the layers to be in the page cache", || {
        room.docker.is_warm(&lab)
    });
    room.assert_served();
    ok(&mut room.docker.yolofs(&lab, &["detach", "--all"]));
}

#[test]
fn privileged_docker_layers_of_the_node_tell_of_changes_and_are_served_from_newer_recordings() {
    let lab = Lab::new();
    let room = Room::new(&lab, &[]);
    let cat = |file: &str| {
        let args = [
            "record",
            "docker://app",
            "--until",
            "exit",
            "--",
            "cat",
            file,
        ];
        let mut record = lab.bootimg();
        ok(record.env("DOCKER_HOST", room.docker.host()).args(args));
    };
    let data = room.docker.layers("app").pop().unwrap();
    let layer = || {
        let status = room.status();
        let layers = status["layers"].as_array().unwrap().clone();
        let mut layers = layers.into_iter();
        layers.find(|layer| layer["layer"] == data.0.as_str())
    };
    let content = || layer().unwrap()["boot"]["content"].clone();
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let options = |place: &String| {
        let mut lines = table.lines().map(|line| line.split(' '));
        let mut line = lines.find(|line| line.clone().nth(1) == Some(place));
        line.as_mut().and_then(|line| line.nth(3)).unwrap()
    };
    for place in room.docker.mounts() {
        // What an image's programs may do is for its containers to say.
        let options = options(&place);
        assert!(
            !options.contains("nosuid") && !options.contains("nodev"),
            "{options}"
        );
    }
    let (before, mounts) = (content(), room.mounts());
    let reader = Reader::start(&room);
    cat("/data/app2");
    until("the newer boot image to be served", || content() != before);
    assert_eq!(room.mounts(), mounts, "it was exchanged in place");
    reader.stop();
    // By hand, which nobody should.
    ok(&mut room.docker.yolofs(&lab, &["detach", "--all"]));
    fs::write(data.1.join("data/app2"), "changed\n").unwrap();
    fs::write(data.1.join("data/more"), "more\n").unwrap();
    ok(&mut room.docker.yolofs(&lab, &["attach", "app"]));
    let layer = layer().unwrap();
    assert_eq!(layer["boot"]["stale_files"], 1, "{layer}");
    assert_eq!(layer["names_added"], 1, "{layer}");
    assert!(
        layer["changed"].to_string().contains("data/app2"),
        "{layer}"
    );
    let run = ["run", "--rm", "--network=none", "app", "cat", "/data/app2"];
    assert_eq!(room.docker.run(&run), "changed");
    ok(&mut room.docker.yolofs(&lab, &["detach", "--all"]));
}
