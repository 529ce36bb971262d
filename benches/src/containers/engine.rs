//! A Docker daemon of the rig's own: its data on the stage, its sockets in the rig's home.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::os::unix::process::CommandExt as _;

use crate::interrupt;
use crate::process::{Guard, run_ok, wait_for};

/// A daemon answers in a second; on a disk that is slow, its databases take longer.
const START_DEADLINE: Duration = Duration::from_secs(120);
/// It stops its containers first.
const STOP_DEADLINE: Duration = Duration::from_secs(60);
/// One command of the client; removing a container that has just been started takes longest.
const COMMAND_DEADLINE: Duration = Duration::from_secs(300);
/// Where Debian has the client, which fits its daemon: another may come first in the path.
const DEBIAN: &str = "/usr/bin";
/// An image without anything to read: running it shows the engine's own way.
const EMPTY_IMAGE: &str = "warm";

/// A running dockerd.
#[derive(Debug)]
pub struct Docker {
    daemon: Guard,
    socket: PathBuf,
    exec_root: PathBuf,
    data_root: PathBuf,
}

impl Docker {
    /// Starts a daemon with this data directory, and everything else in the directory `home`.
    ///
    /// # Errors
    /// If it is not installed, or does not answer; its log is in `home`.
    pub fn start(data_root: &Path, home: &Path) -> anyhow::Result<Self> {
        Self::start_by(Command::new("dockerd"), data_root, home)
    }

    /// As [`start`](Self::start), by a command that ends with `dockerd` and flags of it.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_by(mut command: Command, data_root: &Path, home: &Path) -> anyhow::Result<Self> {
        fs::create_dir_all(home).with_context(|| format!("making {}", home.display()))?;
        let (socket, exec_root) = (home.join("docker.sock"), home.join("exec"));
        let log = home.join("dockerd.log");
        let output = File::create(&log).with_context(|| format!("making {}", log.display()))?;
        command.arg("--data-root").arg(data_root);
        command.arg("--exec-root").arg(&exec_root);
        command.arg("--pidfile").arg(home.join("dockerd.pid"));
        command.arg("--host").arg(host(&socket));
        // No bridge: two of the machine's daemons would have to agree on it.
        command.args(["--iptables=false", "--ip6tables=false", "--bridge=none"]);
        command.args(["--storage-driver=overlay2"]);
        command
            .stdin(Stdio::null())
            .stdout(output.try_clone().context("sharing the log")?)
            .stderr(output)
            .process_group(0);
        let mut docker = Self {
            // Containers inherit what it blocks, and would not hear that they are to stop.
            daemon: interrupt::unblocked(|| Guard::spawn(&mut command))??,
            socket,
            exec_root,
            data_root: data_root.to_owned(),
        };
        wait_for("answer of dockerd", START_DEADLINE, || {
            if let Some(status) = docker.daemon.ended()? {
                bail!("dockerd ended ({status}): see {}", log.display());
            }
            let asked = docker.client().args(["version"]).output();
            Ok(asked
                .is_ok_and(|asked| asked.status.success())
                .then_some(()))
        })?;
        Ok(docker)
    }

    /// Returns the client, which talks to this daemon.
    #[must_use]
    pub fn client(&self) -> Command {
        let debian = Path::new(DEBIAN).join("docker");
        let program = if debian.exists() {
            debian
        } else {
            PathBuf::from("docker")
        };
        let mut command = Command::new(program);
        command.arg("--host").arg(host(&self.socket));
        command.stdin(Stdio::null());
        command
    }

    /// Returns the search path of programs that look for the client: they are to find the same.
    #[must_use]
    pub fn search_path(&self) -> OsString {
        let mut path = OsString::from(DEBIAN);
        if let Some(usual) = std::env::var_os("PATH") {
            path.push(":");
            path.push(usual);
        }
        path
    }

    /// Runs the client to its end, and returns what it said.
    ///
    /// # Errors
    /// If it fails.
    pub fn call(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let mut command = self.client();
        command.args(arguments);
        Ok(run_ok(command, COMMAND_DEADLINE)?.output.trim().to_owned())
    }

    /// Brings all files of the engine's own into memory: its programs and databases, by running a
    /// container of an empty image, and what it notes of images, by reading all of its directory
    /// but the layers' content.
    ///
    /// # Errors
    /// If it fails.
    pub fn warm_up(&self) -> anyhow::Result<()> {
        read_all(&self.data_root).context("reading the engine's own files")?;
        self.call(&["run", "--rm", "--network=none", EMPTY_IMAGE])
            .map(drop)
    }

    /// Returns the daemon's address, as `DOCKER_HOST` has it.
    #[must_use]
    pub fn address(&self) -> String {
        host(&self.socket)
    }

    /// Returns the daemon's data directory.
    #[must_use]
    pub fn data_root(&self) -> &Path {
        &self.data_root
    }

    /// Returns the process ids of dockerd and of its containerd.
    ///
    /// # Errors
    /// If containerd's is not known.
    pub fn pids(&self) -> anyhow::Result<[u32; 2]> {
        let file = self.exec_root.join("containerd/containerd.pid");
        let text =
            fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
        let containerd = text
            .trim()
            .parse()
            .context("containerd's pid file has no number")?;
        Ok([self.daemon.pid(), containerd])
    }

    /// Returns the file that holds the process id of a container's first process, once there is one.
    #[must_use]
    pub fn pid_file(&self, container: &str) -> PathBuf {
        let tasks = "containerd/daemon/io.containerd.runtime.v2.task/moby";
        self.exec_root.join(tasks).join(container).join("init.pid")
    }
}

impl Drop for Docker {
    fn drop(&mut self) {
        // It must stop its own children; killed, it would leave containerd and the containers.
        if let Ok(pid) = i32::try_from(self.daemon.pid()) {
            let _it_may_have_ended = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
        let deadline = Instant::now() + STOP_DEADLINE;
        while matches!(self.daemon.ended(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Reads everything below `dir`, except what is content of layers and containers.
fn read_all(dir: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let (kind, path) = (entry.file_type()?, entry.path());
        let is_content = entry.file_name() == "diff" || entry.file_name() == "merged";
        if kind.is_dir() && !is_content {
            read_all(&path)?;
        } else if kind.is_file() {
            fs::read(&path)?;
        } else if kind.is_symlink() {
            fs::read_link(&path)?;
        }
    }
    Ok(())
}

fn host(socket: &Path) -> String {
    format!("unix://{}", socket.display())
}
