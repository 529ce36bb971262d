//! `yolofs snapshotter`.

use std::path::PathBuf;

use bootstore::store::StoreSettings;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use host::run_dir::RunDir;
use host::size::Size;

use super::block::BackgroundArg;
use super::snapshotter_status;
use crate::bootimg::registry::RegistryArgs;
use crate::exit::Outcome;
use crate::run_dir_arg::RunDirArg;
use crate::xattrs_arg::XattrsArg;
use containerd_service::snapshotter_service;
use containerd_service::snapshotter_service::SnapshotterSettings;
use containerd_service::snapshotter_service::block_images::{BlockImageSettings, DeviceForm};
use containerd_service::snapshotter_service::layers_fast::LayersBy;
use containerd_service::snapshotter_service::place_arg::FastPlaceSpec;
use containerd_service::snapshotter_service::upper::UpperFull;
use node_api::image::RegistrySpec;
use recording::until::Until;

/// Keep containerd's snapshots, and serve their layers from boot images
///
/// Listens on a unix socket for containerd, whose configuration names it as a proxy
/// plugin; see docs/containerd.md. Works as containerd's own overlayfs snapshotter does.
#[derive(Clone, Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct SnapshotterArgs {
    #[command(subcommand)]
    command: Option<SnapshotterCommand>,
    /// Directory of the snapshots
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/var/lib/yolofs/snapshotter"
    )]
    root: PathBuf,
    /// Socket to listen on
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/run/yolofs/snapshotter.sock"
    )]
    address: PathBuf,
    /// Fast directory for what containers write, and its limit: `tmpfs,max=2G`, `/nvme/upper,max=9G` or
    /// `/nvme/upper,max=20%` (of its file system)
    #[arg(long, value_name = "DIR")]
    upper: Option<FastPlaceSpec>,
    /// When that is full: refuse new containers, or let them write to the disk
    #[arg(
        long,
        value_name = "MODE",
        value_parser = upper_full(),
        default_value = UpperFull::Refuse.name(),
        requires = "upper"
    )]
    upper_full: UpperFull,
    /// Fast directory for layers that a pull waits for, and its limit: `tmpfs,max=4G`,
    /// `/nvme/layers,max=9G` or `/nvme/layers,max=20%` (of its file system)
    #[arg(long, value_name = "DIR")]
    layers_fast: Option<FastPlaceSpec>,
    /// How it learns which layers these are
    #[arg(
        long,
        value_name = "MODE",
        value_parser = layers_by(),
        default_value = LayersBy::Seen.name(),
        requires = "layers_fast"
    )]
    layers_by: LayersBy,
    /// Seconds without a pull until layers move from there to the disk
    #[arg(
        long,
        value_name = "SECS",
        default_value_t = 60,
        requires = "layers_fast"
    )]
    layers_stay: u64,
    /// Data directory of containerd (`root` in its configuration); shows which blobs it has yet to
    /// download
    #[arg(long, value_name = "DIR", default_value = "/var/lib/containerd")]
    containerd_root: PathBuf,
    #[command(flatten)]
    xattrs: XattrsArg,
    /// Record the first boot of every image on this node, so that the next is fast
    #[arg(long)]
    auto_record: bool,
    /// When a first boot is over: quiet:SECS (without a read), after:SECS, exit or tcp:PORT
    #[arg(long, value_name = "WHEN", default_value = "quiet:2")]
    until: Until,
    /// Socket of containerd; used to find the image of a first boot
    #[arg(
        long,
        value_name = "FILE",
        default_value = engine::containerd::DEFAULT_ADDRESS
    )]
    containerd: PathBuf,
    /// Socket of containerd's NRI, such as /run/nri/nri.sock: layers are brought into memory again as soon
    /// as a pod's sandbox is made
    #[arg(long, value_name = "FILE")]
    nri: Option<PathBuf>,
    /// Directory of what was fetched of block images, which devices of the node may share [default: blobs in the root]
    #[arg(long, value_name = "DIR", help_heading = "Block images")]
    block_cache: Option<PathBuf>,
    /// Bytes that it may have
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "4G",
        help_heading = "Block images"
    )]
    block_cache_limit: Size,
    /// What is fetched of block images that nobody has read yet
    #[arg(
        long,
        value_name = "MODE",
        default_value = "everything",
        help_heading = "Block images"
    )]
    block_background: BackgroundArg,
    /// What containers write to on block images with an ext4, unless a label says otherwise
    #[arg(
        long,
        value_name = "MODE",
        value_enum,
        default_value = "overlay",
        help_heading = "Block images"
    )]
    block_writable: WritableArg,
    /// Bytes that a container may write to such a device, unless its label disk_quota says otherwise [default: as many as the
    /// file system has]
    #[arg(long, value_name = "SIZE")]
    block_quota: Option<Size>,
    /// File with the logins of their registries, as `docker login` writes it [default: that of the node's user]
    #[arg(long, value_name = "FILE", help_heading = "Block images")]
    block_login: Option<PathBuf>,
    #[command(flatten)]
    registry: RegistryArgs,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum WritableArg {
    /// The upper directory of an overlay
    Overlay,
    /// A device of its own, mounted on a directory
    Dir,
    /// A device of its own, which containerd mounts
    Dev,
}

