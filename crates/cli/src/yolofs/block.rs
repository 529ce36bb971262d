//! `yolofs block`: layered block images and raw disks as devices.

mod export;
mod verify;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use blockimages::{CONFIG_NAME, RawDevice, open_image};
use blocks::{BlockDevice, DeviceAccess};
use clap::Subcommand;

use crate::exit::Outcome;

/// Block images: layers in overlaybd's formats, and raw disks
#[derive(Clone, Debug, clap::Args)]
pub(super) struct BlockArgs {
    #[command(subcommand)]
    command: BlockCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum BlockCommand {
    Export(export::ExportArgs),
    Verify(verify::VerifyArgs),
}

pub(super) fn run(args: &BlockArgs) -> anyhow::Result<Outcome> {
    match &args.command {
        BlockCommand::Export(args) => export::run(args),
        BlockCommand::Verify(args) => verify::run(args),
    }
}

/// Which image.
#[derive(Clone, Debug, clap::Args)]
struct ImageArg {
    /// A raw disk; or overlaybd's config.v1.json, or the directory that has it
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
}

impl ImageArg {
    fn path(&self) -> &Path {
        // As mounts name it.
        let prefixed = self.image.to_str();
        let path = prefixed.and_then(|image| image.strip_prefix("overlaybd:"));
        path.map_or(&self.image, Path::new)
    }

    fn open(&self, access: DeviceAccess) -> anyhow::Result<Arc<dyn BlockDevice>> {
        let path = self.path();
        let layered = path.is_dir() || path.file_name().is_some_and(|name| name == CONFIG_NAME);
        let opening = || format!("opening {}", path.display());
        if !layered {
            let device = RawDevice::open(path, access).with_context(opening)?;
            return Ok(Arc::new(device));
        }
        anyhow::ensure!(
            access == DeviceAccess::ReadOnly,
            "{} has only sealed layers: leave --writable out, or put a qcow2 overlay on the export",
            path.display()
        );
        Ok(Arc::new(open_image(path, None).with_context(opening)?))
    }
}
