//! Images come and go, Docker starts and ends: what is attached follows.

#![cfg(feature = "privileged")]

mod lab;

use std::fs;
use std::process::Stdio;

use lab::dockerd::Dockerd;
use lab::{Lab, assert_confined_to, json, ok, output, until};

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
    docker.run(&["rmi", "kept", "app", "base"]);
    until("the layers to be let go", || docker.mounts().is_empty());
    ok(&mut docker.yolofs(&lab, &["detach", "--all"]));
}
