//! `yolofs block export`: a device for QEMU, libnbd and virtual machines.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use blockexport::nbd::{NbdConfig, NbdExporter};
use blockexport::vhost_user::{VhostUserConfig, VhostUserExporter};
use blockexport::{Export, Exporter, Place};
use blockimages::{Background, DeviceFile, Ending, FILE_NAME, Start, StartRecorder, manage};
use blocks::{BlockDevice, DeviceAccess};
use bootstore::store::StoreSettings;
use host::interrupt::Interrupt;
use mounting::assembly::waiter_of;
use mounting::confinement::block_mounted;
use mounting::mounter::Helper;
use node_api::image::Prefetch;
use serde::Serialize;
use yolofs::{Busy, Config, FileSystem, Mount, MountOptions, Readahead};

use super::access::Exporting;
use super::mount_image::MountedByOther;
use super::ublk_device::OwnedByOther;
use super::{ImageArg, access, plan};
use crate::exit::Outcome;
use crate::output::{FormatArg, print};

/// How far the kernel reads ahead in a mount of an image whose start is known, or recorded.
const PLANNED_READAHEAD_KIB: u32 = 16;

/// How long reads that wait for a registry may take after an interrupt.
const LAST_READS: Duration = Duration::from_secs(2);

/// How long a mount that is in use is waited for.
const UNMOUNT_PATIENCE: Duration = Duration::from_secs(1);

/// Serve an image over NBD, as a block device or a file, or as the disk of a virtual machine, until interrupted
///
/// It can be killed and started again on the same socket: clients that reconnect lose nothing. Users of a block device
/// (--ublk) wait meanwhile.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct ExportArgs {
    #[command(flatten)]
    image: ImageArg,
    /// Serve NBD on this unix socket
    #[arg(long, value_name = "SOCKET", required_unless_present_any = ["vhost_user", "ublk", "mount"])]
    nbd: Option<PathBuf>,
    /// Serve vhost-user-blk on this unix socket
    #[arg(long, value_name = "SOCKET", conflicts_with = "nbd")]
    vhost_user: Option<PathBuf>,
    /// Make a block device of this machine, and this symbolic link to it (root, Linux 6.9, the module ublk_drv)
    #[arg(long, value_name = "LINK", conflicts_with_all = ["nbd", "vhost_user"])]
    ublk: Option<PathBuf>,
    /// Mount a directory here whose file `disk` is the device, to read only: for QEMU, for `mount -t erofs`, or
    /// for a loop device
    #[arg(long, value_name = "DIR", conflicts_with_all = ["nbd", "vhost_user", "ublk", "writable"])]
    mount: Option<PathBuf>,
    /// Mount the EROFS of the image here, too
    #[arg(long, value_name = "DIR", requires = "mount")]
    erofs: Option<PathBuf>,
    /// Let clients write to a raw disk; an image with a writable layer is served writable without it
    #[arg(long)]
    writable: bool,
    /// Fetch first what this trace says that a start reads: overlaybd's format, or AgentENV's [default: what the
    /// store knows of the image's layers]
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// Fetch only what is read first
    #[arg(long, conflicts_with = "plan")]
    no_plan: bool,
    /// When the export ends, keep which blocks of layers were read as their plan in the store
    #[arg(long)]
    record: bool,
    #[command(flatten)]
    background: BackgroundFlag,
    /// When the export ends, write which blocks of layers were read to this file, as overlaybd's trace
    #[arg(long, value_name = "FILE")]
    record_trace: Option<PathBuf>,
    #[command(flatten)]
    format: FormatArg,
}

/// What is fetched of an image whose layers come through a cache.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct BackgroundFlag {
    /// What is fetched, with a cache, that nobody has read yet
    #[arg(
        long = "background",
        value_name = "WHAT",
        value_enum,
        default_value = "everything",
        requires = "image_cache"
    )]
    pub(super) what: BackgroundArg,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum BackgroundArg {
    /// The plan
    Plan,
    /// The plan, and then all of each layer
    Everything,
}

