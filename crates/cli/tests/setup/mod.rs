//! A containerd with a configuration that somebody wrote, for `yolofs setup` to change.

#![allow(
    clippy::allow_attributes,
    reason = "what is unused differs from test to test"
)]
#![allow(dead_code, reason = "each test binary uses its own part of it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::node::{IMAGE, archive};
use lab::engines::Engines;
use lab::{Lab, ok, output, until};

/// A running containerd, and perhaps a snapshotter; both end when it is dropped.
pub(crate) struct Engine<'a> {
    lab: &'a Lab,
    engines: Engines,
    dir: PathBuf,
    containerd: Option<Child>,
    snapshotter: Option<Child>,
    dockerd: Option<Child>,
}

impl<'a> Engine<'a> {
    /// Starts Debian's containerd with a configuration that ends in the lab's directories.
    pub(crate) fn debian(lab: &'a Lab, config: &str) -> Self {
        Self::start(lab, Engines::Debian, config, "")
    }

    /// Starts a containerd of today.
    pub(crate) fn today(lab: &'a Lab, head: &str, tables: &str) -> Self {
        Self::start(lab, Engines::Today, head, tables)
    }

    fn start(lab: &'a Lab, engines: Engines, head: &str, tables: &str) -> Self {
        let dir = lab.make_dir("engine");
        let mut engine = Self {
            lab,
            engines,
            dir,
            containerd: None,
            snapshotter: None,
            dockerd: None,
        };
        // Keys of the file come before its first table.
        let (keys, more) = head
            .split_once("[plugins")
            .map_or((head, String::new()), |(keys, rest)| {
                (keys, format!("[plugins{rest}"))
            });
        let at = engine.dir.display();
        let text = format!(
            "{keys}root = \"{at}/root\"\nstate = \"{at}/state\"\n{more}{tables}\
             [grpc]\n  address = \"{at}/sock\"\n"
        );
        fs::create_dir_all(engine.dir.join("etc")).unwrap();
        fs::write(engine.config(), text).unwrap();
        engine.restart();
        engine
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.dir.join("etc/config.toml")
    }

    pub(crate) fn address(&self) -> PathBuf {
        self.dir.join("yolofs.sock")
    }

    fn root(&self) -> PathBuf {
        self.dir.join("snapshots")
    }

