//! Images come and go, Docker starts and ends: what is attached follows.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::Path;
use std::process::Stdio;

use lab::dockerd::Dockerd;
use lab::service::{Service, signal_to};
use lab::{Lab, assert_confined_to, json, ok, output, until, until_boot_reads_nothing};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::sys::signal::Signal;

const MD5: &str = "cat /usr/lib/part* /data/* | md5sum";

fn md5(docker: &Dockerd, image: &str) -> String {
    docker.run(&["run", "--rm", "--network=none", image, "sh", "-c", MD5])
}

#[test]
fn privileged_docker_images_come_and_go() {
    let lab = Lab::new();
    let docker = Dockerd::start(&lab, &[]);
    docker.import_base(&lab);
    docker.build(&lab, "one", "base");
    docker.build(&lab, "two", "base");
    docker.record(&lab, "one");
    docker.record(&lab, "two");
    let sum = md5(&docker, "one");
    ok(&mut docker.yolofs(&lab, &["attach", "--all"]));
    // The layer they share is served once.
    assert_eq!(docker.mounts().len(), 3);
    // The capabilities of docs/security.md, which the guardian passes on.
    assert_confined_to(&docker.status(&lab)["pid"], 0x20_400e);
    assert_eq!(docker.served_layers(&lab, "one"), 2);
    assert_eq!(docker.served_layers(&lab, "two"), 2);
    assert_eq!(md5(&docker, "one"), sum);
    // An image is removed: its own layer goes, and nothing of it stays behind.
    let saved = lab.path("one.tar");
    docker.run(&["save", "-o", saved.to_str().unwrap(), "one"]);
    let top = docker.layers("one").pop().unwrap().1;
    docker.run(&["rmi", "one"]);
    assert!(
        !top.parent().unwrap().exists(),
        "the layer's directory stays"
    );
    assert_eq!(docker.mounts().len(), 2);
    until("the removed layer to be let go", || {
        docker.status(&lab)["layers"].as_array().unwrap().len() == 2
    });
    // It comes back, as from a registry, to another directory: attached with no one asking.
    docker.run(&["load", "-i", saved.to_str().unwrap()]);
    until("the new image to be attached", || {
        docker.served_layers(&lab, "one") == 2
    });
    assert_eq!(md5(&docker, "one"), sum);
    // Detached although all are attached, and attached again.
    ok(&mut docker.yolofs(&lab, &["detach", "one"]));
    assert_eq!(docker.mounts().len(), 2);
    // Everything at once, from everywhere.
    let mut commands: Vec<_> = (0..20)
        .map(|index| {
            let what = if index % 2 == 0 { "attach" } else { "detach" };
            let image = ["one", "two", "--all"][index % 3];
            let mut command = docker.yolofs(&lab, &[what, image]);
            command.stdout(Stdio::null()).spawn().unwrap()
        })
        .collect();
    for command in &mut commands {
        until("a command to end", || command.try_wait().unwrap().is_some());
        assert!(command.wait().unwrap().success());
    }
    ok(&mut docker.yolofs(&lab, &["attach", "--all"]));
    assert_eq!(docker.mounts().len(), 3);
    assert_eq!(md5(&docker, "one"), sum);
    docker.run(&["system", "prune", "-af"]);
    assert_eq!(docker.mounts(), [""; 0]);
    let left = fs::read_dir(docker.data_root().join("overlay2"))
        .unwrap()
        .count();
    assert_eq!(left, 1, "only the directory of short names is left");
    ok(&mut docker.yolofs(&lab, &["detach", "--all"]));
}

