//! Container images, recorded by name from wherever they are: what is kept, and what is left
//! behind when something goes wrong.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use lab::containerd::ContainerdRig;
use lab::dockerd::Dockerd;
use lab::stopped::Stopped;
use lab::{Lab, fails, json, noise, ok, output, until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// What the image `app` does unless told otherwise. It is ready in every way that there is.
const SERVE: &str = "cat /data/app0 > /dev/null; echo up > /tmp/up; echo ready to serve; \
                     exec httpd -f -p 18473 -h /data";
/// The blocks of a file of `/data`, and of one of `/usr/lib` in the base layer.
const DATA_BLOCKS: u64 = 5;
const LIB_BLOCKS: u64 = 8;

/// A Docker with the image `app`: busybox, a layer of data, and a health check that Docker itself
/// would run once an hour.
struct Room {
    docker: Dockerd,
    lab: Lab,
}

impl Room {
    fn new() -> Self {
        let lab = Lab::new();
        let docker = Dockerd::start(&lab, &[]);
        docker.import_base(&lab);
        let context = lab.make_dir("context");
        fs::create_dir(context.join("data")).unwrap();
        for index in 0..3 {
            let path = context.join(format!("data/app{index}"));
            fs::write(path, noise(100 + index, 20_000)).unwrap();
        }
        fs::write(
            context.join("Dockerfile"),
            format!(
                "FROM base\nCOPY data /data\nENV WHO=\"the image\"\nWORKDIR /data\nEXPOSE 18473\n\
                 HEALTHCHECK --interval=1h CMD cat /tmp/up\nCMD [\"sh\", \"-c\", \"{SERVE}\"]\n"
            ),
        )
        .unwrap();
        docker.build_in(&context, "app");
        Self { docker, lab }
    }

    /// Returns `bootimg record SOURCE ARGS`.
    fn record(&self, source: &str, args: &[&str]) -> Command {
        let mut command = self.lab.bootimg();
        command
            .env("DOCKER_HOST", self.docker.host())
            .args(["record", source])
            .args(["--scratch", self.lab.make_dir("scratch").to_str().unwrap()])
            .args(args);
        command
    }

    /// Records, and returns what it prints.
    fn recorded(&self, source: &str, args: &[&str]) -> Value {
        json(&mut self.record(source, &[&["--json"], args].concat()))
    }

    /// Starts a recording that goes on until it is stopped, and waits until its container runs.
    fn endless(&self) -> (Child, String) {
        self.endless_over(2)
    }

    /// Does so, and expects so many mounts: a recorder over each layer, and what is served below.
    fn endless_over(&self, mounts: usize) -> (Child, String) {
        let wait = "while [ ! -e /tmp/go ]; do sleep 0.05; done; echo gone";
        let mut command = self.record("app", &["--until", "line:gone", "--", "sh", "-c", wait]);
        let child = command.stderr(Stdio::null()).stdout(Stdio::null()).spawn();
        let mut id = String::new();
        until("the recorded container to run", || {
            id = self.docker.run(&["ps", "-q", "--no-trunc"]);
            !id.is_empty()
        });
        assert_eq!(self.docker.mounts().len(), mounts);
        (child.unwrap(), id)
    }

    fn is_clean(&self) -> bool {
        self.docker.mounts().is_empty()
            && self.docker.run(&["ps", "-aq"]).is_empty()
            && fs::read_dir(self.lab.make_dir("scratch")).unwrap().count() == 0
    }

    fn assert_clean(&self) {
        assert!(self.is_clean(), "{:?}", self.docker.mounts());
    }

    /// Saves the image `app` as an archive.
    fn archive(&self) -> PathBuf {
        let path = self.lab.path("app.tar");
        if !path.exists() {
            self.docker
                .run(&["save", "-o", path.to_str().unwrap(), "app"]);
        }
        path
    }
}

/// Returns a number of the report of a layer, counted from the bottom; 0 if nothing was kept.
fn kept(report: &Value, layer: usize, what: &str) -> u64 {
    report["layers"][layer]["kept"][what].as_u64().unwrap_or(0)
}

fn wait(child: &mut Child) -> Option<i32> {
    let mut code = None;
    until("the recorder to end", || {
        code = child.try_wait().unwrap().map(|status| status.code());
        code.is_some()
    });
    code.unwrap()
}

fn signal(child: &Child, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), signal).unwrap();
}

