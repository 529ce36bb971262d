//! Whatever dies, Docker goes on.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::process::{Command, Stdio};
use std::thread;

use lab::dockerd::Dockerd;
use lab::stopped::Stopped;
use lab::{Lab, ok, output, until};
use testkit::registries::{Kind, Registry};

const MD5: &str = "cat /usr/lib/part* | md5sum";

fn md5(docker: &Dockerd) -> String {
    docker.run(&["run", "--rm", "--network=none", "base", "sh", "-c", MD5])
}

fn prepared(lab: &Lab) -> (Dockerd, String) {
    let docker = Dockerd::start(lab, &[]);
    docker.import_base(lab);
    docker.record(lab, "base");
    let sum = md5(&docker);
    ok(&mut docker.yolofs(lab, &["attach", "--all"]));
    (docker, sum)
}

fn worker(lab: &Lab, docker: &Dockerd) -> Option<u64> {
    docker.status(lab)["pid"].as_u64()
}

/// The parent of a process.
fn parent(pid: u64) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, rest) = stat.rsplit_once(") ").unwrap();
    rest.split(' ').nth(1).unwrap().parse().unwrap()
}

fn stopped(pid: u64) -> Stopped {
    Stopped::stop(u32::try_from(pid).unwrap())
}

fn kill(signal: &str, pid: u64) {
    ok(Command::new("kill").args([signal, &pid.to_string()]));
}

#[test]
fn privileged_docker_goes_on_when_the_worker_is_killed() {
    let lab = Lab::new();
    let (docker, sum) = prepared(&lab);
    let context = lab.make_dir("on-top");
    fs::write(
        context.join("Dockerfile"),
        "FROM base\nRUN cat /usr/lib/part* | md5sum > /sum\n",
    )
    .unwrap();
    for what in ["run", "build", "rm"] {
        docker.run(&["create", "--name", "idle", "--network=none", "base", "true"]);
        let first = worker(&lab, &docker).unwrap();
        thread::scope(|scope| {
            let busy = scope.spawn(|| {
                // It may fail, as its files may be gone under it; it must end.
                let mut command = docker.docker();
                command.env("DOCKER_BUILDKIT", "0");
                match what {
                    "run" => {
                        command.args(["run", "--rm", "--network=none", "base", "sh", "-c", MD5])
                    }
                    "build" => command
                        .args(["build", "--no-cache", "--network=none", "-t", "built"])
                        .arg(&context),
                    _ => command.args(["rm", "-f", "idle"]),
                };
                output(&mut command)
            });
            kill("-9", first);
            until("the command to end", || busy.is_finished());
        });
        until("another worker to serve", || {
            worker(&lab, &docker).is_some_and(|pid| pid != first)
                && docker.served_layers(&lab, "base") == 1
        });
        assert_eq!(docker.mounts().len(), 1, "no dead mount is left");
        assert_eq!(md5(&docker), sum);
        let _gone = output(docker.docker().args(["rm", "-f", "idle"]));
    }
    ok(&mut docker.yolofs(&lab, &["detach", "--all"]));
    assert_eq!(docker.mounts(), [""; 0]);
}