#[test]
fn privileged_docker_may_restart() {
    let lab = Lab::new();
    let mut docker = Dockerd::start(&lab, &["--live-restore"]);
    docker.import_base(&lab);
    docker.build(&lab, "app", "base");
    docker.record(&lab, "app");
    ok(&mut docker.yolofs(&lab, &["attach", "app"]));
    let sum = md5(&docker, "app");
    let on = [
        "run",
        "-d",
        "--name",
        "on",
        "--network=none",
        "app",
        "sleep",
        "1000",
    ];
    docker.run(&on);
    // Docker unmounts what lies below its directory when it ends; it is mounted again.
    docker.stop();
    docker.start_again();
    until("the layers to be served again", || {
        docker.served_layers(&lab, "app") == 2
    });
    assert_eq!(docker.mounts().len(), 2);
    assert_eq!(md5(&docker, "app"), sum);
    // A container that went on has the old mounts below it.
    let exec = ["exec", "on", "sh", "-c", MD5];
    assert_eq!(docker.run(&exec), sum);
    docker.run(&["restart", "-t", "0", "on"]);
    assert_eq!(docker.run(&exec), sum);
    docker.run(&["rm", "-f", "on"]);
    // Without Docker there are still status and detach.
    docker.stop();
    let root = docker.data_root();
    let root = root.to_str().unwrap();
    let mut status = docker.yolofs(&lab, &["status", "--json", "--data-root", root]);
    assert!(output(&mut status).status.success());
    ok(&mut docker.yolofs(&lab, &["detach", "--all", "--data-root", root]));
    assert_eq!(docker.mounts(), [""; 0]);
}

#[test]
fn privileged_docker_removes_images_after_a_restart() {
    let lab = Lab::new();
    let mut docker = Dockerd::start(&lab, &[]);
    docker.import_base(&lab);
    docker.build(&lab, "app", "base");
    docker.record(&lab, "app");
    ok(&mut docker.yolofs(&lab, &["attach", "app"]));
    // Here Docker mounts its directory over itself. What was mounted below before that would be
    // hidden, and keep the layer's directory from being removed.
    docker.stop();
    docker.start_again();
    until("the layers to be served again", || {
        docker.served_layers(&lab, "app") == 2
    });
    assert_eq!(docker.mounts().len(), 2);
    let dirs = docker.layers("app");
    docker.run(&["rmi", "app", "base"]);
    for (_, dir) in dirs {
        assert!(!dir.exists(), "{} stays", dir.display());
    }
    until("the layers to be let go", || docker.mounts().is_empty());
    ok(&mut docker.yolofs(&lab, &["detach", "--all"]));
}

#[test]
fn privileged_docker_layers_changed_by_hand_are_read_as_they_are() {
    let lab = Lab::new();
    let docker = Dockerd::start(&lab, &[]);
    docker.import_base(&lab);
    docker.record(&lab, "base");
    let (_, dir) = docker.layers("base").pop().unwrap();
    ok(&mut docker.yolofs(&lab, &["attach", "base"]));
    ok(&mut docker.yolofs(&lab, &["detach", "base"]));
    fs::write(dir.join("etc/config"), "answer = 43\n").unwrap();
    fs::write(dir.join("etc/more"), "more\n").unwrap();
    ok(&mut docker.yolofs(&lab, &["attach", "base"]));
    let cat = [
        "run",
        "--rm",
        "--network=none",
        "base",
        "cat",
        "/etc/config",
        "/etc/more",
    ];
    assert_eq!(docker.run(&cat), "answer = 43\nmore");
    let layer = &docker.status(&lab)["layers"][0];
    assert_eq!(layer["boot"]["stale_files"], 1, "{layer}");
    assert_eq!(layer["names_added"], 1, "{layer}");
    let changed = layer["changed"][0].as_str().unwrap();
    assert!(changed.contains("etc/config"), "{changed}");
    let text = ok(&mut docker.yolofs(&lab, &["status"]));
    assert!(
        text.contains("was changed") && text.contains("etc/config"),
        "{text}"
    );
    ok(&mut docker.yolofs(&lab, &["detach", "--all"]));
}

