//! `ctr run`, taken apart: with containerd's own snapshotter, with ours, and with ours when what
//! containers write is in memory.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::Value;

use super::containerd::{Containerd, Setup};
use super::launch::{DEADLINE, is_runtime};
use super::phases::{self, Meter, Parts};
use super::probe;
use super::program::Program;
use crate::process::{Guard, run_ok, wait_for};
use crate::programs::{Programs, json};

/// Unpacking an image, recording it, or removing a container.
const COMMAND_DEADLINE: Duration = Duration::from_secs(300);
/// Reading boot images from the store and pushing them into the page cache.
const SERVE_DEADLINE: Duration = Duration::from_secs(120);
/// containerd's namespace.
const NAMESPACE: &str = "bench";
/// The container.
const NAME: &str = "phases";
/// What `--upper` is, where it is.
const UPPER: &str = "tmpfs,max=256M";

/// Who keeps a container's root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeper {
    /// containerd's own snapshotter.
    Overlayfs,
    /// `yolofs snapshotter`.
    Yolofs,
    /// `yolofs snapshotter`, with what containers write on a tmpfs.
    YolofsTmpfs,
}

impl Keeper {
    /// All of them, in the order of a table.
    pub const ALL: [Self; 3] = [Self::Overlayfs, Self::Yolofs, Self::YolofsTmpfs];

    const fn snapshotter(self) -> &'static str {
        match self {
            Self::Overlayfs => "overlayfs",
            Self::Yolofs | Self::YolofsTmpfs => "yolofs",
        }
    }

    const fn upper(self) -> Option<&'static str> {
        match self {
            Self::Overlayfs | Self::Yolofs => None,
            Self::YolofsTmpfs => Some(UPPER),
        }
    }
}

impl fmt::Display for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Overlayfs => f.write_str("overlayfs"),
            Self::Yolofs => f.write_str("yolofs"),
            Self::YolofsTmpfs => write!(f, "yolofs, --upper {UPPER}"),
        }
    }
}

/// A program in a containerd of its own, whose data is on a stage.
#[derive(Debug)]
pub struct Ctr {
    keeper: Keeper,
    program: Program,
    programs: Programs,
    data: PathBuf,
    home: PathBuf,
    /// How many of its layers have boot images.
    served: usize,
}

/// The same, with its daemons running.
#[derive(Debug)]
pub struct CtrRunning<'a> {
    ctr: &'a Ctr,
    containerd: Containerd,
}

impl Ctr {
    /// Unpacks the image in `archive`, and has its boot recorded if boot images are used. `data` is
    /// on the stage, `home` is for the rest.
    ///
    /// # Errors
    /// If that fails.
    pub fn make(
        keeper: Keeper,
        program: Program,
        programs: &Programs,
        archive: &OsStr,
        (data, home): (PathBuf, PathBuf),
    ) -> anyhow::Result<Self> {
        let store = home.join("store");
        fs::create_dir_all(&store).with_context(|| format!("making {}", store.display()))?;
        let mut ctr = Self {
            keeper,
            program,
            programs: programs.with_store(&store),
            data,
            home,
            served: 0,
        };
        let running = ctr.start_daemons()?;
        let mut import = running.client(&["images", "import", "--snapshotter"]);
        import.arg(keeper.snapshotter()).arg(archive);
        run_ok(import, COMMAND_DEADLINE).context("importing the image")?;
        let served = match keeper {
            Keeper::Overlayfs => 0,
            Keeper::Yolofs | Keeper::YolofsTmpfs => running.record()?,
        };
        drop(running);
        ctr.served = served;
        Ok(ctr)
    }

    /// Starts the daemons; what is served from boot images is in the page cache then.
    ///
    /// # Errors
    /// If they do not start.
    pub fn start(&self) -> anyhow::Result<CtrRunning<'_>> {
        let running = self.start_daemons()?;
        running.wait_prewarmed()?;
        Ok(running)
    }

    fn start_daemons(&self) -> anyhow::Result<CtrRunning<'_>> {
        let upper = self.keeper.upper();
        let flags: Vec<_> = upper
            .map(|upper| ["--upper", upper])
            .into_iter()
            .flatten()
            .collect();
        let setup = Setup {
            data: &self.data,
            home: &self.home,
            root: &self.data.join("yolofs"),
            flags: &flags,
            pods: false,
        };
        let containerd = Containerd::start(&self.programs, &setup)?;
        let ctr = self;
        Ok(CtrRunning { ctr, containerd })
    }

    fn image(&self) -> String {
        format!("docker.io/library/{}:latest", self.program.image())
    }
}

