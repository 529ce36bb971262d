//! A containerd of the rig's own, with our snapshotter beside its own ones.

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::interrupt;
use crate::process::{Guard, wait_for};
use crate::programs::Programs;

/// Both daemons listen within a second.
const START_DEADLINE: Duration = Duration::from_secs(60);
/// Where containerd keeps what a reboot ends, in the rig's home.
const STATE: &str = "state";
const STOP_DEADLINE: Duration = Duration::from_secs(30);

/// What the two daemons are started with.
#[derive(Clone, Copy, Debug)]
pub struct Setup<'a> {
    /// Where containerd keeps its data.
    pub data: &'a Path,
    /// Where everything else goes.
    pub home: &'a Path,
    /// Where the snapshotter keeps its data.
    pub root: &'a Path,
    /// More flags of the snapshotter.
    pub flags: &'a [&'a str],
    /// Whether containerd answers kubelets, too.
    pub pods: bool,
}

/// A running containerd, and a running `yolofs snapshotter`.
#[derive(Debug)]
pub struct Containerd {
    containerd: Guard,
    snapshotter: Guard,
    address: PathBuf,
    root: PathBuf,
    state: PathBuf,
}

impl Containerd {
    /// Starts both.
    ///
    /// # Errors
    /// If one is not installed, or does not listen; their logs are in the setup's home.
    pub fn start(programs: &Programs, setup: &Setup<'_>) -> anyhow::Result<Self> {
        let Setup { data, home, .. } = *setup;
        for dir in [data, home] {
            fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
        }
        let (address, ours) = (home.join("containerd.sock"), home.join("snapshotter.sock"));
        let config = home.join("config.toml");
        fs::write(&config, configuration(setup, &address, &ours))
            .with_context(|| format!("writing {}", config.display()))?;
        let mut command = programs.yolofs();
        command.arg("snapshotter").arg("--address").arg(&ours);
        command.arg("--root").arg(setup.root).args(setup.flags);
        command.arg("--containerd").arg(&address);
        let mut snapshotter = spawn(command, &home.join("snapshotter.log"))?;
        listening(&mut snapshotter, &ours)?;
        let mut command = Command::new("containerd");
        command.arg("--config").arg(&config);
        let mut containerd = spawn(command, &home.join("containerd.log"))?;
        listening(&mut containerd, &address)?;
        Ok(Self {
            containerd,
            snapshotter,
            address,
            root: setup.root.to_owned(),
            state: home.join(STATE),
        })
    }

    /// Returns the snapshotter's root.
    #[must_use]
    pub fn root(&self) -> PathBuf {
        self.root.clone()
    }

    /// Returns the process ids of containerd and of the snapshotter.
    #[must_use]
    pub fn pids(&self) -> [u32; 2] {
        [self.containerd.pid(), self.snapshotter.pid()]
    }

    /// Returns the file that holds the process id of a container's first process, once there is
    /// one.
    #[must_use]
    pub fn pid_file(&self, namespace: &str, container: &str) -> PathBuf {
        let tasks = self.state.join("io.containerd.runtime.v2.task");
        tasks.join(namespace).join(container).join("init.pid")
    }

    /// Returns the socket of containerd.
    #[must_use]
    pub fn address(&self) -> &Path {
        &self.address
    }
}

fn configuration(setup: &Setup<'_>, address: &Path, ours: &Path) -> String {
    let (root, state) = (setup.data.join("containerd"), setup.home.join(STATE));
    let mut text = format!("version = 2\nroot = {root:?}\nstate = {state:?}\n");
    if !setup.pods {
        text += "disabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n";
    }
    text += &format!(
        "[grpc]\naddress = {address:?}\n\
         [proxy_plugins.yolofs]\ntype = \"snapshot\"\naddress = {ours:?}\n"
    );
    if setup.pods {
        // Who runs this may have no right to lower an OOM score, as containerd does otherwise.
        let cni = setup.home.join("cni");
        text += &format!(
            "[plugins.\"io.containerd.grpc.v1.cri\"]\nrestrict_oom_score_adj = true\n\
             [plugins.\"io.containerd.grpc.v1.cri\".containerd]\nsnapshotter = \"yolofs\"\n\
             [plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir = {cni:?}\nconf_dir = {cni:?}\n"
        );
    }
    text
}

fn spawn(mut command: Command, log: &Path) -> anyhow::Result<Guard> {
    let output = File::create(log).with_context(|| format!("making {}", log.display()))?;
    command
        .stdin(Stdio::null())
        .stdout(output.try_clone().context("sharing the log")?)
        .stderr(output)
        .process_group(0);
    interrupt::unblocked(|| Guard::spawn(&mut command))?
}

fn listening(daemon: &mut Guard, socket: &Path) -> anyhow::Result<()> {
    wait_for("daemon that listens", START_DEADLINE, || {
        if let Some(status) = daemon.ended()? {
            bail!(
                "what should listen at {} ended ({status})",
                socket.display()
            );
        }
        let connected = std::os::unix::net::UnixStream::connect(socket);
        Ok(connected.is_ok().then_some(()))
    })
}

impl Drop for Containerd {
    fn drop(&mut self) {
        for daemon in [&mut self.containerd, &mut self.snapshotter] {
            if let Ok(pid) = i32::try_from(daemon.pid()) {
                let _it_may_have_ended = kill(Pid::from_raw(pid), Signal::SIGTERM);
            }
            let deadline = Instant::now() + STOP_DEADLINE;
            while matches!(daemon.ended(), Ok(None)) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}
