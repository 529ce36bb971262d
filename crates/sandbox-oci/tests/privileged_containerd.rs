//! Containers of a real containerd 2.4 whose runtime option `BinaryName` is `sandbox-oci`.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_sandbox-oci");
const PATIENCE: Duration = Duration::from_secs(60);

/// A containerd with directories of its own, and a root for its containers.
struct Engine {
    dir: tempfile::TempDir,
    daemon: Child,
}

impl Engine {
    fn start() -> Self {
        assert!(nix::unistd::geteuid().is_root(), "this test needs root");
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let bin = at("rootfs/bin");
        fs::create_dir_all(&bin).unwrap();
        for name in ["proc", "sys", "dev", "tmp", "run", "etc"] {
            fs::create_dir(at("rootfs").join(name)).unwrap();
        }
        let busybox = ["/bin/busybox", "/usr/bin/busybox"].map(Path::new);
        let busybox = busybox.into_iter().find(|path| path.exists());
        let busybox = busybox.expect("busybox-static is not installed");
        fs::copy(busybox, bin.join("busybox")).unwrap();
        for name in ["sh", "cat", "id", "sleep", "hostname"] {
            symlink("busybox", bin.join(name)).unwrap();
        }
        let config = format!(
            "version = 3\nroot = {:?}\nstate = {:?}\ndisabled_plugins = [\"io.containerd.cri.v1.runtime\", \
             \"io.containerd.cri.v1.images\", \"io.containerd.grpc.v1.cri\", \"io.containerd.nri.v1.nri\"]\n\
             [grpc]\naddress = {:?}\n",
            at("root"),
            at("state"),
            at("sock")
        );
        fs::write(at("config.toml"), config).unwrap();
        let daemon = Command::new(engines().join("containerd"))
            .arg("--config")
            .arg(at("config.toml"))
            // Its shims have its variables. Whatever is handed to runc fails.
            .env(
                "PATH",
                format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", engines().display()),
            )
            .env("SANDBOX_OCI_RUNC", "/bin/false")
            .stdout(Stdio::null())
            .stderr(fs::File::create(at("log")).unwrap())
            .spawn()
            .unwrap();
        let engine = Self { dir, daemon };
        until("containerd answers", || {
            engine.ctr(&["version"]).status.success()
        });
        engine
    }

    fn ctr(&self, arguments: &[&str]) -> Output {
        Command::new(engines().join("ctr"))
            .arg("--address")
            .arg(self.dir.path().join("sock"))
            .args(arguments)
            .output()
            .unwrap()
    }

    fn ok(&self, arguments: &[&str]) -> String {
        let output = self.ctr(arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        let log = fs::read_to_string(self.dir.path().join("log")).unwrap();
        assert!(output.status.success(), "{arguments:?}: {error}\n{log}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The arguments of `ctr run`, with the option.
    fn run<'a>(
        &self,
        more: &[&'a str],
        root: &'a str,
        id: &'a str,
        program: &[&'a str],
    ) -> Vec<&'a str> {
        let first = ["run", "--runc-binary", PROGRAM];
        [&first[..], more, &["--rootfs", root, id], program].concat()
    }

    fn root(&self) -> String {
        self.dir.path().join("rootfs").to_str().unwrap().to_owned()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        for id in self
            .ctr(&["tasks", "ls", "-q"])
            .stdout
            .split(|byte| *byte == b'\n')
        {
            let id = String::from_utf8_lossy(id).into_owned();
            if !id.is_empty() {
                self.ctr(&["tasks", "kill", "-s", "KILL", &id]);
                self.ctr(&["tasks", "rm", "-f", &id]);
            }
        }
        let _ended = self.daemon.kill();
        let _reaped = self.daemon.wait();
    }
}

/// Where `scripts/engines.sh` puts engines of today.
fn engines() -> PathBuf {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/engines/bin");
    assert!(
        dir.exists(),
        "{} is missing: run scripts/engines.sh",
        dir.display()
    );
    dir.canonicalize().unwrap()
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn privileged_containerds_option_binary_name_has_containers_made_without_runc() {
    let engine = Engine::start();
    let root = engine.root();
    let id = format!("sandbox-oci-{}", std::process::id());
    let version = engine.ok(&["version"]);
    assert!(version.contains("2.4."), "{version}");
    let script = "id -u; grep CapBnd /proc/self/status; exit 7";
    let ended = engine.ctr(&engine.run(&["--rm"], &root, &id, &["/bin/sh", "-c", script]));
    let said = String::from_utf8_lossy(&[ended.stdout, ended.stderr].concat()).into_owned();
    let log = || fs::read_to_string(engine.dir.path().join("log")).unwrap();
    assert_eq!(ended.status.code(), Some(7), "{said}\n{}", log());
    assert!(said.starts_with("0\nCapBnd:\t00000000a80425fb\n"), "{said}");
    // One that stays, with a limit.
    let limit = ["-d", "--memory-limit", "33554432"];
    engine.ok(&engine.run(&limit, &root, &id, &["/bin/sleep", "1000"]));
    assert_eq!(
        engine.ok(&[
            "tasks",
            "exec",
            "--exec-id",
            "e",
            &id,
            "/bin/cat",
            "/proc/1/comm"
        ]),
        "sleep\n"
    );
    engine.ok(&["tasks", "pause", &id]);
    assert!(engine.ok(&["tasks", "ls"]).contains("PAUSED"));
    engine.ok(&["tasks", "resume", &id]);
    assert!(engine.ok(&["tasks", "metrics", &id]).contains("33554432"));
    engine.ok(&["tasks", "kill", "-s", "KILL", &id]);
    until("it has ended", || {
        engine.ok(&["tasks", "ls"]).contains("STOPPED")
    });
    engine.ok(&["tasks", "rm", &id]);
    engine.ok(&["containers", "rm", &id]);
    // What is not honoured is handed to runc, which is out of reach here: so the option is what made the others.
    let refused = engine.ctr(&engine.run(
        &["--rm", "--apparmor-profile", "own"],
        &root,
        &id,
        &["/bin/id"],
    ));
    assert!(!refused.status.success());
    until("nothing stays mounted", || {
        !fs::read_to_string("/proc/self/mounts")
            .unwrap()
            .contains(engine.dir.path().to_str().unwrap())
    });
}
