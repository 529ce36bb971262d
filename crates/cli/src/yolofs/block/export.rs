//! `yolofs block export`: a device for QEMU, libnbd and virtual machines.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use blockexport::Exporter;
use blockexport::nbd::{NbdConfig, NbdExporter};
use blockexport::vhost_user::{VhostUserConfig, VhostUserExporter};
use blockimages::Background;
use blocks::DeviceAccess;
use host::interrupt::Interrupt;
use serde::Serialize;

use super::ImageArg;
use crate::exit::Outcome;
use crate::output::{FormatArg, print};

/// Serve an image over NBD, or as the disk of a virtual machine, until interrupted
///
/// It can be killed and started again on the same socket: clients that reconnect lose nothing.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct ExportArgs {
    #[command(flatten)]
    image: ImageArg,
    /// Serve NBD on this unix socket
    #[arg(long, value_name = "SOCKET", required_unless_present = "vhost_user")]
    nbd: Option<PathBuf>,
    /// Serve vhost-user-blk on this unix socket
    #[arg(long, value_name = "SOCKET", conflicts_with = "nbd")]
    vhost_user: Option<PathBuf>,
    /// Let clients write to a raw disk; an image with a writable layer is served writable without it
    #[arg(long)]
    writable: bool,
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
    let opened = args.image.open(access, Background::Everything)?;
    let device = Arc::clone(&opened.device);
    let info = device.info();
    let export = exporter(args)?.export(device).context("exporting")?;
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
    export.stop();
    Ok(Outcome::Done)
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