#[test]
fn privileged_docker_layers_that_are_gone_are_garbage() {
    let lab = Lab::new();
    let docker = Dockerd::start(&lab, &[]);
    docker.import_base(&lab);
    docker.build(&lab, "app", "base");
    docker.record(&lab, "app");
    let saved = lab.path("app.tar");
    docker.run(&["save", "-o", saved.to_str().unwrap(), "app"]);
    // Its own layer comes back to another directory, and is bound to that.
    docker.run(&["rmi", "app"]);
    docker.run(&["load", "-i", saved.to_str().unwrap()]);
    let top = docker.layers("app").pop().unwrap().1;
    ok(&mut docker.yolofs(&lab, &["attach", "app"]));
    ok(&mut docker.yolofs(&lab, &["detach", "app"]));
    let gc = |flags: &[&str]| json(lab.bootimg().args(["gc", "--json"]).args(flags));
    let images = || {
        let list = json(lab.bootimg().args(["ls", "--json"]));
        list.as_array().map(Vec::len)
    };
    assert_eq!(gc(&[])["unbound"], serde_json::json!([]), "it is in use");
    let before = images();
    docker.run(&["rmi", "app"]);
    let would = gc(&["--dry-run"]);
    // What was recorded of the layer stays: it may be pulled again.
    assert_eq!(would["unbound"].as_array().unwrap().len(), 1, "{would}");
    assert_eq!(would["unbound"][0]["dir"], top.to_str().unwrap());
    assert_eq!(images(), before, "a dry run removes nothing");
    assert_eq!(gc(&[])["unbound"], would["unbound"]);
    assert_eq!(images().unwrap() + 1, before.unwrap());
    assert_eq!(gc(&[])["unbound"], serde_json::json!([]));
}

#[test]
fn privileged_docker_29_with_overlay2_is_served_as_before() {
    let lab = Lab::new();
    let docker = Dockerd::start_today(&lab);
    docker.import_base(&lab);
    docker.build(&lab, "app", "base");
    docker.record(&lab, "app");
    let sum = md5(&docker, "app");
    ok(&mut docker.yolofs(&lab, &["attach", "--all"]));
    assert_eq!(docker.served_layers(&lab, "app"), 2);
    assert_eq!(md5(&docker, "app"), sum);
    let change = "echo 1 > /etc/config; rm /usr/lib/part07";
    let run = [
        "run",
        "--name",
        "changed",
        "--network=none",
        "app",
        "sh",
        "-c",
    ];
    docker.run(&[&run[..], &[change]].concat());
    let diff = docker.run(&["diff", "changed"]);
    assert!(
        diff.contains("C /etc/config") && diff.contains("D /usr/lib/part07"),
        "{diff}"
    );
    docker.run(&["commit", "changed", "kept"]);
    let cat = [
        "run",
        "--rm",
        "--network=none",
        "kept",
        "cat",
        "/etc/config",
    ];
    assert_eq!(docker.run(&cat), "1");
    docker.run(&["rm", "changed"]);
    docker.run(&["rmi", "kept", "app"]);
    docker.run(&["system", "prune", "-af"]);
    until("the layers to be let go", || docker.mounts().is_empty());
    let left = fs::read_dir(docker.data_root().join("overlay2")).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["l"], "only the directory of short names is left");
    ok(&mut docker.yolofs(&lab, &["detach", "--all"]));
}

/// A container that waits, and what is read in it, past the page cache.
fn reads_on(docker: &Dockerd) -> String {
    let pid = docker.run(&["inspect", "--format", "{{.State.Pid}}", "reader"]);
    for dir in ["usr/lib", "data"] {
        for entry in fs::read_dir(format!("/proc/{pid}/root/{dir}")).unwrap() {
            let file = fs::File::open(entry.unwrap().path()).unwrap();
            posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
        }
    }
    docker.run(&["exec", "reader", "sh", "-c", MD5])
}

