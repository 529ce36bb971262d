//! Pulls: a real containerd fetches an image over a slow line and unpacks it, layers on the disk, on
//! NVM, or where LASS puts them; or `yolofs pull` does both for it.

use std::fmt;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use mirror::testing::FaultProxy;
use nix::mount::MsFlags;
use nix::unistd::syncfs;
use serde::Serialize;
use serde_json::Value;
use tempfile::TempDir;

use super::cri;
use super::hot::taken_by;
use super::slow_disk::{SlowDisk, WriteRate};
use crate::boots::milliseconds;
use crate::containers::containerd::{Containerd, Setup};
use crate::namespace::Mounted;
use crate::nic::registry::Registry;
use crate::process::run_ok;
use crate::programs::{DEADLINE, Programs, json};
use crate::stage::{Access, Stage};

/// Bytes of the stage; the file is sparse.
const STAGE_BYTES: u64 = 12 << 30;

/// Where layers go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    /// All to the disk.
    Disk,
    /// All to NVM.
    Nvm,
    /// What the pull waits for to NVM, all other layers to the disk.
    Lass,
    /// `yolofs pull`: what the disk has no time for to NVM, all other layers to the disk.
    Ours,
}

impl Strategy {
    /// All of them, in the order of a table.
    pub const ALL: [Self; 4] = [Self::Disk, Self::Nvm, Self::Lass, Self::Ours];

    /// Whether layers have two places to go to.
    const fn has_choice(self) -> bool {
        matches!(self, Self::Lass | Self::Ours)
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Disk => "disk",
            Self::Nvm => "all on NVM",
            Self::Lass => "LASS",
            Self::Ours => "yolofs pull",
        })
    }
}

/// How slow the disk and the line are.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    /// What the disk writes.
    pub disk: WriteRate,
    /// Bytes a second from the registry.
    pub line: u64,
}

/// One timed pull.
#[derive(Clone, Debug, Serialize)]
pub struct Pull {
    /// Which image.
    pub image: String,
    /// Where its layers went.
    pub strategy: Strategy,
    /// Which round it was part of, from 1.
    pub round: u32,
    /// Milliseconds until all is stored.
    pub total_ms: f64,
    /// Of these, those after the last byte came.
    pub storing_ms: f64,
    /// Bytes on NVM.
    pub nvm_bytes: u64,
    /// Whether the layer that was downloaded last is the one that the manifest's sizes foretold; of
    /// [`Strategy::Lass`] only.
    pub foreseen: Option<bool>,
}

/// Where layers lie when a pull is over.
struct Stored {
    nvm_bytes: u64,
    foreseen: Option<bool>,
}

/// A registry behind a slow line, a disk that writes slowly, and NVM.
#[derive(Debug)]
pub struct DeployLab {
    // Dropped in this order.
    disk: SlowDisk,
    stage: Stage,
    nvm: Mounted,
    proxy: FaultProxy,
    _registry: Registry,
    programs: Programs,
    home: TempDir,
}

impl DeployLab {
    /// Puts images of the layout `images`/oci into a registry of its own.
    ///
    /// # Errors
    /// If an image, a program or a right is missing.
    pub fn open(images: &Path, names: &[String], bin: &Path, rates: Rates) -> anyhow::Result<Self> {
        let beside = images.parent();
        let beside = beside.context("the directory of images has no parent")?;
        let home = tempfile::Builder::new().prefix("rig.").tempdir_in(beside);
        let home = home.with_context(|| format!("making a directory in {}", beside.display()))?;
        for dir in ["stage", "nvm"] {
            fs::create_dir(home.path().join(dir)).context("making the rig's directories")?;
        }
        let registry = Registry::start_anywhere(&home.path().join("registry"))?;
        for name in names {
            push(&images.join("oci"), name, &registry)?;
        }
        let proxy = FaultProxy::start(registry.address()).context("starting the slow line")?;
        proxy.shape(Duration::ZERO, Some(rates.line));
        let file = home.path().join("deploy.ext4");
        let make = File::create(&file).and_then(|file| file.set_len(STAGE_BYTES));
        make.with_context(|| format!("making {}", file.display()))?;
        let mut mkfs = Command::new("mkfs.ext4");
        mkfs.args([
            "-q",
            "-F",
            "-E",
            "lazy_itable_init=0,lazy_journal_init=0,nodiscard",
        ])
        .arg(&file);
        run_ok(mkfs, DEADLINE)?;
        let stage = Stage::mount(&file, &home.path().join("stage"), Access::ReadWrite)?;
        let nvm = home.path().join("nvm");
        let nvm = Mounted::new("tmpfs", &nvm, "tmpfs", MsFlags::empty(), "mode=0755")?;
        Ok(Self {
            disk: SlowDisk::new(stage.device_number()?, rates.disk)?,
            stage,
            nvm,
            proxy,
            _registry: registry,
            programs: Programs::new(bin, home.path())?,
            home,
        })
    }