impl WritableArg {
    const fn form(self) -> Option<DeviceForm> {
        match self {
            Self::Overlay => None,
            Self::Dir => Some(DeviceForm::Dir),
            Self::Dev => Some(DeviceForm::Dev),
        }
    }
}

#[derive(Clone, Debug, clap::Subcommand)]
enum SnapshotterCommand {
    Status(snapshotter_status::StatusArgs),
}

/// Parses `--upper-full`.
fn upper_full() -> impl TypedValueParser<Value = UpperFull> {
    let values = UpperFull::ALL.map(|one| PossibleValue::new(one.name()).help(one.meaning()));
    PossibleValuesParser::new(values).map(|name| {
        let found = UpperFull::ALL.into_iter().find(|one| one.name() == name);
        found.unwrap_or(UpperFull::Refuse) // it is one of them
    })
}

/// Parses `--layers-by`.
fn layers_by() -> impl TypedValueParser<Value = LayersBy> {
    let values = LayersBy::ALL.map(|one| PossibleValue::new(one.name()).help(one.meaning()));
    PossibleValuesParser::new(values).map(|name| {
        let found = LayersBy::ALL.into_iter().find(|one| one.name() == name);
        found.unwrap_or(LayersBy::Seen) // it is one of them
    })
}

pub(super) fn run(
    args: &SnapshotterArgs,
    store: &StoreSettings,
    run_dir: &RunDirArg,
) -> anyhow::Result<Outcome> {
    if let Some(SnapshotterCommand::Status(command)) = &args.command {
        return snapshotter_status::run(command, &RunDir::open(&run_dir.run_dir)?);
    }
    let settings = SnapshotterSettings {
        root: args.root.clone(),
        address: args.address.clone(),
        upper: args.upper.clone(),
        upper_full: args.upper_full,
        layers_fast: args.layers_fast.clone(),
        layers_by: args.layers_by,
        layers_stay: args.layers_stay,
        containerd_root: args.containerd_root.clone(),
        xattrs: args.xattrs.answers(),
        auto_record: args.auto_record,
        until: args.until.clone(),
        containerd: args.containerd.clone(),
        block_images: BlockImageSettings {
            cache: args.block_cache.clone(),
            cache_bytes: args.block_cache_limit.0,
            background: args.block_background.into(),
            own_device: args.block_writable.form(),
            own_limit: args.block_quota.map(|quota| quota.0),
            registry: RegistrySpec {
                login: args
                    .block_login
                    .as_deref()
                    .map(std::path::absolute)
                    .transpose()?,
                ..args.registry.spec()?
            },
        },
        nri: args.nri.clone(),
    };
    snapshotter_service::run(&settings, store, &run_dir.run_dir)?;
    Ok(Outcome::Done)
}
