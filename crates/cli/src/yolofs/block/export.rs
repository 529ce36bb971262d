//! `yolofs block export`: a device for QEMU, libnbd and virtual machines.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use blockexport::nbd::{NbdConfig, NbdExporter};
use blockexport::vhost_user::{VhostUserConfig, VhostUserExporter};
use blockexport::{Export, Exporter};
use blockimages::{Background, DeviceFile, FILE_NAME, Start, StartRecorder, manage};
use blocks::{BlockDevice, DeviceAccess};
use host::interrupt::Interrupt;
use serde::Serialize;
use yolofs::{Busy, Config, FileSystem, Mount, MountOptions};

use super::ImageArg;
use crate::exit::Outcome;
use crate::output::{FormatArg, print};

/// How long a mount that is in use is waited for.
const UNMOUNT_PATIENCE: Duration = Duration::from_secs(1);

/// Serve an image over NBD, as a file, or as the disk of a virtual machine, until interrupted
///
/// It can be killed and started again on the same socket: clients that reconnect lose nothing.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct ExportArgs {
    #[command(flatten)]
    image: ImageArg,
    /// Serve NBD on this unix socket
    #[arg(long, value_name = "SOCKET", required_unless_present_any = ["vhost_user", "mount"])]
    nbd: Option<PathBuf>,
    /// Serve vhost-user-blk on this unix socket
    #[arg(long, value_name = "SOCKET", conflicts_with = "nbd")]
    vhost_user: Option<PathBuf>,
    /// Mount a directory here whose file `disk` is the device, to read only: for QEMU, for `mount -t erofs`, or
    /// for a loop device
    #[arg(long, value_name = "DIR", conflicts_with_all = ["nbd", "vhost_user", "writable"])]
    mount: Option<PathBuf>,
    /// Let clients write to a raw disk; an image with a writable layer is served writable without it
    #[arg(long)]
    writable: bool,
    /// Fetch first what this trace says that a start reads: overlaybd's format, or AgentENV's
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// When the export ends, write which blocks of layers were read to this file, as overlaybd's trace
    #[arg(long, value_name = "FILE")]
    record_trace: Option<PathBuf>,
    #[command(flatten)]
    format: FormatArg,
}

/// What is served.
#[derive(Debug, Serialize)]
struct Exported {
    image: PathBuf,
    address: String,
    size: u64,
    writable: bool,
}

pub(super) fn run(args: &ExportArgs) -> anyhow::Result<Outcome> {
    let interrupt = Interrupt::install()?;
    let access = match args.writable {
        true => DeviceAccess::ReadWrite,
        false => DeviceAccess::ReadOnly,
    };
    let start = start(args)?;
    let opened = args.image.open(access, Background::Everything, &start)?;
    let device = Arc::clone(&opened.device);
    let info = device.info();
    let export = match &args.mount {
        Some(dir) => {
            let mount = Box::new(mount(dir, &args.image, device)?);
            Served::Mount(mount, dir.join(FILE_NAME))
        }
        None => Served::Export(exporter(args)?.export(device).context("exporting")?),
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
        Served::Mount(mount, _) => mount.unmount(Busy::Lazy, UNMOUNT_PATIENCE)?,
    }
    if let (Some(path), Some(recorder)) = (&args.record_trace, &start.recorder) {
        manage::write_trace(path, &recorder.trace())?;
    }
    Ok(Outcome::Done)
}

fn start(args: &ExportArgs) -> anyhow::Result<Start> {
    let plan = args.plan.as_deref().map(manage::read_trace).transpose()?;
    let recorder = args.record_trace.as_ref().map(|_| StartRecorder::default());
    Ok(Start { plan, recorder })
}

/// How the device is served.
enum Served {
    Export(Box<dyn Export>),
    Mount(Box<Mount>, PathBuf),
}

impl Served {
    fn address(&self) -> String {
        match self {
            Self::Export(export) => export.address(),
            Self::Mount(_, file) => file.display().to_string(),
        }
    }
}

fn mount(dir: &Path, image: &ImageArg, device: Arc<dyn BlockDevice>) -> anyhow::Result<Mount> {
    ensure!(
        device.info().access == DeviceAccess::ReadOnly,
        "an image with a writable layer cannot be mounted as a file: export it over NBD or vhost-user"
    );
    let (file, tree) = DeviceFile::new(device)?;
    let fs = FileSystem::new(Arc::new(tree), Arc::new(file), Config::default());
    let label = format!("overlaybd:{}", image.path().display());
    let options = MountOptions::new(dir, label);
    Mount::start(Arc::new(fs), &options).with_context(|| format!("mounting on {}", dir.display()))
}

fn exporter(args: &ExportArgs) -> anyhow::Result<Box<dyn Exporter>> {
    if let Some(socket) = &args.nbd {
        let (socket, config) = (socket.clone(), NbdConfig::default());
        return Ok(Box::new(NbdExporter { socket, config }));
    }
    let socket = args.vhost_user.clone().context("naming a socket")?;
    let config = VhostUserConfig::default();
    Ok(Box::new(VhostUserExporter { socket, config }))
}
