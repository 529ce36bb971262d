//! `yolofs block create`, `status`, `commit`, `restack`, `gc`.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use blockimages::convert::{RegistryImage, SourceImage as _};
use blockimages::manage::{self, NewImage, Top, UpperKind};
use blockimages::{Background, BlobSource, DeviceConfig};
use blocks::Digest;
use bootstore::store::StoreSettings;
use clap::ValueEnum;
use devices::plans::keep_pulled;
use engine::ImageName;
use host::size::Size;
use mounting::confinement::{Asks, BlockAccess};
use oci::Reference;
use oci::registry::RegistryConfig;
use serde_json::{Value, json};

use super::{ImageArg, access, show};
use crate::bootimg::registry::RegistryArgs;
use crate::exit::Outcome;
use crate::output::{FormatArg, print};
use crate::run_dir_arg::RunDirArg;

/// Make an image: a writable layer on the layers of another image, or on nothing
#[derive(Clone, Debug, clap::Args)]
pub(super) struct CreateArgs {
    /// The directory of the new image
    // Not `dir`, as the flag of the store is called to clap: each would be the other.
    #[arg(id = "new_image", value_name = "DIR")]
    dir: PathBuf,
    /// The image whose layers are below: a directory, a config.v1.json, or docker://REF of a block image in a
    /// registry
    #[arg(long, value_name = "IMAGE")]
    lower: Option<String>,
    /// Bytes of the device [default: as many as the layers below say]
    #[arg(long, value_name = "SIZE")]
    size: Option<Size>,
    /// Bytes of data that the writable layer may have; what is written beyond that fails as on a full disk [default: any
    /// number]
    #[arg(long, value_name = "SIZE")]
    limit: Option<Size>,
    /// What can be written to
    #[arg(long, value_enum, default_value = "append")]
    kind: KindArg,
    /// Only say what would be made
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    registry: RegistryArgs,
    #[command(flatten)]
    format: FormatArg,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum KindArg {
    /// A layer of overlaybd that is appended to
    Append,
    /// A layer of overlaybd in a file with holes
    Sparse,
    /// A layer of overlaybd that is overwritten in place
    Hybrid,
    /// A directory of layers, whose garbage is collected while it is in use
    Live,
    /// Nothing
    Sealed,
}

pub(super) fn create(args: &CreateArgs, store: &StoreSettings) -> anyhow::Result<Outcome> {
    let top = match args.kind {
        KindArg::Append => Top::Pair(UpperKind::Append),
        KindArg::Sparse => Top::Pair(UpperKind::Sparse),
        KindArg::Hybrid => Top::Pair(UpperKind::Hybrid),
        KindArg::Live => Top::Live,
        KindArg::Sealed => Top::Sealed,
    };
    let lower = Lower::of(args).context("looking for the layers below")?;
    let new = access::make_dir(&args.dir, args.dry_run)?;
    access::create(lower.access(), new, store).confine()?;
    let lowers = lower.layers(args, store);
    let (lowers, manifest) = lowers.context("looking for the layers below")?;
    let layers = lowers.lowers.len();
    if !args.dry_run {
        let new = NewImage {
            top,
            size: args.size.map(|size| size.0),
            limit: args.limit.map(|limit| limit.0),
        };
        let made = manage::create(&args.dir, lowers, new);
        made.with_context(|| format!("making {}", args.dir.display()))?;
    }
    let done = json!({
        "image": args.dir, "layers": layers, "manifest": manifest, "dry_run": args.dry_run,
    });
    // A tag may be another image's by now.
    let of = manifest.map_or_else(String::new, |manifest| format!(" of {manifest}"));
    let said = format!("{}: an image on {layers} layers{of}\n", args.dir.display());
    show(args.format, &done, said)
}

/// The image below a new one.
enum Lower {
    None,
    /// On this machine, and what it says of its layers.
    Here(PathBuf, DeviceConfig),
    /// In a registry, and how that is talked to.
    Elsewhere(Reference, RegistryConfig),
}

impl Lower {
    /// Finds out where it is; a program that knows the login may be asked.
    fn of(args: &CreateArgs) -> anyhow::Result<Self> {
        let Some(lower) = &args.lower else {
            return Ok(Self::None);
        };
        let Ok(Some(ImageName::Docker { reference })) = ImageName::parse(lower) else {
            let image = PathBuf::from(lower);
            let layers = manage::lowers_of(&image)?;
            return Ok(Self::Here(image, layers));
        };
        let reference: Reference = reference.parse()?;
        let config = args.registry.config(&reference)?;
        Ok(Self::Elsewhere(reference, config))
    }

    /// Returns the access that it takes to read it.
    fn access(&self) -> BlockAccess {
        match self {
            Self::None => BlockAccess::default(),
            Self::Here(image, _) => BlockAccess::to(image, false),
            Self::Elsewhere(..) => BlockAccess {
                asks: Asks::Registry,
                ..BlockAccess::default()
            },
        }
    }