/// Returns the children of a process that are bootimg as well.
fn children(pid: u32) -> Vec<Pid> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let children = fs::read_to_string(path).unwrap();
    let ours = children.split_whitespace().filter(|pid| {
        let args = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&args).contains("__guard")
    });
    let ours: Vec<_> = ours
        .map(|pid| Pid::from_raw(pid.parse().unwrap()))
        .collect();
    assert_eq!(ours.len(), 1, "a recorder has a guard");
    ours
}

#[test]
fn privileged_docker_images_are_recorded_until_they_are_ready() {
    let room = Room::new();
    let report = room.recorded("app", &[]); // a bare name
    assert_eq!(report["reference"], "docker.io/library/app:latest");
    assert_eq!(report["until"], "a health check that succeeds");
    let id = room
        .docker
        .run(&["image", "inspect", "--format", "{{.Id}}", "app"]);
    assert_eq!(report["image"], id.as_str());
    assert!(kept(&report, 0, "blocks") > 0, "{report}");
    assert_eq!(kept(&report, 1, "blocks"), DATA_BLOCKS, "{report}");
    room.assert_clean();
    for when in [
        "line:ready to",
        "tcp:18473",
        "http://127.0.0.1:18473/app0",
        "healthy",
    ] {
        let report = room.recorded("docker://app", &["--fresh", "--until", when]);
        let read = kept(&report, 1, "recorded_blocks");
        assert!(read >= DATA_BLOCKS, "{when}: {report}");
    }
    // Docker's own checks, as often as the user says.
    let theirs = ["--until", "docker:healthy", "--run-args"];
    let often = ["--health-interval 200ms"];
    let report = room.recorded("app", &[&theirs[..], &often].concat());
    assert_eq!(report["until"], "a health check that succeeds");
    assert!(
        kept(&report, 1, "recorded_blocks") >= DATA_BLOCKS,
        "{report}"
    );
    let flags = [
        "--runs",
        "2",
        "--until",
        "exit",
        "--run-args",
        "--network none -e 'WHO=a b'",
    ];
    let who = r#"[ "$WHO" = "a b" ] && cat app1 > /dev/null"#;
    let report = room.recorded(
        "docker://app",
        &[&flags, &["--", "sh", "-c", who][..]].concat(),
    );
    assert_eq!(report["runs"].as_array().unwrap().len(), 2);
    assert_eq!(kept(&report, 1, "recorded_blocks"), DATA_BLOCKS, "{report}");
    room.assert_clean();
}

#[test]
fn privileged_docker_layers_unite_what_their_images_need() {
    let room = Room::new();
    let cat = |file: &str, more: &[&str]| {
        let args = [more, &["--until", "exit", "--", "cat", file]].concat();
        room.recorded("app", &args)
    };
    let one = cat("/usr/lib/part00", &[]);
    assert_eq!(kept(&one, 0, "blocks"), kept(&one, 0, "recorded_blocks"));
    room.docker.build(&room.lab, "other", "base");
    let other = ["--until", "exit", "--", "cat", "/usr/lib/part01"];
    let both = room.recorded("docker://other", &other);
    assert_eq!(both["layers"][0]["layer"], one["layers"][0]["layer"]);
    let more = kept(&both, 0, "blocks") - kept(&both, 0, "recorded_blocks");
    assert_eq!(more, LIB_BLOCKS, "{both}");
    let fresh = cat("/usr/lib/part02", &["--fresh"]);
    assert_eq!(
        kept(&fresh, 0, "blocks"),
        kept(&fresh, 0, "recorded_blocks")
    );
}

