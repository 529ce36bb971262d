//! Containers of a real podman whose runtime is `sandbox-oci`, from an image as it is.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_sandbox-oci");

/// A podman with directories of its own, and an image with busybox.
struct Podman {
    dir: tempfile::TempDir,
}

impl Podman {
    fn new() -> Self {
        assert!(nix::unistd::geteuid().is_root(), "this test needs root");
        let podman = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        let bin = podman.at("rootfs/bin");
        fs::create_dir_all(&bin).unwrap();
        fs::create_dir(podman.at("rootfs/tmp")).unwrap();
        let busybox = ["/bin/busybox", "/usr/bin/busybox"].map(Path::new);
        let busybox = busybox.into_iter().find(|path| path.exists());
        let busybox = busybox.expect("busybox-static is not installed");
        fs::copy(busybox, bin.join("busybox")).unwrap();
        for name in ["sh", "cat", "id", "sleep", "grep"] {
            symlink("busybox", bin.join(name)).unwrap();
        }
        // What is handed to runc is noted, and fails.
        podman.script("runc", "echo \"$@\" >>\"$0.asked\"; exit 1");
        let runc = podman.at("runc");
        let runtime = format!("SANDBOX_OCI_RUNC={} exec {PROGRAM} \"$@\"", runc.display());
        podman.script("runtime", &runtime);
        let mut tar = Command::new("tar")
            .arg("-C")
            .arg(podman.at("rootfs"))
            .args(["-c", "."])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut import = podman.command(&["import", "-q", "-", "localhost/base"]);
        let imported = import.stdin(tar.stdout.take().unwrap()).output().unwrap();
        assert!(tar.wait().unwrap().success());
        assert!(imported.status.success(), "{imported:?}");
        podman
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn script(&self, name: &str, text: &str) {
        fs::write(self.at(name), format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(self.at(name), fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("podman");
        command
            .arg("--root")
            .arg(self.at("root"))
            .arg("--runroot")
            .arg(self.at("run"))
            .arg("--tmpdir")
            .arg(self.at("tmp"))
            .arg("--runtime")
            .arg(self.at("runtime"))
            .args(["--storage-driver=vfs", "--cgroup-manager=cgroupfs"])
            .args(arguments);
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// What runc was asked for.
    fn asked(&self) -> String {
        fs::read_to_string(self.at("runc.asked")).unwrap_or_default()
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        self.run(&["rm", "--all", "--force", "--time=0"]);
        self.run(&["rmi", "--all", "--force"]);
    }
}

#[test]
fn privileged_podman_runs_an_image_by_sandbox_oci() {
    let podman = Podman::new();
    let name = format!("sandbox-oci-{}", std::process::id());
    // Who runs the tests may have no right to raise limits, as podman would have it.
    let base = [
        "run",
        "--network=none",
        "--ulimit=nofile=512:512",
        "--ulimit=nproc=512:512",
    ];
    let script = "id -u; grep CapBnd /proc/self/status; exit 7";
    let once = [&base[..], &["--rm", "localhost/base", "sh", "-c", script]].concat();
    let ended = podman.run(&once);
    assert_eq!(ended.status.code(), Some(7), "{ended:?}");
    let said = String::from_utf8(ended.stdout).unwrap();
    assert!(said.starts_with("0\nCapBnd:\t00000000"), "{said}");
    // One that stays.
    let stays = ["-d", "--name", &name, "--memory=64m", "localhost/base"];
    let stays = [&base[..], &stays, &["sleep", "1000"]].concat();
    podman.ok(&stays);
    assert_eq!(podman.ok(&["exec", &name, "cat", "/proc/1/comm"]), "sleep");
    podman.ok(&["pause", &name]);
    let state = |what: &str| podman.ok(&["inspect", "--format", what, &name]);
    assert_eq!(state("{{.State.Status}}"), "paused");
    podman.ok(&["unpause", &name]);
    podman.ok(&["stop", "--time=0", &name]);
    assert_eq!(state("{{.State.ExitCode}}"), "137");
    podman.ok(&["rm", &name]);
    assert_eq!(podman.asked(), "", "nothing is handed to runc");
    // What is not honoured is, and the reason is said.
    let mapped = ["--rm", "--uidmap=0:100000:65536", "localhost/base", "id"];
    let refused = podman.run(&[&base[..], &mapped].concat());
    assert!(!refused.status.success());
    let asked = podman.asked();
    assert!(asked.contains("create"), "{asked:?} {refused:?}");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("does not honour"), "{said}");
}