impl From<BackgroundArg> for Background {
    fn from(arg: BackgroundArg) -> Self {
        match arg {
            BackgroundArg::Plan => Self::Plan,
            BackgroundArg::Everything => Self::Everything,
        }
    }
}

impl From<BackgroundArg> for Prefetch {
    fn from(arg: BackgroundArg) -> Self {
        match arg {
            BackgroundArg::Plan => Self::Plan,
            BackgroundArg::Everything => Self::Everything,
        }
    }
}

/// What is served.
#[derive(Debug, Serialize)]
struct Exported {
    image: PathBuf,
    address: String,
    size: u64,
    writable: bool,
}

pub(super) fn run(args: &ExportArgs, store: &StoreSettings) -> anyhow::Result<Outcome> {
    let image = args.image.prepare()?;
    let place = Claimed::of(args)?;
    let allowed = access::export(&image, args.exporting(), store)?;
    let asks = allowed.asks;
    allowed.confine()?;
    let interrupt = Interrupt::install()?;
    let start = start(args, store)?;
    give_up_with(&interrupt, Arc::clone(&start.ending))?;
    let access = match args.writable {
        true => DeviceAccess::ReadWrite,
        false => DeviceAccess::ReadOnly,
    };
    let opened = image.open(access, args.background.what.into(), &start)?;
    let device = Arc::clone(&opened.device);
    let info = device.info();
    let export = match place {
        Claimed::Mount {
            dir,
            helper,
            mut erofs,
        } => {
            let mount = mount(dir, helper, &args.image, device, readahead(&start))?;
            let (mount, file) = (Box::new(mount), dir.join(FILE_NAME));
            block_mounted(asks)?;
            erofs.as_mut().map_or(Ok(()), MountedByOther::mount)?;
            Served::Mount { erofs, mount, file }
        }
        Claimed::Socket(exporter, place) => {
            Served::Export(exporter.serve(place, device).context("exporting")?)
        }
        Claimed::Link(link) => {
            let identity = devices::identity(args.image.path(), &*device)?;
            let exported = link.export(device, identity);
            Served::Export(Box::new(exported.context("exporting")?))
        }
    };
    let exported = Exported {
        image: args.image.path().to_owned(),
        address: export.address(),
        size: info.size,
        writable: info.access == DeviceAccess::ReadWrite,
    };
    print(args.format.format(), &exported, |exported| {
        let Exported {
            image,
            address,
            size,
            ..
        } = exported;
        format!(
            "{} ({size} bytes) is served at {address}\n",
            image.display()
        )
    })?;
    interrupt.wait();
    match export {
        Served::Export(export) => export.stop(),
        Served::Mount { erofs, mount, .. } => {
            drop(erofs);
            mount.unmount(Busy::Lazy, UNMOUNT_PATIENCE)?;
        }
    }
    if let (Some(path), Some(recorder)) = (&args.record_trace, &start.recorder) {
        manage::write_trace(path, &recorder.trace())?;
    }
    if let (true, Some(recorder)) = (args.record, &start.recorder) {
        let (file, plan) = plan::keep(store, args.image.path(), &recorder.trace())?;
        log::info!("{} bytes are in the plan {}", plan.bytes(), file.display());
    }
    Ok(Outcome::Done)
}

/// Where clients find the device; made while this process may.
enum Claimed<'a> {
    Socket(Box<dyn Exporter>, Place),
    /// Of a block device, which another process makes later.
    Link(OwnedByOther),
    Mount {
        dir: &'a Path,
        helper: Arc<Helper>,
        erofs: Option<MountedByOther>,
    },
}

impl<'a> Claimed<'a> {
    fn of(args: &'a ExportArgs) -> anyhow::Result<Self> {
        if let Some(dir) = &args.mount {
            let mounting = || format!("mounting on {}", dir.display());
            dir.metadata().with_context(mounting)?;
            let erofs = args.erofs.as_deref();
            let erofs = erofs.map(|at| MountedByOther::start(&dir.join(FILE_NAME), at));
            return Ok(Self::Mount {
                dir,
                helper: Arc::new(Helper::start(dir).with_context(mounting)?),
                erofs: erofs.transpose()?,
            });
        }
        if let Some(link) = &args.ublk {
            return Ok(Self::Link(OwnedByOther::start(link)?));
        }
        let socket = args.socket().context("naming a socket")?.to_owned();
        let exporter: Box<dyn Exporter> = match args.nbd {
            Some(_) => Box::new(NbdExporter {
                socket,
                config: NbdConfig::default(),
            }),
            None => Box::new(VhostUserExporter {
                socket,
                config: VhostUserConfig::default(),
            }),
        };
        let place = exporter.claim().context("exporting")?;
        Ok(Self::Socket(exporter, place))
    }
}

