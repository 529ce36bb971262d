//! A containerd of its own for a test.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::engines::Engines;
use super::{Lab, ok, output, until};

/// The namespace that the tests work in.
pub const NAMESPACE: &str = "tests";

/// A running containerd; stopped, with its containers, when it is dropped.
#[derive(Debug)]
pub struct ContainerdRig {
    dir: PathBuf,
    engines: Engines,
    child: Child,
}

impl ContainerdRig {
    /// Starts one with its directories in the lab, and waits until it answers.
    pub fn start(lab: &Lab) -> Self {
        Self::start_engines(lab, Engines::Debian)
    }

    /// Starts one of today, with nothing configured.
    pub fn start_today(lab: &Lab) -> Self {
        Self::start_engines(lab, Engines::Today)
    }

    fn start_engines(lab: &Lab, engines: Engines) -> Self {
        let dir = lab.make_dir("containerd");
        let (version, cri) = match engines {
            Engines::Debian => (2, "\"io.containerd.grpc.v1.cri\""),
            Engines::Today => (
                3,
                "\"io.containerd.grpc.v1.cri\", \"io.containerd.cri.v1.images\", \
                 \"io.containerd.cri.v1.runtime\", \"io.containerd.nri.v1.nri\"",
            ),
        };
        let config = format!(
            "version = {version}\nroot = \"{0}/root\"\nstate = \"{0}/state\"\n\
             disabled_plugins = [{cri}]\n\
             [grpc]\naddress = \"{0}/sock\"\n",
            dir.display()
        );
        fs::write(dir.join("config.toml"), config).unwrap();
        let child = spawn(&dir, engines);
        let mut rig = Self {
            dir,
            engines,
            child,
        };
        rig.wait();
        rig
    }

    fn wait(&mut self) {
        until("containerd to answer", || {
            let log = || fs::read_to_string(self.dir.join("log")).unwrap_or_default();
            let status = self.child.try_wait().unwrap();
            assert!(status.is_none(), "containerd ended: {}", log());
            output(self.client().arg("version")).status.success()
        });
    }

    /// Kills it, and starts it again.
    pub fn kill_and_start_again(&mut self) {
        self.child.kill().and_then(|()| self.child.wait()).unwrap();
        self.child = spawn(&self.dir, self.engines);
        self.wait();
    }

    /// Runs containerd's client in another namespace.
    pub fn ctr_in(&self, namespace: &str, args: &[&str]) -> String {
        let mut command = self.client();
        // The last one counts.
        ok(command.args(["--namespace", namespace]).args(args))
            .trim_end()
            .to_owned()
    }

    /// Returns where it listens.
    pub fn socket(&self) -> PathBuf {
        self.dir.join("sock")
    }

    /// Returns where it keeps what outlives it.
    pub fn root(&self) -> PathBuf {
        self.dir.join("root")
    }

    fn client(&self) -> Command {
        let mut command = Command::new(self.engines.program("ctr"));
        let socket = self.socket();
        command
            .arg("--address")
            .arg(socket)
            .args(["--namespace", NAMESPACE]);
        command
    }

    /// Runs containerd's client, which must succeed.
    pub fn ctr(&self, args: &[&str]) -> String {
        ok(self.client().args(args)).trim_end().to_owned()
    }

    /// Loads and unpacks what `docker save` wrote.
    pub fn import(&self, archive: &Path) {
        self.ctr(&["images", "import", archive.to_str().unwrap()]);
    }
}

fn spawn(dir: &Path, engines: Engines) -> Child {
    let log = File::options()
        .create(true)
        .append(true)
        .open(dir.join("log"))
        .unwrap();
    Command::new(engines.program("containerd"))
        .env("PATH", engines.path())
        .arg("--config")
        .arg(dir.join("config.toml"))
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .expect("containerd is not installed: apt-get install containerd")
}

impl Drop for ContainerdRig {
    fn drop(&mut self) {
        let ids = self.client().args(["containers", "ls", "-q"]).output();
        let ids = ids.map(|ids| String::from_utf8_lossy(&ids.stdout).into_owned());
        for id in ids.unwrap_or_default().split_whitespace() {
            let _gone = self.client().args(["tasks", "rm", "-f", id]).output();
            let _gone = self.client().args(["containers", "rm", id]).output();
        }
        let _asked = Command::new("kill")
            .arg(self.child.id().to_string())
            .status();
        let patience = std::time::Duration::from_secs(30);
        let start = std::time::Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && start.elapsed() < patience {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let _ended = self.child.kill().and_then(|()| self.child.wait());
    }
}
