//! A containerd of its own for a test.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::{Lab, ok, output, until};

/// The namespace that the tests work in.
pub(crate) const NAMESPACE: &str = "tests";

/// A running containerd; stopped, with its containers, when it is dropped.
#[derive(Debug)]
pub(crate) struct ContainerdRig {
    dir: PathBuf,
    child: Child,
}

impl ContainerdRig {
    /// Starts one with its directories in the lab, and waits until it answers.
    pub(crate) fn start(lab: &Lab) -> Self {
        let dir = lab.make_dir("containerd");
        let config = format!(
            "version = 2\nroot = \"{0}/root\"\nstate = \"{0}/state\"\n\
             disabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n\
             [grpc]\naddress = \"{0}/sock\"\n",
            dir.display()
        );
        fs::write(dir.join("config.toml"), config).unwrap();
        let log = File::create(dir.join("log")).unwrap();
        let child = Command::new("containerd")
            .arg("--config")
            .arg(dir.join("config.toml"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .expect("containerd is not installed: apt-get install containerd");
        let mut rig = Self { dir, child };
        until("containerd to answer", || {
            let log = || fs::read_to_string(rig.dir.join("log")).unwrap_or_default();
            let status = rig.child.try_wait().unwrap();
            assert!(status.is_none(), "containerd ended: {}", log());
            output(rig.client().arg("version")).status.success()
        });
        rig
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.join("sock")
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.dir.join("root")
    }

    fn client(&self) -> Command {
        let mut command = Command::new("ctr");
        let socket = self.socket();
        command
            .arg("--address")
            .arg(socket)
            .args(["--namespace", NAMESPACE]);
        command
    }

    /// Runs containerd's client, which must succeed.
    pub(crate) fn ctr(&self, args: &[&str]) -> String {
        ok(self.client().args(args)).trim_end().to_owned()
    }

    /// Loads and unpacks what `docker save` wrote.
    pub(crate) fn import(&self, archive: &Path) {
        self.ctr(&["images", "import", archive.to_str().unwrap()]);
    }
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
