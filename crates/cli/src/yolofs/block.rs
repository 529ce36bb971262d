//! `yolofs block`: layered block images and raw disks as devices.

mod attach;
mod convert;
mod export;
mod manage;
pub(crate) mod plan;
mod resize;
mod verify;

pub(super) use export::BackgroundArg;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use blockimages::{
    Background, BlobCache, BlobSource, CacheConfig, CachedBlobs, OriginConfig, Start,
};
use blocks::{BlockDevice, DeviceAccess};
use bootstore::store::StoreSettings;
use clap::Subcommand;
use devices::open::{is_image, open_image};
use host::size::Size;
use oci::Reference;
use serde_json::Value;

use crate::bootimg::registry::RegistryArgs;
use crate::exit::Outcome;
use crate::image_args::MirrorArgs;
use crate::output::{FormatArg, print};
use crate::run_dir_arg::RunDirArg;

/// Block images: layers in overlaybd's formats, and raw disks
#[derive(Clone, Debug, clap::Args)]
pub(super) struct BlockArgs {
    #[command(subcommand)]
    command: BlockCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum BlockCommand {
    Convert(convert::ConvertArgs),
    Export(export::ExportArgs),
    Attach(attach::AttachArgs),
    Detach(attach::DetachArgs),
    Create(manage::CreateArgs),
    Status(manage::StatusArgs),
    Commit(manage::CommitArgs),
    Restack(manage::RestackArgs),
    Gc(manage::GcArgs),
    Resize(resize::ResizeArgs),
    Verify(verify::VerifyArgs),
    Plan(plan::PlanArgs),
    Prewarm(plan::PrewarmArgs),
}

pub(super) fn run(
    args: &BlockArgs,
    store: &StoreSettings,
    run_dir: &RunDirArg,
) -> anyhow::Result<Outcome> {
    match &args.command {
        BlockCommand::Convert(args) => convert::run(args),
        BlockCommand::Export(args) => export::run(args, store),
        BlockCommand::Attach(args) => attach::attach(args, store, run_dir),
        BlockCommand::Detach(args) => attach::detach(args, run_dir),
        BlockCommand::Create(args) => manage::create(args, store),
        BlockCommand::Status(args) => manage::status(args, run_dir),
        BlockCommand::Commit(args) => manage::commit(args),
        BlockCommand::Restack(args) => manage::restack(args),
        BlockCommand::Gc(args) => manage::collect(args),
        BlockCommand::Resize(args) => resize::run(args, run_dir),
        BlockCommand::Verify(args) => verify::run(args),
        BlockCommand::Plan(args) => plan::run(args, store),
        BlockCommand::Prewarm(args) => plan::prewarm(args, store),
    }
}

/// Which image, and where its layers come from that are not on this machine.
#[derive(Clone, Debug, clap::Args)]
struct ImageArg {
    /// A raw disk; or overlaybd's config.v1.json, or the directory that has it
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    /// Fetch layers from their registry on demand, and keep what was fetched in this directory, which one
    /// process owns
    #[arg(long = "cache", id = "image_cache", value_name = "DIR")]
    cache: Option<PathBuf>,
    /// Bytes that the cache may have
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "4G",
        requires = "image_cache"
    )]
    cache_limit: Size,
    #[command(flatten)]
    mirror: MirrorArgs,
    #[command(flatten)]
    registry: RegistryArgs,
}

/// An image that can be read, and what fetches its layers meanwhile.
struct Opened {
    device: Arc<dyn BlockDevice>,
    cache: Option<Arc<BlobCache>>,
    blobs: Option<CachedBlobs>,
}

impl Opened {
    /// Returns what fetches layers that are not here.
    fn fetching(&self) -> Option<(&BlobCache, &CachedBlobs)> {
        self.cache.as_deref().zip(self.blobs.as_ref())
    }
}

impl ImageArg {
    fn path(&self) -> &Path {
        // As mounts name it.
        let prefixed = self.image.to_str();
        let path = prefixed.and_then(|image| image.strip_prefix("overlaybd:"));
        path.map_or(&self.image, Path::new)
    }

    fn open(
        &self,
        access: DeviceAccess,
        background: Background,
        start: &Start,
    ) -> anyhow::Result<Opened> {
        let path = self.path();
        let blobs = match is_image(path) {
            true => self.blobs(background)?,
            false => None,
        };
        let (cache, blobs) = blobs.unzip();
        let source = blobs.as_ref().map(|blobs| blobs as &dyn BlobSource);
        Ok(Opened {
            device: open_image(path, access, source, start)?,
            cache,
            blobs,
        })
    }

    /// Returns what fetches layers that are not here, if there is a cache.
    fn blobs(
        &self,
        background: Background,
    ) -> anyhow::Result<Option<(Arc<BlobCache>, CachedBlobs)>> {
        let Some(dir) = &self.cache else {
            return Ok(None);
        };
        let cache = self.open_cache(dir)?;
        let (registry, mirrors) = (self.registry.clone(), self.mirror.mirrors.clone());
        let config = move |reference: &Reference| {
            let config = registry.config(reference);
            let registry = config.map_err(|error| std::io::Error::other(format!("{error:#}")))?;
            let mirrors = mirrors.clone();
            Ok(OriginConfig {
                registry,
                mirrors,
                logins: None,
            })
        };
        let blobs = CachedBlobs::of_registries(Arc::clone(&cache), background, config);
        Ok(Some((cache, blobs)))
    }

    fn open_cache(&self, dir: &Path) -> anyhow::Result<Arc<BlobCache>> {
        let config = CacheConfig {
            limit_bytes: self.cache_limit.0,
            ..CacheConfig::default()
        };
        Ok(BlobCache::open(dir, config)?)
    }
}

fn show(format: FormatArg, done: &Value, said: String) -> anyhow::Result<Outcome> {
    print(format.format(), done, |_| said)?;
    Ok(Outcome::Done)
}