#[test]
fn privileged_docker_failures_are_explained_and_leave_nothing() {
    let room = Room::new();
    let early = [
        "--until",
        "tcp:1",
        "--",
        "sh",
        "-c",
        "echo broken config; exit 7",
    ];
    let why = fails(3, &mut room.record("app", &early));
    assert!(why.contains("ended with code 7"), "{why}");
    assert!(
        why.rsplit("bootimg:")
            .next()
            .unwrap()
            .contains("broken config"),
        "{why}"
    );
    let late = [
        "--timeout",
        "1",
        "--until",
        "line:never",
        "--",
        "sleep",
        "1000",
    ];
    let why = fails(3, &mut room.record("app", &late));
    assert!(why.contains("not ready within 1 s"), "{why}");
    let why = fails(1, &mut room.record("docker://nobody/has:this", &[]));
    assert!(why.contains("docker pull nobody/has:this"), "{why}");
    let why = fails(
        1,
        &mut room.record("app", &["--run-args", "--no-such-option"]),
    );
    assert!(why.contains("no-such-option"), "{why}");
    let why = fails(1, &mut room.record("base", &["--until", "healthy"]));
    assert!(why.contains("no HEALTHCHECK"), "{why}");
    let why = fails(1, &mut room.record("app", &["--name", "x"]));
    assert!(why.contains("--name"), "{why}");
    room.assert_clean();

    // A Docker that hangs is not waited for.
    let pid = fs::read_to_string(room.lab.path("docker/pid")).unwrap();
    let stopped = Stopped::stop(pid.trim().parse().unwrap());
    let told = output(&mut room.record("app", &[]));
    drop(stopped);
    let why = String::from_utf8_lossy(&told.stderr);
    assert_eq!(told.status.code(), Some(1), "{why}");
    assert!(why.contains("does the engine hang?"), "{why}");

    let (_, dir) = room.docker.layers("app").remove(1);
    ok(Command::new("mount")
        .args(["-t", "tmpfs", "other"])
        .arg(&dir));
    let why = fails(1, &mut room.record("app", &[]));
    ok(Command::new("umount").arg(&dir));
    assert!(why.contains("a tmpfs is mounted over"), "{why}");
    room.assert_clean();
}

#[test]
fn privileged_docker_recorder_that_is_stopped_or_killed_leaves_nothing() {
    let room = Room::new();
    let (mut child, _) = room.endless();
    let why = fails(1, &mut room.record("app", &[]));
    assert!(why.contains("is being recorded already"), "{why}");
    signal(&child, Signal::SIGINT);
    assert_eq!(wait(&mut child), Some(130));
    room.assert_clean();

    let (mut child, _) = room.endless();
    signal(&child, Signal::SIGKILL);
    assert_eq!(wait(&mut child), None);
    until("the guard to clean up", || room.is_clean());
    room.docker.run(&["run", "--rm", "app", "cat", "app0"]);

    // Both are killed: what they leave is cleared by the next.
    let (mut child, id) = room.endless();
    for guard in children(child.id()) {
        kill(guard, Signal::SIGKILL).unwrap();
    }
    signal(&child, Signal::SIGKILL);
    assert_eq!(wait(&mut child), None);
    room.docker.run(&["rm", "-f", &id]);
    assert_eq!(room.docker.mounts().len(), 2);
    room.recorded("app", &["--until", "exit", "--", "true"]);
    room.assert_clean();

    // The name goes while the container runs; its layers stay until they are kept.
    let (mut child, id) = room.endless();
    room.docker.build(&room.lab, "onapp", "app");
    room.docker.run(&["rmi", "-f", "app"]);
    room.docker
        .run(&["exec", &id, "sh", "-c", "echo > /tmp/go"]);
    assert_eq!(wait(&mut child), Some(0));
    room.assert_clean();
}

#[test]
fn privileged_containerd_images_are_recorded() {
    let room = Room::new();
    let containerd = ContainerdRig::start(&room.lab);
    let socket = containerd.socket();
    containerd.import(&room.archive());
    let name = "containerd://tests/docker.io/library/app:latest";
    let place = ["--containerd", socket.to_str().unwrap()];
    let record = |args: &[&str]| room.recorded(name, &[&place, args].concat());
    let report = record(&[]);
    assert_eq!(report["until"], "a health check that succeeds");
    assert_eq!(kept(&report, 1, "blocks"), DATA_BLOCKS, "{report}");
    for when in ["tcp:18473", "line:ready to", "http://127.0.0.1:18473/app0"] {
        let report = record(&["--fresh", "--until", when]);
        let read = kept(&report, 1, "recorded_blocks");
        assert!(read >= DATA_BLOCKS, "{when}: {report}");
    }
    let who = r#"[ "$WHO" = "a b" ] && cat app1 > /dev/null"#;
    let flags = [
        "--until",
        "exit",
        "--run-args",
        "--env 'WHO=a b'",
        "--",
        "sh",
        "-c",
        who,
    ];
    assert_eq!(kept(&record(&flags), 1, "recorded_blocks"), DATA_BLOCKS);
    let early = [
        "--until",
        "tcp:1",
        "--",
        "sh",
        "-c",
        "echo broken config; exit 7",
    ];
    let why = fails(3, &mut room.record(name, &[&place, &early[..]].concat()));
    assert!(why.contains("ended with code 7"), "{why}");
    let theirs = ["--until", "docker:healthy"];
    let why = fails(1, &mut room.record(name, &[&place, &theirs[..]].concat()));
    assert!(why.contains("use --until healthy"), "{why}");
    let missing = "containerd://tests/docker.io/library/none:1";
    let why = fails(1, &mut room.record(missing, &place));
    assert!(why.contains("full names"), "{why}");
    assert_eq!(containerd.ctr(&["containers", "ls", "-q"]), "");
    let left = containerd.ctr(&["snapshots", "ls"]);
    assert_eq!(left.matches("Committed").count(), 2, "{left}");
    assert!(!left.contains("Active") && !left.contains("View"), "{left}");
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let root = containerd.root();
    assert!(!mounts.contains(root.to_str().unwrap()), "{mounts}");
}