    /// Pulls an image once, into a containerd that has nothing yet.
    ///
    /// # Errors
    /// If anything on the way fails.
    pub fn pull(&self, image: &str, strategy: Strategy, round: u32) -> anyhow::Result<Pull> {
        let fresh = Fresh::make(self, strategy)?;
        let containerd = fresh.start(self, strategy)?;
        nix::unistd::sync();
        let name = format!("{}/{image}:latest", self.proxy.address());
        self.disk.impose()?;
        let began = Instant::now();
        let pulled = match strategy {
            Strategy::Ours => self.pull_ourselves(&containerd, &name),
            _ => cri::pull(containerd.address(), &name),
        };
        pulled.with_context(|| format!("pulling {image} ({strategy})"))?;
        let on_disk = File::open(self.stage.path()).context("opening the disk")?;
        syncfs(on_disk).context("waiting for the disk")?;
        let ended = Instant::now();
        self.disk.lift()?;
        let downloaded = self.proxy.last_sent().context("nothing was downloaded")?;
        let stored = self.stored(&containerd, strategy)?;
        Ok(Pull {
            image: image.to_owned(),
            strategy,
            round,
            total_ms: milliseconds(ended - began),
            storing_ms: milliseconds(ended.saturating_duration_since(downloaded)),
            nvm_bytes: stored.nvm_bytes,
            foreseen: stored.foreseen,
        })
    }

    /// Has our own puller do it, and keep the blobs, as containerd does.
    fn pull_ourselves(&self, containerd: &Containerd, name: &str) -> anyhow::Result<()> {
        let mut pull = self.programs.yolofs();
        pull.args(["pull", "--blobs", "keep", "--plain-http", "--address"]);
        pull.arg(containerd.address()).arg(name);
        run_ok(pull, DEADLINE).map(drop)
    }

    /// Pulls one image after another, as a node has that is up for a while, until the snapshotter has
    /// seen how fast the disk is.
    ///
    /// # Errors
    /// If a pull fails.
    pub fn acquaint(&self, names: &[String]) -> anyhow::Result<()> {
        for name in names {
            self.pull(name, Strategy::Lass, 0)?;
            if self.knows_disk()? {
                break;
            }
        }
        Ok(())
    }

    fn knows_disk(&self) -> anyhow::Result<bool> {
        let entries = fs::read_dir(self.programs.run_dir()).context("reading the run directory")?;
        let mut paths = entries.flatten().map(|entry| entry.path());
        Ok(paths.any(|path| path.extension().is_some_and(|of| of == "rate")))
    }

    fn stored(&self, containerd: &Containerd, strategy: Strategy) -> anyhow::Result<Stored> {
        if !strategy.has_choice() {
            let nvm_bytes = match strategy {
                Strategy::Nvm => taken_by(&containerd.root().join("snapshots"))?,
                _ => 0,
            };
            return Ok(Stored {
                nvm_bytes,
                foreseen: None,
            });
        }
        let mut status = self.programs.yolofs();
        status.args(["snapshotter", "status"]);
        // Nobody else has the rig's run directory.
        let said: Value = json(status)?;
        let number = |what: &str| {
            let number = said.pointer(&format!("/0/layers_fast/{what}"));
            let number = number.and_then(Value::as_u64);
            number.with_context(|| format!("yolofs snapshotter status said {said}"))
        };
        let foreseen = match (number("foreseen")?, number("not_foreseen")?) {
            (0, 0) => None,
            (_, wrong) => Some(wrong == 0),
        };
        Ok(Stored {
            nvm_bytes: number("used_bytes")?,
            foreseen,
        })
    }
}

/// The directories of one pull, which go with it.
struct Fresh {
    data: PathBuf,
    home: PathBuf,
    root: PathBuf,
    fast: PathBuf,
}

impl Fresh {
    fn make(lab: &DeployLab, strategy: Strategy) -> anyhow::Result<Self> {
        let data = lab.stage.path().join("pull");
        let root = match strategy {
            Strategy::Nvm => lab.nvm.path().join("root"),
            Strategy::Disk | Strategy::Lass | Strategy::Ours => data.join("yolofs"),
        };
        let home = lab.home.path().join("containerd");
        let fast = lab.nvm.path().join("layers");
        for dir in [&data, &fast] {
            fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
        }
        Ok(Self {
            data,
            home,
            root,
            fast,
        })
    }

    fn start(&self, lab: &DeployLab, strategy: Strategy) -> anyhow::Result<Containerd> {
        let containerd_root = self.data.join("containerd");
        let containerd_root = containerd_root
            .to_str()
            .context("the rig's home is not UTF-8")?;
        let fast = format!("{},max=8G", self.fast.display());
        let flags = match strategy.has_choice() {
            false => Vec::new(),
            true => vec!["--layers-fast", &fast, "--containerd-root", containerd_root],
        };
        Containerd::start(
            &lab.programs,
            &Setup {
                data: &self.data,
                home: &self.home,
                root: &self.root,
                flags: &flags,
                pods: true,
            },
        )
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        for dir in [&self.data, &self.home, &self.root, &self.fast] {
            match fs::remove_dir_all(dir) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    eprintln!("warning: cannot remove {}: {error}", dir.display());
                }
                _ => {}
            }
        }
    }
}

fn push(layout: &Path, name: &str, registry: &Registry) -> anyhow::Result<()> {
    let mut skopeo = Command::new("skopeo");
    skopeo.args([
        "copy",
        "--quiet",
        "--insecure-policy",
        "--dest-tls-verify=false",
    ]);
    skopeo.arg(format!("oci:{}:{name}", layout.display()));
    skopeo.arg(format!("docker://{}/{name}:latest", registry.address()));
    let pushed = run_ok(skopeo, DEADLINE).with_context(|| format!("pushing {name}"))?;
    ensure!(pushed.status.success(), "skopeo: {}", pushed.errors);
    Ok(())
}