/// Builds on `app` by BuildKit, with layers that are merged; `sum` is what it has to read.
fn build_on_top(lab: &Lab, docker: &Dockerd, sum: &str) {
    let context = lab.make_dir("context-app");
    let lines = format!("FROM app\nCOPY --link data /linked\nRUN {MD5} > /sum\n");
    fs::write(context.join("Dockerfile"), lines).unwrap();
    let mut build = docker.docker();
    build
        .env("DOCKER_BUILDKIT", "1")
        .args(["build", "--network=none", "-q", "-t", "built"]);
    ok(build.arg(&context));
    let run = ["run", "--rm", "--network=none", "built", "sh", "-c"];
    let built = docker.run(&[&run[..], &["cat /sum; ls /linked"]].concat());
    assert!(built.starts_with(sum) && built.contains("app0"), "{built}");
    docker.run(&["rmi", "built"]);
}

#[test]
fn privileged_docker_29_with_overlay2_reads_on_whoever_dies() {
    let lab = Lab::new();
    let service = Service::start(&lab);
    let mut docker = Dockerd::start_today(&lab);
    docker.import_base(&lab);
    docker.build(&lab, "app", "base");
    let mut record = lab.bootimg();
    record.env("DOCKER_HOST", docker.host()).args([
        "record",
        "--until",
        "exit",
        "docker://app",
        "--",
    ]);
    let all = "find /bin /etc /usr /data -type f -exec cat {} + > /dev/null";
    ok(record.args(["sh", "-c", all]));
    let sum = md5(&docker, "app");
    let saved = docker.saved(&lab, "app");
    let mut serve = docker.yolofs(&lab, &["attach", "--all"]);
    ok(serve.env("YOLOFS_ALL_XATTRS", "true"));
    let served = |docker: &Dockerd| {
        until("the layers to be served", || {
            docker.served_layers(&lab, "app") == 2
        });
    };
    served(&docker);
    assert_eq!(docker.status(&lab)["served_by"], "node");
    assert!(docker.saved(&lab, "app") == saved, "docker save differs");
    let reads = || {
        let status = docker.status(&lab);
        let layers = status["layers"].as_array().unwrap().iter();
        layers
            .map(|layer| layer["served"]["requests"]["read"].as_u64().unwrap_or(0))
            .sum()
    };
    until_boot_reads_nothing(&lab, reads, |_| assert_eq!(md5(&docker, "app"), sum));
    build_on_top(&lab, &docker, &sum);
    // Whoever dies, a container reads on, and the next is served.
    docker.stop();
    docker.add_flag("--live-restore");
    docker.start_again();
    served(&docker);
    let run = ["run", "-d", "--name", "reader", "--network=none", "app"];
    docker.run(&[&run[..], &["sleep", "1000000"]].concat());
    assert_eq!(reads_on(&docker), sum);
    docker.stop();
    docker.start_again();
    assert_eq!(reads_on(&docker), sum);
    served(&docker);
    docker.kill();
    docker.start_again();
    assert_eq!(reads_on(&docker), sum);
    served(&docker);
    let place = docker.mounts().remove(0);
    service.kill_worker(Path::new(&place), Signal::SIGKILL);
    assert_eq!(reads_on(&docker), sum);
    service.kill_node();
    assert_eq!(reads_on(&docker), sum);
    let worker = docker.status(&lab)["pid"].as_u64().unwrap();
    signal_to(u32::try_from(worker).unwrap(), Signal::SIGKILL);
    until("another worker", || {
        let status = docker.status(&lab);
        status["pid"].as_u64().is_some_and(|other| other != worker)
    });
    assert_eq!(reads_on(&docker), sum);
    served(&docker);
    assert_eq!(md5(&docker, "app"), sum);
    docker.run(&["rm", "-f", "reader"]);
    ok(&mut docker.yolofs(&lab, &["detach", "--all"]));
    assert_eq!(docker.mounts(), [""; 0]);
}