#[test]
fn privileged_layouts_and_archives_are_recorded_without_an_engine() {
    let room = Room::new();
    let tar = room.archive();
    let layout = room.lab.path("layout");
    let (from, to) = (tar.display(), layout.display());
    ok(Command::new("skopeo").args([
        "copy",
        "--quiet",
        &format!("docker-archive:{from}"),
        &format!("oci:{to}:app"),
    ]));
    let names = [
        format!("docker-archive:{from}"),
        format!("docker-archive:{from}:docker.io/library/app:latest"),
        format!("oci:{to}"),
        format!("oci:{to}:app"),
    ];
    for name in &names {
        let report = room.recorded(name, &["--fresh"]);
        // OCI's own configuration has no health checks: skopeo leaves it out of the layout.
        let until = match name.split(':').next() {
            Some("oci") => "a connection to port 18473",
            _ => "a health check that succeeds",
        };
        assert_eq!(report["until"], until, "{name}");
        assert_eq!(kept(&report, 1, "blocks"), DATA_BLOCKS, "{name}: {report}");
        room.assert_clean();
    }
    let as_user = "FROM app\nUSER 1000:1001\nENV A=b\n";
    fs::write(room.lab.path("context/Dockerfile"), as_user).unwrap();
    room.docker.build_in(&room.lab.path("context"), "user");
    let tar = room.lab.path("user.tar");
    room.docker
        .run(&["save", "-o", tar.to_str().unwrap(), "user"]);
    let name = format!("docker-archive:{}", tar.display());
    let who = r#"echo "$(busybox id -u):$(busybox id -g) $A $WHO $PWD""#;
    let told = output(&mut room.record(&name, &["--until", "exit", "--", "sh", "-c", who]));
    let told = String::from_utf8_lossy(&told.stderr).into_owned();
    assert!(told.contains("1000:1001 b the image /data"), "{told}");
    room.assert_clean();

    // Layer by layer it is the same content: a damaged archive is noticed before anything runs.
    let mut bytes = fs::read(&tar).unwrap();
    let data = noise(100, 20_000);
    let at = bytes
        .windows(64)
        .position(|some| some == &data[..64])
        .unwrap();
    bytes[at] ^= 1;
    fs::write(&tar, bytes).unwrap();
    let why = fails(1, &mut room.record(&name, &[]));
    assert!(why.contains("damaged"), "{why}");
    room.assert_clean();
}

#[test]
fn privileged_what_an_archive_told_serves_docker() {
    let room = Room::new();
    let archive = format!("docker-archive:{}", room.archive().display());
    let told = room.recorded(&archive, &["--until", "exit", "--", "cat", "/data/app1"]);
    assert_eq!(kept(&told, 1, "blocks"), DATA_BLOCKS, "{told}");
    ok(&mut room.docker.yolofs(&room.lab, &["attach", "app"]));
    assert_eq!(room.docker.served_layers(&room.lab, "app"), 2);
    // Bound to Docker's directories: the blocks come from there.
    let dir = room.docker.layers("app")[1].1.display().to_string();
    let images = json(room.lab.bootimg().args(["ls", "--json"]));
    let bound = images.as_array().unwrap().iter();
    let bound = bound.filter(|image| image["source"].as_str().unwrap().ends_with(&dir));
    let blocks: Vec<_> = bound.map(|image| image["blocks"].as_u64()).collect();
    assert_eq!(blocks, [Some(DATA_BLOCKS)], "{images}");
    let mut run = room.docker.docker();
    let run = output(run.args(["run", "--rm", "app", "cat", "/data/app1"]));
    assert!(run.stdout == noise(101, 20_000), "the file is another one");

    ok(&mut room.docker.yolofs(&room.lab, &["detach", "app"]));
    room.assert_clean();
}

