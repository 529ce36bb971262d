//! `sandbox-oci` in place of runc: engines start, ask and end containers by it, and see no difference.
//!
//! Nothing is handed to runc here: where `sandbox-oci` would, it finds a program that fails.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use lab::containerd::ContainerdRig;
use lab::docker_process::DockerProcess;
use lab::docker29::Docker29;
use lab::dockerd::Dockerd;
use lab::{Lab, until};

/// A runtime that is `sandbox-oci`, and cannot hand anything to runc.
fn runtime(lab: &Lab) -> PathBuf {
    let beside = Path::new(env!("CARGO_BIN_EXE_yolofs")).with_file_name("sandbox-oci");
    assert!(
        beside.exists(),
        "{} is missing: cargo build -p sandbox-oci",
        beside.display()
    );
    let script = lab.path("runtime");
    let text = format!(
        "#!/bin/sh\nSANDBOX_OCI_RUNC=/bin/false exec {} \"$@\"\n",
        beside.display()
    );
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    script
}

/// What containers are asked, with flags of `docker run` before the image and a command behind it.
const CASES: &[(&[&str], &[&str])] = &[
    (&[], &["sh", "-c", "echo out; echo err >&2; exit 7"]),
    (&["--user", "1000:1001"], &["id"]),
    (&["--workdir", "/usr/lib"], &["pwd"]),
    (&["--env", "A=b c"], &["sh", "-c", "echo \"$A\""]),
    (&["--read-only"], &["sh", "-c", "echo x > /new"]),
    (
        &["--tmpfs", "/t"],
        &["sh", "-c", "echo x > /t/new && cat /t/new"],
    ),
    (&["--hostname", "named"], &["hostname"]),
    (
        &["--cap-drop", "ALL"],
        &["sh", "-c", "grep Cap /proc/self/status; chown 1:1 /etc"],
    ),
    (&["--memory", "64m"], &["sh", "-c", "echo limited"]),
    (&["--ulimit", "nofile=77"], &["sh", "-c", "ulimit -n"]),
    (&["--init"], &["cat", "/proc/1/comm"]),
    (
        &[],
        &[
            "sh",
            "-c",
            "mount -t tmpfs none /mnt; grep Seccomp: /proc/self/status",
        ],
    ),
    (&[], &["/no/such/program"]),
];

/// Runs all cases by both runtimes, and compares how they end and what they write.
fn compare(docker: &DockerProcess, image: &str) {
    for (flags, command) in CASES {
        let run = |runtime: &str| {
            let mut run = vec!["run", "--rm", "--network=none", "--runtime", runtime];
            run.extend(*flags);
            run.push(image);
            run.extend(*command);
            docker.try_run(&run)
        };
        let (ours, theirs) = (run("sandbox"), run("runc"));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert_eq!(
            (ours.status.code(), text(&ours.stdout)),
            (theirs.status.code(), text(&theirs.stdout)),
            "{flags:?} {command:?}: {}",
            text(&ours.stderr)
        );
    }
}

/// A container that stays: it is listed, executed in, paused, stopped and removed.
fn live_and_end(docker: &DockerProcess, lab: &Lab, image: &str) {
    let volume = lab.make_dir("volume");
    fs::write(volume.join("file"), "from outside").unwrap();
    let mount = format!("{}:/volume", volume.display());
    let script = "trap 'echo ended; exit 3' TERM; echo started; while :; do sleep 0.1; done";
    let id = docker.run(&[
        "run",
        "-d",
        "--name",
        "stays",
        "--network=none",
        "--runtime",
        "sandbox",
        "-v",
        &mount,
        "--memory",
        "128m",
        image,
        "sh",
        "-c",
        script,
    ]);
    until("it to start", || {
        docker.run(&["logs", "stays"]).contains("started")
    });
    assert_eq!(
        docker.run(&["exec", "stays", "cat", "/volume/file"]),
        "from outside"
    );
    docker.run(&["exec", "stays", "sh", "-c", "echo inside > /volume/new"]);
    assert_eq!(fs::read_to_string(volume.join("new")).unwrap(), "inside\n");
    let failed = docker.try_run(&["exec", "stays", "sh", "-c", "exit 9"]);
    assert_eq!(failed.status.code(), Some(9));
    assert!(docker.run(&["top", "stays"]).contains("sleep"));
    docker.run(&["pause", "stays"]);
    let state = |what: &str| docker.run(&["inspect", "-f", what, "stays"]);
    assert_eq!(state("{{.State.Status}}"), "paused");
    docker.run(&["unpause", "stays"]);
    docker.run(&["stop", "stays"]);
    assert_eq!(
        state("{{.State.ExitCode}} {{.HostConfig.Runtime}}"),
        "3 sandbox"
    );
    assert!(docker.run(&["logs", "stays"]).ends_with("ended"));
    docker.run(&["start", "stays"]);
    docker.run(&["kill", "stays"]);
    until("it to end", || state("{{.State.ExitCode}}") == "137");
    docker.run(&["rm", "stays"]);
    // Debian's runc cannot start this one on every machine, so there is nothing to compare it with.
    let mounts = "mkdir /m && mount -t tmpfs none /m && echo mounted";
    let run = [
        "run",
        "--rm",
        "--network=none",
        "--runtime",
        "sandbox",
        "--privileged",
    ];
    let said = docker.run(&[&run[..], &[image, "sh", "-c", mounts]].concat());
    assert_eq!(said, "mounted");
    let left = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!left.contains(&id), "a mount of the container is left");
}

#[test]
fn privileged_docker_runs_containers_by_sandbox_oci() {
    let lab = Lab::new();
    let add = format!("--add-runtime=sandbox={}", runtime(&lab).display());
    let docker = Dockerd::start(&lab, &[&add]);
    docker.import_base(&lab);
    compare(&docker, "base");
    live_and_end(&docker, &lab, "base");
}

#[test]
fn privileged_docker_29_runs_containers_by_sandbox_oci() {
    let lab = Lab::new();
    let add = format!("--add-runtime=sandbox={}", runtime(&lab).display());
    let containerd = ContainerdRig::start_today(&lab);
    let mut docker = Docker29::start(&lab, &containerd.socket(), "overlayfs");
    docker.stop();
    docker.add_flag(&add);
    docker.start_again();
    docker.import_base(&lab);
    compare(&docker, "base");
    live_and_end(&docker, &lab, "base");
}
