//! Containers of an image from a layout or an archive, without an engine: unpacked for the
//! recording, and run in our own sandbox.
//!
//! The sandbox has mount and PID namespaces of its own and the host's network. It is no security
//! boundary: an untrusted image must be recorded with an engine.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use engine::{Follow, Followed, ImageName, LocalImage, LocalLayer};
use oci::RunConfig;

use crate::container_engine::{Engine, Running, Start};
use crate::own_check::OwnCheck;
use crate::sandbox::{Identity, Sandbox, user};
use crate::undo::{Guard, Undo};
use crate::unpack;
use crate::until::{Until, port_answers};
use host::interrupt::Interrupt;
use host::own_dir::OwnDir;

/// The search path of an image that sets none: Docker's.
const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// How the directories begin that images are unpacked in.
pub const PREFIX: &str = "yolofs-record-";

/// Where its layers are, in that directory.
const LAYERS: &str = "layers";

/// Where util-linux is installed.
const NSENTER: [&str; 3] = ["/usr/bin/nsenter", "/bin/nsenter", "/usr/local/bin/nsenter"];

/// An unpacked image.
#[derive(Debug)]
pub(crate) struct Unpacked {
    image: LocalImage,
    /// `layers/0`, `layers/1` from the bottom, and `root` for the sandbox.
    dir: OwnDir,
}

impl Unpacked {
    /// Unpacks an image below a scratch directory that other users cannot enter, in a separate, confined
    /// process. The guard removes the directory.
    ///
    /// # Errors
    /// If the image or a layer of it is damaged, malicious or too large, the disk is full, or other users can
    /// replace what is in the scratch directory.
    pub(crate) fn open(
        image: &ImageName,
        scratch: &Path,
        guard: &mut Guard,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Self> {
        OwnDir::sweep(scratch, PREFIX);
        let dir = OwnDir::make(scratch, PREFIX).context("choosing a directory (`scratch`)")?;
        let path = dir.path().to_owned();
        guard.promise(Undo::RemoveDir { dir: path })?;
        dir.make_dir(Path::new(LAYERS))?;
        let found = unpack::by_process(image, &dir.path().join(LAYERS), interrupt)?;
        dir.make_dir(Path::new("root"))?;
        let layers = found.layers.iter().enumerate();
        let layers = layers.map(|(number, diff_id)| LocalLayer {
            diff_id: *diff_id,
            dir: dir.path().join(LAYERS).join(number.to_string()),
        });
        Ok(Self {
            image: LocalImage {
                reference: found.name.clone().unwrap_or_else(|| found.id.to_string()),
                names: found.name.into_iter().collect(),
                image: found.id,
                manifest: found.manifest,
                layers: layers.collect(),
                config: found.config,
            },
            dir,
        })
    }
}

/// The environment of a container.
fn environment(config: &RunConfig) -> Vec<(String, String)> {
    let given = config.env.iter().map(String::as_str);
    let all = std::iter::once(PATH).chain(given); // a later one wins
    all.filter_map(|pair| pair.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

impl Engine for Unpacked {
    fn image(&self) -> &LocalImage {
        &self.image
    }

    fn check_is_there(&self) -> anyhow::Result<()> {
        let dir = self.dir.path();
        ensure!(
            dir.exists(),
            "{} was removed during the recording",
            dir.display()
        );
        Ok(())
    }

    fn promise(&self, _guard: &mut Guard, _runs: u16) -> anyhow::Result<()> {
        Ok(()) // the kernel ends the sandbox with us
    }

    fn start(&self, start: &Start<'_>) -> anyhow::Result<Box<dyn Running>> {
        ensure!(
            start.options.is_empty(),
            "`run_args` is for images that an engine runs, and this one runs without an engine: leave it out, or record the image \
             from Docker or containerd"
        );
        if let Until::Tcp(port) = start.until {
            ensure!(
                !port_answers(*port),
                "something listens on port {port} already, and the image is run in the same \
                 network: stop it first"
            );
        }
        let config = &self.image.config;
        let command = config.argv(start.command);
        if command.is_empty() {
            bail!("the image has no command: give one, as in bootimg record IMAGE -- COMMAND");
        }
        let workdir = if config.working_dir.is_empty() {
            PathBuf::from("/")
        } else {
            PathBuf::from(&config.working_dir)
        };
        let identity = Identity {
            user: config.user.clone(),
            workdir,
        };
        let count = self.image.layers.len();
        let lower: Vec<String> = (0..count).rev().map(|number| number.to_string()).collect();
        let sandbox = Sandbox {
            base: &self.dir.path().join(LAYERS),
            lower: &lower,
            scratch: &self.dir.path().join("root"),
            identity: &identity,
            command: &command,
        };
        let mut program = sandbox.program();
        program.env_clear().envs(environment(config));
        let started = Instant::now();
        Ok(Box::new(Process {
            follow: Follow::start("starting the image's command", program)?,
            started,
            check: OwnCheck::new(config),
            config: config.clone(),
        }))
    }
}

/// The image's command in the sandbox.
#[derive(Debug)]
struct Process {
    follow: Follow,
    started: Instant,
    check: OwnCheck,
    config: RunConfig,
}

impl Running for Process {
    fn started(&self) -> Instant {
        self.started
    }

    fn output(&mut self, patience: Duration) -> Followed {
        self.follow.next(patience)
    }

    fn exit_code(&mut self) -> anyhow::Result<Option<i64>> {
        Ok(self.follow.exit_code()?.map(i64::from))
    }

    fn is_healthy(&mut self) -> anyhow::Result<bool> {
        let (first, config) = (self.follow.pid(), &self.config);
        self.check.poll(|_, command| {
            // Until there is a process that has the image as its root, there is nothing to check.
            match child_of(first) {
                Some(inside) => Ok(Some(enter(inside, config, command)?)),
                None => Ok(None),
            }
        })
    }

    fn pid(&mut self) -> anyhow::Result<Option<u32>> {
        Ok(child_of(self.follow.pid()))
    }

    fn kill(&mut self) -> anyhow::Result<()> {
        self.follow.kill(); // and the kernel what is in its namespaces
        Ok(())
    }
}

/// Returns the first child of a process (proc_tid_children(5)), if its root is no longer the
/// host's: a health check of the image must see the image only.
fn child_of(pid: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    let child: u32 = children.split_whitespace().next()?.parse().ok()?;
    let device = |path: &str| fs::metadata(path).map(|it| it.dev()).ok();
    let inside = device(&format!("/proc/{child}/root/"))?;
    (Some(inside) != device("/")).then_some(child)
}

/// Executes a command beside the first process of a sandbox, as the image's user.
fn enter(pid: u32, config: &RunConfig, command: &[String]) -> anyhow::Result<Follow> {
    // By its path: the search path below is the image's.
    let mut places = NSENTER.iter().filter(|path| Path::new(path).exists());
    let nsenter = places.next().context("nsenter is not installed")?;
    let mut program = Command::new(nsenter);
    program.args(["--target", &pid.to_string(), "--mount", "--pid"]);
    if !config.user.is_empty() {
        let root = PathBuf::from(format!("/proc/{pid}/root"));
        let ids = user::resolve(&root, &config.user)?;
        let (uid, gid) = (ids.uid.to_string(), ids.gid.to_string());
        program.args(["--setuid", &uid, "--setgid", &gid]);
    }
    program.arg("--").args(command);
    program.env_clear().envs(environment(config));
    Ok(Follow::start("checking the image's health", program)?)
}