impl CtrRunning<'_> {
    /// Starts the program in the two steps of `ctr run`, and ends the parts of it; the last is a
    /// flush of all that was written.
    ///
    /// # Errors
    /// If containerd refuses, or the program does not answer.
    pub fn run(&self, meter: &mut Meter<'_>) -> anyhow::Result<Vec<phases::Phase>> {
        let mut parts = Parts::begin(meter)?;
        let container = Container { running: self };
        let mut create = self.client(&["containers", "create", "--snapshotter"]);
        create.args([self.ctr.keeper.snapshotter(), &self.ctr.image(), NAME]);
        run_ok(create, COMMAND_DEADLINE)?;
        parts.end("ctr containers create")?;
        let mut start = self.client(&["tasks", "start", "--detach", "--null-io", NAME]);
        start.stdout(Stdio::null());
        let mut client = Guard::spawn(&mut start)?;
        let pid = self.first_process(&mut client)?;
        wait_for("program in the container", DEADLINE, || {
            Ok((!is_runtime(pid)).then_some(()))
        })?;
        parts.end("ctr tasks start, until the program runs")?;
        probe::ask(self.ctr.program, pid, DEADLINE)?;
        parts.end("the program, until it answers")?;
        let status = client.wait_until(Instant::now() + DEADLINE)?;
        ensure!(status.success(), "ctr tasks start failed ({status})");
        nix::unistd::sync();
        parts.end("what was written until then is flushed")?;
        drop(container);
        Ok(parts.ended)
    }

    /// Returns the files that are waited for to be written while `work` is done, as
    /// [`phases::synced`].
    ///
    /// # Errors
    /// If strace is missing, or `work` fails.
    pub fn synced(
        &self,
        work: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<BTreeMap<String, u64>> {
        phases::synced(
            &self.containerd.pids(),
            &self.ctr.data,
            &self.ctr.home,
            work,
        )
    }

    fn client(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("ctr");
        command.arg("--address").arg(self.containerd.address());
        command.args(["--namespace", NAMESPACE]).args(arguments);
        command
    }

    /// Has the boot recorded, and returns how many layers have boot images then.
    fn record(&self) -> anyhow::Result<usize> {
        let mut command = self.ctr.programs.bootimg();
        command.arg("record");
        command.arg(format!("containerd://{NAMESPACE}/{}", self.ctr.image()));
        command.arg("--containerd").arg(self.containerd.address());
        command.args(["--snapshotter", self.ctr.keeper.snapshotter()]);
        command.args(["--runs", "3", "--until", &self.ctr.program.until()]);
        let recorded: Value = json(command).context("recording the boot")?;
        let layers = recorded["layers"].as_array().into_iter().flatten();
        Ok(layers.filter(|layer| !layer["kept"].is_null()).count())
    }

    fn wait_prewarmed(&self) -> anyhow::Result<()> {
        wait_for("prewarmed layers", SERVE_DEADLINE, || {
            let mut command = self.ctr.programs.yolofs();
            command.args(["snapshotter", "status"]);
            let all: Value = json(command)?;
            let root = self.containerd.root();
            let ours = all.as_array().into_iter().flatten();
            let ours = ours
                .filter(|status| status["root"].as_str().map(PathBuf::from) == Some(root.clone()));
            let layers: Vec<_> = ours
                .flat_map(|status| status["layers"].as_array().into_iter().flatten())
                .collect();
            let is_warm = |layer: &&Value| layer["boot"]["prewarm"] == "done";
            Ok((layers.len() == self.ctr.served && layers.iter().all(is_warm)).then_some(()))
        })
    }

    fn first_process(&self, client: &mut Guard) -> anyhow::Result<u32> {
        let pid_file = self.containerd.pid_file(NAMESPACE, NAME);
        wait_for("process of the container", DEADLINE, || {
            let failed = client.ended()?.filter(|status| !status.success());
            ensure!(
                failed.is_none(),
                "ctr tasks start failed: see containerd's log"
            );
            let pid = fs::read_to_string(&pid_file).ok();
            Ok(pid.and_then(|pid| pid.trim().parse().ok()))
        })
    }
}

/// The container, removed with its owner.
struct Container<'a> {
    running: &'a CtrRunning<'a>,
}

impl Drop for Container<'_> {
    fn drop(&mut self) {
        // Not `run_ok`: that one gives up when interrupted, and this must be done all the more.
        for arguments in [
            &["tasks", "rm", "--force", NAME][..],
            &["containers", "rm", NAME],
        ] {
            match self.running.client(arguments).output() {
                Ok(done) if done.status.success() => {}
                Ok(done) => eprintln!("warning: {}", String::from_utf8_lossy(&done.stderr).trim()),
                Err(error) => eprintln!("warning: cannot run ctr: {error}"),
            }
        }
    }
}