#[test]
fn privileged_docker_starts_after_everything_was_killed() {
    let lab = Lab::new();
    let (mut docker, sum) = prepared(&lab);
    let pid = worker(&lab, &docker).unwrap();
    // The guardian first, or it would clear what the worker leaves.
    let guardian = parent(pid);
    let stuck = stopped(guardian);
    kill("-9", pid);
    stuck.kill();
    until("the worker's end", || {
        docker.status(&lab)["state"] == "not running"
    });
    assert_eq!(docker.mounts().len(), 1, "a dead mount is left");
    assert_eq!(docker.status(&lab)["dead_mounts"], 1);
    // Docker can be stopped and started with it.
    docker.stop();
    docker.start_again();
    ok(&mut docker.yolofs(&lab, &["clear"]));
    assert_eq!(docker.mounts(), [""; 0]);
    assert_eq!(md5(&docker), sum);
    // What was wanted is still noted: the next daemon serves it.
    ok(&mut docker.yolofs(&lab, &["attach", "base"]));
    assert_eq!(docker.served_layers(&lab, "base"), 1);
    assert_eq!(md5(&docker), sum);
    // Without its guardian the worker leaves by itself.
    let pid = worker(&lab, &docker).unwrap();
    kill("-9", parent(pid));
    until("the worker to leave", || docker.mounts().is_empty());
    ok(&mut docker.yolofs(&lab, &["detach", "--all"]));
    assert_eq!(docker.status(&lab)["wanted"]["all"], false);
    // Dead mounts and a killed Docker: what it takes to start again is the same.
    ok(&mut docker.yolofs(&lab, &["attach", "base"]));
    let pid = worker(&lab, &docker).unwrap();
    let guardian = parent(pid);
    let stuck = stopped(guardian);
    kill("-9", pid);
    stuck.kill();
    docker.kill();
    ok(&mut docker.yolofs(&lab, &["clear"]));
    docker.start_again();
    assert_eq!(md5(&docker), sum);
}

#[test]
fn privileged_docker_pulls_while_the_service_is_killed() {
    let registry = Registry::start(Kind::Docker);
    let app = format!("{}/some/app:1", registry.host());
    let lab = Lab::new();
    let mut docker = Dockerd::start(&lab, &[]);
    docker.import_base(&lab);
    docker.build(&lab, "one", "base");
    docker.build(&lab, "two", "one");
    docker.run(&["tag", "two", &app]);
    docker.run(&["push", &app]);
    docker.record(&lab, &app);
    let run = ["run", "--rm", "--network=none", &app, "sh", "-c"];
    let script = "cat /usr/lib/part* /data/* | md5sum";
    let boot = [&run[..], &[script]].concat();
    let sum = docker.run(&boot);
    docker.run(&["rmi", "-f", &app, "one", "two"]);
    let layers = docker.data_root().join("overlay2");
    let count = || fs::read_dir(&layers).unwrap().count();
    // The worker alone, which the guardian follows up; then both, so that dead mounts may be left.
    for with_guardian in [false, true] {
        ok(&mut docker.yolofs(&lab, &["attach", "--all"]));
        let pid = worker(&lab, &docker).unwrap();
        let guardian = parent(pid);
        until("the base to be in the page cache", || docker.is_warm(&lab));
        // Until it is killed it does nothing, as one that is stuck.
        let stuck = stopped(pid);
        let before = count();
        let mut pull = docker.docker();
        let pull = pull.args(["pull", &app]).stdout(Stdio::null());
        let mut pull = pull.stderr(Stdio::null()).spawn().unwrap();
        until("a layer to come", || {
            count() > before || pull.try_wait().unwrap().is_some()
        });
        let guardian = with_guardian.then(|| stopped(guardian));
        stuck.kill();
        if let Some(guardian) = guardian {
            guardian.kill();
        }
        until("the pull to end", || pull.try_wait().unwrap().is_some());
        if with_guardian {
            until("the service to be gone", || {
                docker.status(&lab)["state"] == "not running"
            });
            ok(&mut docker.yolofs(&lab, &["clear"]));
        } else {
            until("another worker to serve", || {
                worker(&lab, &docker).is_some_and(|now| now != pid)
            });
        }
        // What failed because of that succeeds now, and what was pulled is what was pushed.
        docker.run(&["pull", &app]);
        assert_eq!(docker.run(&boot), sum);
        docker.stop();
        docker.start_again();
        assert_eq!(docker.run(&boot), sum);
        ok(&mut docker.yolofs(&lab, &["detach", "--all"]));
        assert_eq!(docker.run(&boot), sum, "the plain layers are whole");
        docker.run(&["rmi", "-f", &app]);
    }
}
