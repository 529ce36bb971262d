//! `yolofs block resize`.

use anyhow::Context as _;
use blockimages::{Background, Start};
use blocks::DeviceAccess;
use host::run_dir::RunDir;
use host::size::Size;
use node_api::client::NodeClient;
use serde_json::json;

use super::attach::with_advice;
use super::{ImageArg, access, show};
use crate::exit::Outcome;
use crate::output::FormatArg;
use crate::run_dir_arg::RunDirArg;

/// Make the device of an image with a writable layer, or a raw disk, larger
///
/// A file system in it does not grow with it: resize2fs and the like do that. It cannot be made smaller.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct ResizeArgs {
    #[command(flatten)]
    image: ImageArg,
    /// Bytes that the device is to have
    #[arg(value_name = "SIZE")]
    size: Size,
    /// IMAGE is the name of a device of the node, which may be in use: NBD clients see the new size when they connect, a
    /// virtual machine when it starts, and users of a block device when it is attached again
    #[arg(long, conflicts_with = "image_cache")]
    attached: bool,
    #[command(flatten)]
    format: FormatArg,
}

pub(super) fn run(args: &ResizeArgs, run_dir: &RunDirArg) -> anyhow::Result<Outcome> {
    let (path, wanted) = (args.image.path(), args.size.0);
    let resizing = || format!("making {} larger", path.display());
    let size = if args.attached {
        let name = path.to_str().context("a name that is not UTF-8")?;
        node_api::device::check_name(name)?;
        let run_dir = RunDir::open(&run_dir.run_dir)?;
        let device = NodeClient::of(&run_dir).resize(name, wanted);
        let device = device.map_err(with_advice).with_context(resizing)?;
        device.served.map_or(wanted, |served| served.size)
    } else {
        let image = args.image.prepare()?;
        access::resize(&image).confine()?;
        let opened = image.open(
            DeviceAccess::ReadWrite,
            Background::Nothing,
            &Start::default(),
        );
        let device = opened.with_context(resizing)?.device;
        devices::grow(&*device, wanted).with_context(resizing)?;
        device.info().size
    };
    let said = format!("{} has {size} bytes\n", path.display());
    show(args.format, &json!({ "size": size }), said)
}
