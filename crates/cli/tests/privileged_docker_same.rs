//! Docker does the same with and without yolofs below its layers.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;

use lab::dockerd::Dockerd;
use lab::{Lab, fails, ok, until};

/// What Docker says and writes about an image, an old container of it and a new one.
#[derive(PartialEq)]
struct Views {
    save: Vec<u8>,
    export: Vec<u8>,
    old_diff: Vec<String>,
    new_diff: Vec<String>,
    run: String,
}

const SCRIPT: &str = "echo new > /etc/new; rm /etc/config; chmod 700 /usr/lib/part00; \
                      cat /data/* /usr/lib/part* | md5sum; ls -lnR /data /usr /bin";

fn run_script(docker: &Dockerd, container: &str) -> String {
    let run = ["run", "--name", container, "--network=none", "app"];
    docker.run(&[&run[..], &["sh", "-c", SCRIPT]].concat())
}

fn views(lab: &Lab, docker: &Dockerd) -> Views {
    let read = |args: &[&str], name: &str| {
        let tar = lab.path(name);
        docker.run(&[args, &["-o", tar.to_str().unwrap()]].concat());
        fs::read(tar).unwrap()
    };
    // Docker lists the changes of one directory in any order, another one each time.
    let diff = |container| {
        let text = docker.run(&["diff", container]);
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        lines.sort_unstable();
        lines
    };
    let run = run_script(docker, "new");
    let new_diff = diff("new");
    docker.run(&["rm", "new"]);
    Views {
        save: read(&["save", "app"], "save.tar"),
        export: read(&["export", "old"], "export.tar"),
        old_diff: diff("old"),
        new_diff,
        run,
    }
}

#[track_caller]
fn assert_same(before: &Views, after: &Views) {
    assert_eq!(before.run, after.run);
    assert_eq!(before.old_diff, after.old_diff);
    assert_eq!(before.new_diff, after.new_diff);
    assert!(before.save == after.save, "docker save differs");
    assert!(before.export == after.export, "docker export differs");
}

#[test]
fn privileged_docker_sees_no_difference() {
    let lab = Lab::new();
    let docker = Dockerd::start(&lab, &[]);
    docker.import_base(&lab);
    docker.build(&lab, "app", "base");
    docker.record(&lab, "app");
    run_script(&docker, "old");
    let before = views(&lab, &docker);
    let deleted = "D /etc/config".to_owned();
    assert!(before.old_diff.contains(&deleted), "{:?}", before.old_diff);
    ok(&mut docker.yolofs(&lab, &["attach", "app"]));
    assert_eq!(docker.served_layers(&lab, "app"), 2);
    assert_eq!(docker.mounts().len(), 2);
    assert_same(&before, &views(&lab, &docker));
    // What was served came from the boot images.
    let status = docker.status(&lab);
    for layer in status["layers"].as_array().unwrap() {
        assert_eq!(layer["served"]["fallthrough_bytes"], 0, "{layer}");
        assert_eq!(layer["boot"]["stale_files"], 0, "{layer}");
    }
    // Twice is fine, and detaching gives the plain directories back.
    ok(&mut docker.yolofs(&lab, &["attach", "app"]));
    ok(&mut docker.yolofs(&lab, &["detach", "app"]));
    assert_eq!(docker.mounts(), [""; 0]);
    assert_same(&before, &views(&lab, &docker));
    ok(&mut docker.yolofs(&lab, &["detach", "app"]));
}

#[test]
fn privileged_docker_builds_commits_and_executes_on_attached_layers() {
    let lab = Lab::new();
    let docker = Dockerd::start(&lab, &[]);
    docker.import_base(&lab);
    let why = fails(1, &mut docker.yolofs(&lab, &["attach", "base"]));
    assert!(why.contains("bootimg record"), "{why}");
    let why = fails(1, &mut docker.yolofs(&lab, &["attach", "nonesuch"]));
    assert!(why.contains("nonesuch"), "{why}");
    ok(&mut docker.yolofs(&lab, &["detach", "--all"]));
    docker.record(&lab, "base");
    ok(&mut docker.yolofs(&lab, &["attach", "base"]));
    // A container that goes on while layers come and go.
    docker.run(&[
        "run",
        "-d",
        "--name",
        "on",
        "--network=none",
        "base",
        "sleep",
        "1000",
    ]);
    let md5 = "cat /usr/lib/part* | md5sum";
    let sum = docker.run(&["exec", "on", "sh", "-c", md5]);
    // Written to, and kept as an image.
    docker.run(&[
        "exec",
        "on",
        "sh",
        "-c",
        "echo 1 > /etc/config; rm /usr/lib/part07",
    ]);
    docker.run(&["commit", "on", "kept"]);
    let kept = [
        "run",
        "--rm",
        "--network=none",
        "kept",
        "cat",
        "/etc/config",
    ];
    assert_eq!(docker.run(&kept), "1");
    // Built on top of an attached image.
    let context = lab.make_dir("on-top");
    let dockerfile = "FROM base\nRUN cat /usr/lib/part* | md5sum > /sum && rm /usr/lib/part03\n";
    fs::write(context.join("Dockerfile"), dockerfile).unwrap();
    docker.build_in(&context, "built");
    let built = [
        "run",
        "--rm",
        "--network=none",
        "built",
        "sh",
        "-c",
        "cat /sum; ls /usr/lib",
    ];
    let built = docker.run(&built);
    assert!(
        built.starts_with(&sum) && !built.contains("part03"),
        "{built}"
    );
    // Detached below a running container: it goes on to be served.
    ok(&mut docker.yolofs(&lab, &["detach", "--all"]));
    assert_eq!(docker.mounts(), [""; 0]);
    let part = [
        "exec",
        "on",
        "sh",
        "-c",
        "cat /usr/lib/part0[0-6]* /bin/sh | md5sum",
    ];
    let of_running = docker.run(&part);
    let part = ["run", "--rm", "--network=none", "base", "sh", "-c", part[4]];
    assert_eq!(of_running, docker.run(&part));
    docker.run(&["rm", "-f", "on"]);
    until("the daemon that nobody needs to end", || {
        docker.status(&lab)["state"] == "not running"
    });
}