    /// Returns its layers, and the digest of its manifest if it is in a registry.
    fn layers(
        &self,
        args: &CreateArgs,
        store: &StoreSettings,
    ) -> anyhow::Result<(DeviceConfig, Option<Digest>)> {
        let (reference, config) = match self {
            Self::None => return Ok((DeviceConfig::default(), None)),
            Self::Here(_, layers) => return Ok((layers.clone(), None)),
            Self::Elsewhere(reference, config) => (reference, config),
        };
        let mut watch = |_| std::ops::ControlFlow::Continue(());
        let image = RegistryImage::find(reference, config, &mut watch)?;
        if !args.dry_run {
            take_plan(&image, store);
        }
        let dir = (!args.dry_run).then_some(args.dir.as_path());
        let manifest = image.digest();
        let layers = image.block_config(dir, &mut watch);
        let layers = layers.with_context(|| format!("the image is {manifest}"))?;
        Ok((layers, Some(manifest)))
    }
}

/// Keeps the plan that is beside an image in its registry. Without it, starts take longer.
fn take_plan(image: &RegistryImage, store: &StoreSettings) {
    let mut watch = |_| std::ops::ControlFlow::Continue(());
    let take = || {
        let pulled = artifacts::plans::pull(
            (image.digest(), &image.layers()),
            image.repository(),
            &mut watch,
        )?;
        let keep = |pulled| keep_pulled(&store.dir, &pulled, image.blob_url());
        pulled.map_or(Ok(()), keep)
    };
    if let Err(error) = { take }() {
        log::warn!("there is no plan of its start: {error:#}");
    }
}

/// Show what an image consists of, or the devices that the node has attached
#[derive(Clone, Debug, clap::Args)]
pub(super) struct StatusArgs {
    /// overlaybd's config.v1.json, or the directory that has it [default: what is attached]
    #[arg(value_name = "IMAGE")]
    image: Option<PathBuf>,
    #[command(flatten)]
    format: FormatArg,
}

pub(super) fn status(args: &StatusArgs, run_dir: &RunDirArg) -> anyhow::Result<Outcome> {
    let Some(image) = &args.image else {
        return super::attach::status(args.format, run_dir);
    };
    BlockAccess::to(image, false).confine()?;
    let status = manage::status(image)?;
    print(args.format.format(), &status, |status| {
        let mut text = String::new();
        for layer in &status.layers {
            let place = if layer.local {
                ""
            } else {
                ", fetched on demand"
            };
            text += &format!("{} ({} bytes{place})\n", layer.name, layer.size);
        }
        if let Some(upper) = &status.upper {
            let (live, data) = (upper.live_bytes, upper.data_bytes);
            if upper.own_layers > 0 {
                text += &format!(
                    "layers that were sealed on top of these: {}\n",
                    upper.own_layers
                );
            }
            text += &format!("writable: {live} of {data} bytes are in use\n");
        }
        if status.in_use {
            text += "writable: in use\n";
        }
        text
    })?;
    Ok(Outcome::Done)
}

/// Seal what was written to an image as a new layer, and go on with an empty one
#[derive(Clone, Debug, clap::Args)]
pub(super) struct CommitArgs {
    #[command(flatten)]
    image: ImageArg,
    /// What the layer says of itself, up to 256 bytes
    #[arg(long, value_name = "TEXT", default_value = "")]
    message: String,
    #[command(flatten)]
    format: FormatArg,
}

pub(super) fn commit(args: &CommitArgs) -> anyhow::Result<Outcome> {
    on_upper(&args.image, args.format, "committing", |path, remote| {
        let message = args.message.as_bytes();
        let options = blockimages::convert::ConvertOptions::default().blob();
        let layers = manage::commit(path, remote, options, message)?;
        let names = layers.iter().map(|layer| layer.file.display().to_string());
        let said = names.collect::<Vec<_>>().join("\n") + "\n";
        Ok((json!({ "layers": layers }), said))
    })
}

/// Seal the writable layer of a live image where it is: a snapshot
#[derive(Clone, Debug, clap::Args)]
pub(super) struct RestackArgs {
    #[command(flatten)]
    image: ImageArg,
    #[command(flatten)]
    format: FormatArg,
}

pub(super) fn restack(args: &RestackArgs) -> anyhow::Result<Outcome> {
    on_upper(&args.image, args.format, "restacking", |path, remote| {
        manage::restack(path, remote)?;
        Ok((json!({}), "there is a new writable layer\n".to_owned()))
    })
}

/// Free the room of what was overwritten in a live image; an export does it by itself
#[derive(Clone, Debug, clap::Args)]
pub(super) struct GcArgs {
    #[command(flatten)]
    image: ImageArg,
    #[command(flatten)]
    format: FormatArg,
}

pub(super) fn collect(args: &GcArgs) -> anyhow::Result<Outcome> {
    on_upper(&args.image, args.format, "collecting", |path, remote| {
        let done = manage::collect(path, remote)?;
        let said = format!("{} bytes of data, {} before\n", done.after, done.before);
        Ok((json!({"before": done.before, "after": done.after}), said))
    })
}

fn on_upper(
    image: &ImageArg,
    format: FormatArg,
    doing: &'static str,
    act: impl FnOnce(&Path, Option<&dyn BlobSource>) -> anyhow::Result<(Value, String)>,
) -> anyhow::Result<Outcome> {
    let prepared = image.prepare()?;
    access::change(&prepared).confine()?;
    let blobs = prepared.blobs(Background::Nothing)?;
    let remote = blobs.as_ref().map(|(_, blobs)| blobs as &dyn BlobSource);
    let done = act(image.path(), remote);
    let (done, said) = done.with_context(|| format!("{doing} {}", image.path().display()))?;
    show(format, &done, said)
}