#[test]
fn privileged_what_is_served_is_recorded_and_then_served_from_that() {
    let room = Room::new();
    let (docker, lab) = (&room.docker, &room.lab);
    let cat = |file: &str| room.recorded("app", &["--until", "exit", "--", "cat", file]);
    cat("/data/app1");
    ok(&mut docker.yolofs(lab, &["attach", "--all"]));
    // Of the layer with the data: its state, and the blocks of its boot image.
    let data = docker.layers("app")[1].0.clone();
    let layers = || {
        let status = docker.status(lab);
        let layers = status["layers"].as_array().unwrap().iter();
        let mut layers: Vec<_> = layers
            .filter(|layer| layer["layer"] == data.as_str())
            .map(|layer| {
                let state = layer["state"].as_str().unwrap().to_owned();
                (state, layer["boot"]["blocks"].as_u64().unwrap())
            })
            .collect();
        layers.sort();
        layers
    };
    let (serving, leaving) = ("serving".to_owned(), "leaving".to_owned());
    assert_eq!(layers(), [(serving.clone(), DATA_BLOCKS)]);
    let on = ["run", "-d", "--name", "on", "app", "sleep", "1000"];
    docker.run(&on);
    let both = cat("/data/app2");
    // Through the page cache of what is served, nothing would have been read.
    assert_eq!(kept(&both, 1, "recorded_blocks"), DATA_BLOCKS, "{both}");
    assert_eq!(kept(&both, 1, "blocks"), 2 * DATA_BLOCKS, "{both}");
    until(
        "the new boot image to be served, and the old to one container",
        || {
            layers()
                == [
                    (leaving.clone(), DATA_BLOCKS),
                    (serving.clone(), 2 * DATA_BLOCKS),
                ]
        },
    );
    assert_eq!(docker.mounts().len(), 2);
    for how in [&["exec", "on"][..], &["run", "--rm", "app"]] {
        for (file, seed) in [("app1", 101), ("app2", 102)] {
            let mut command = docker.docker();
            let read = output(command.args(how).args(["cat", file]));
            assert!(read.stdout == noise(seed, 20_000), "{how:?} {file}");
        }
    }
    docker.run(&["rm", "-f", "on"]);
    until("the old mount to go", || {
        layers() == [(serving.clone(), 2 * DATA_BLOCKS)]
    });

    // Detached while it is recorded: what lies below the recorder goes when the recorder has.
    let (mut child, id) = room.endless_over(4);
    ok(&mut docker.yolofs(lab, &["detach", "--all"]));
    docker.run(&["exec", &id, "sh", "-c", "echo > /tmp/go"]);
    assert_eq!(wait(&mut child), Some(0));
    until("everything to go", || room.is_clean());
}

#[test]
fn privileged_a_daemon_killed_below_a_recorder_leaves_no_dead_mount() {
    let room = Room::new();
    let (docker, lab) = (&room.docker, &room.lab);
    room.recorded("app", &["--until", "exit", "--", "cat", "/data/app1"]);
    ok(&mut docker.yolofs(lab, &["attach", "app"]));
    until("the layers to be in the page cache", || docker.is_warm(lab));
    let (mut child, id) = room.endless_over(4);
    let pid = docker.status(lab)["pid"].as_i64().unwrap();
    kill(Pid::from_raw(i32::try_from(pid).unwrap()), Signal::SIGKILL).unwrap();
    docker.run(&[
        "exec",
        &id,
        "sh",
        "-c",
        "cat app2 >/dev/null; echo > /tmp/go",
    ]);
    assert_eq!(wait(&mut child), Some(0));
    until("the layers to be served again", || {
        docker.served_layers(lab, "app") == 2 && docker.mounts().len() == 2
    });
    docker.run(&["run", "--rm", "app", "cat", "app1"]);
    ok(&mut docker.yolofs(lab, &["detach", "app"]));
    until("everything to go", || room.is_clean());
}