impl ExportArgs {
    /// Returns what it does besides reading its image.
    fn exporting(&self) -> Exporting<'_> {
        Exporting {
            writable: self.writable,
            socket: self.socket(),
            mounts: self.mount.is_some(),
            rings: self.ublk.is_some(),
            plan: self.plan.as_deref(),
            keeps_plan: self.record,
            trace: self.record_trace.as_deref(),
        }
    }

    /// Returns where it listens, if it does.
    fn socket(&self) -> Option<&Path> {
        self.nbd.as_deref().or(self.vhost_user.as_deref())
    }
}

fn start(args: &ExportArgs, store: &StoreSettings) -> anyhow::Result<Start> {
    let (dir, image) = (&store.dir, args.image.path());
    let (plan, data) = match &args.plan {
        Some(path) => (Some(manage::read_trace(path)?), None),
        None if args.no_plan || args.image.cache.is_none() => (None, None),
        None => {
            let plan = devices::plans::known(dir, image);
            (plan, devices::plans::known_data(dir, image))
        }
    };
    let records = args.record || args.record_trace.is_some();
    let recorder = records.then(StartRecorder::default);
    Ok(Start {
        plan,
        data,
        recorder,
        ..Start::default()
    })
}

/// Has the image's reads wait for no registry any more soon after the interrupt, nor its opening.
fn give_up_with(interrupt: &Interrupt, ending: Arc<Ending>) -> anyhow::Result<()> {
    let interrupt = interrupt.clone();
    // It ends with the process.
    let waiting = move || {
        interrupt.wait();
        ending.within(LAST_READS);
    };
    let builder = thread::Builder::new().name("end".to_owned());
    let started = builder.spawn(waiting);
    started.context("starting the thread that ends reads")?;
    Ok(())
}

/// How the device is served.
enum Served {
    Export(Box<dyn Export>),
    /// What is mounted on the file goes before it.
    Mount {
        erofs: Option<MountedByOther>,
        mount: Box<Mount>,
        file: PathBuf,
    },
}

impl Served {
    fn address(&self) -> String {
        match self {
            Self::Export(export) => export.address(),
            Self::Mount { file, .. } => file.display().to_string(),
        }
    }
}

/// Returns how far the kernel reads ahead. What it reads around a page is not what the start needs: beside a plan
/// it would be waited for, and in a recording it would be transferred again and again.
fn readahead(start: &Start) -> Readahead {
    match start.plan.is_some() || start.recorder.is_some() {
        true => Readahead::Kib(PLANNED_READAHEAD_KIB),
        false => Readahead::Kernel,
    }
}

fn mount(
    dir: &Path,
    helper: Arc<Helper>,
    image: &ImageArg,
    device: Arc<dyn BlockDevice>,
    readahead: Readahead,
) -> anyhow::Result<Mount> {
    ensure!(
        device.info().access == DeviceAccess::ReadOnly,
        "an image with a writable layer cannot be mounted as a file: export it over NBD, vhost-user or ublk"
    );
    let (file, tree) = DeviceFile::new(device)?;
    let file = Arc::new(file);
    let waiter = waiter_of(&file, image.read_deadline);
    let fs = FileSystem::new(Arc::new(tree), file, Config::default()).with_waiter(waiter);
    let label = format!("overlaybd:{}", image.path().display());
    let mut options = MountOptions::new(dir, label);
    options.readahead = readahead;
    options.mounter = helper;
    Mount::start(Arc::new(fs), &options).with_context(|| format!("mounting on {}", dir.display()))
}