    /// Returns one of containerd's programs.
    pub(crate) fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.engines.program(name));
        command.env("PATH", self.engines.path());
        command
    }

    /// Starts containerd, and ends the one before.
    pub(crate) fn restart(&mut self) {
        end(&mut self.containerd);
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.dir.join("containerd.log"));
        let log = log.unwrap();
        let child = self
            .program("containerd")
            .arg("--config")
            .arg(self.config())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn();
        self.containerd = Some(child.expect("containerd is not installed"));
        until("containerd to answer", || {
            let child = self.containerd.as_mut().unwrap();
            let said = || fs::read_to_string(self.dir.join("containerd.log")).unwrap_or_default();
            assert!(child.try_wait().unwrap().is_none(), "it ended: {}", said());
            output(self.ctr().arg("version")).status.success()
        });
    }

    pub(crate) fn start_snapshotter(&mut self) {
        let address = self.address();
        let child = self
            .lab
            .yolofs()
            .arg("snapshotter")
            .arg("--root")
            .arg(self.root())
            .arg("--address")
            .arg(&address)
            .arg("--containerd")
            .arg(self.dir.join("sock"))
            .stdin(Stdio::null())
            .spawn();
        self.snapshotter = Some(child.unwrap());
        until("the snapshotter to answer", || {
            UnixStream::connect(&address).is_ok()
        });
    }

    /// Returns what containerd makes of its configuration.
    pub(crate) fn dump(&self) -> String {
        let config = self.config();
        let mut containerd = self.program("containerd");
        ok(containerd
            .arg("--config")
            .arg(config)
            .args(["config", "dump"]))
    }

    /// Starts Docker on this containerd, with a configuration that somebody wrote.
    pub(crate) fn start_docker(&mut self, config: &str) {
        fs::write(self.dir.join("daemon.json"), config).unwrap();
        self.start_docker_again();
    }

    pub(crate) fn start_docker_again(&mut self) {
        end(&mut self.dockerd);
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.dir.join("docker.log"));
        let log = log.unwrap();
        let at = |name: &str| self.dir.join(name).display().to_string();
        let child = self
            .program("dockerd")
            .args([
                "--config-file",
                &at("daemon.json"),
                "--data-root",
                &at("docker"),
            ])
            .args(["--exec-root", &at("exec"), "--pidfile", &at("docker.pid")])
            .args(["--containerd", &at("sock"), "-H", &self.host()])
            .args(["--iptables=false", "--ip6tables=false", "--bridge=none"])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn();
        self.dockerd = Some(child.expect("dockerd is not there: run scripts/engines.sh"));
        until("dockerd to answer", || {
            let child = self.dockerd.as_mut().unwrap();
            let said = || fs::read_to_string(self.dir.join("docker.log")).unwrap_or_default();
            assert!(child.try_wait().unwrap().is_none(), "it ended: {}", said());
            let mut info = Command::new("/usr/bin/docker");
            output(info.args(["--host", &self.host(), "info"]))
                .status
                .success()
        });
    }

    fn host(&self) -> String {
        format!("unix://{}", self.dir.join("docker.sock").display())
    }

    /// Runs Docker's client, which must succeed.
    pub(crate) fn docker(&self, args: &[&str]) -> String {
        let mut command = Command::new("/usr/bin/docker");
        ok(command.args(["--host", &self.host()]).args(args))
            .trim_end()
            .to_owned()
    }

    pub(crate) fn ctr(&self) -> Command {
        let mut command = self.program("ctr");
        command.arg("--address").arg(self.dir.join("sock"));
        command
    }

    /// Returns `yolofs setup` for this containerd, with its files in the lab.
    pub(crate) fn setup(&self, args: &[&str]) -> Command {
        let mut command = self.lab.yolofs();
        command.arg("setup").args(args);
        command.arg("--record").arg(self.lab.path("etc/setup.json"));
        if args != ["--undo"] {
            command.arg("--containerd-config").arg(self.config());
            command.arg("--address").arg(self.address());
            command.arg("--root").arg(self.root());
            command.arg("--units").arg(self.lab.path("units"));
        }
        command
    }

    /// Returns `yolofs doctor` for this containerd.
    pub(crate) fn doctor(&self) -> Command {
        let mut command = self.lab.yolofs();
        command.args(["doctor", "--all", "--json", "--containerd-config"]);
        command
            .arg(self.config())
            .arg("--docker-config")
            .arg("/nonexistent/daemon.json");
        command
    }

    /// Unpacks an image to yolofs and runs a container of it.
    pub(crate) fn runs_a_container(&self) {
        let image = archive(self.lab, 4096);
        let load = ["images", "import", "--snapshotter", "yolofs"];
        ok(self.ctr().args(load).arg(image));
        let said = self.dir.join("said");
        let uri = format!("file://{}", said.display());
        // crun 1.8 does not know what containerd of today writes, and runc does not mind two cgroups.
        let runtime = match self.engines {
            Engines::Today => "runc".to_owned(),
            Engines::Debian => crun(&self.dir),
        };
        let flags = [
            "run",
            "--rm",
            "--snapshotter",
            "yolofs",
            "--log-uri",
            &uri,
            "--runc-binary",
        ];
        // All containerds of a machine have one directory for what runs.
        let id = self
            .lab
            .path("")
            .file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned();
        let container = [
            &runtime,
            IMAGE,
            &id,
            "/bin/sh",
            "-c",
            "cat /srv/greeting; cat /proc/mounts",
        ];
        ok(self.ctr().args(flags).args(container));
        let said = fs::read_to_string(said).unwrap();
        assert!(said.starts_with("hello\n"), "{said}");
        assert!(said.contains(self.root().to_str().unwrap()), "{said}");
        ok(self.ctr().args(["images", "rm", "--sync", IMAGE]));
    }
}

impl Drop for Engine<'_> {
    fn drop(&mut self) {
        end(&mut self.dockerd);
        end(&mut self.containerd);
        end(&mut self.snapshotter);
    }
}

/// Asks a process to end, and makes it if it does not.
fn end(child: &mut Option<Child>) {
    let Some(mut child) = child.take() else {
        return;
    };
    let _asked = Command::new("kill").arg(child.id().to_string()).status();
    let start = std::time::Instant::now();
    while matches!(child.try_wait(), Ok(None)) && start.elapsed().as_secs() < 20 {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let _ended = child.kill().and_then(|()| child.wait());
}

/// Returns the verdict of each check of the doctor.
pub(crate) fn verdicts(doctor: &Command) -> BTreeMap<String, String> {
    let mut again = Command::new(doctor.get_program());
    again.args(doctor.get_args());
    for (name, value) in doctor.get_envs() {
        match value {
            Some(value) => again.env(name, value),
            None => again.env_remove(name),
        };
    }
    let output = output(&mut again);
    let findings: Value = serde_json::from_slice(&output.stdout).unwrap();
    let text = |finding: &Value, key: &str| finding[key].as_str().unwrap().to_owned();
    let findings = findings.as_array().unwrap().iter();
    findings
        .map(|finding| (text(finding, "check"), text(finding, "verdict")))
        .collect()
}

/// crun 1.8 refuses a machine that has both versions of cgroups, so it is not shown the second.
fn crun(dir: &Path) -> String {
    use std::os::unix::fs::PermissionsExt as _;
    let path = dir.join("crun");
    let text = "#!/bin/sh\nexec unshare -m --propagation slave sh -c 'umount -l /sys/fs/cgroup/unified \
                2>/dev/null\nexec crun --cgroup-manager=disabled \"$@\"' crun \"$@\"\n";
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path.to_str().unwrap().to_owned()
}
