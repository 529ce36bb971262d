//! `yolofs block`: layered block images and raw disks as devices.

mod access;
mod attach;
mod convert;
mod export;
mod manage;
mod mount_image;
pub(crate) mod plan;
mod push;
mod resize;
mod ublk_device;
mod verify;

pub(super) use export::BackgroundArg;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use blockimages::{
    Background, BlobCache, BlobSource, CacheConfig, CachedBlobs, DeviceConfig, OriginConfig, Start,
    repository_of,
};
use blocks::{BlockDevice, DeviceAccess};
use bootstore::store::StoreSettings;
use clap::Subcommand;
use devices::open::{is_image, open_image};
use host::size::Size;
use mounting::confinement::{Asks, BlockAccess};
use oci::Reference;
use oci::registry::RegistryConfig;
use recording::until::seconds;
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
    Push(push::PushArgs),
    Restack(manage::RestackArgs),
    Gc(manage::GcArgs),
    Resize(resize::ResizeArgs),
    Verify(verify::VerifyArgs),
    Plan(plan::PlanArgs),
    Prewarm(plan::PrewarmArgs),
    #[command(hide = true)]
    MountImage(mount_image::MountImageArgs),
    #[command(hide = true)]
    UblkDevice(ublk_device::UblkDeviceArgs),
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
        BlockCommand::Push(args) => push::run(args),
        BlockCommand::Restack(args) => manage::restack(args),
        BlockCommand::Gc(args) => manage::collect(args),
        BlockCommand::Resize(args) => resize::run(args, run_dir),
        BlockCommand::Verify(args) => verify::run(args),
        BlockCommand::Plan(args) => plan::run(args, store),
        BlockCommand::Prewarm(args) => plan::prewarm(args, store),
        BlockCommand::MountImage(args) => mount_image::run(args),
        BlockCommand::UblkDevice(args) => ublk_device::run(args),
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
    /// Fail reads that registries and mirrors have not answered after this many seconds
    #[arg(
        long,
        value_name = "SECS",
        default_value = "60",
        value_parser = seconds,
        requires = "image_cache"
    )]
    read_deadline: Duration,
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

    /// Checks that nothing is said of a registry, because nothing is fetched from one.
    ///
    /// # Errors
    /// If something is said.
    fn refuse_what_needs_a_cache(&self) -> anyhow::Result<()> {
        ensure!(
            self.cache.is_some() || self.registry.are_default(),
            "flags of a registry are for layers that are fetched: name a directory for them with --cache"
        );
        Ok(())
    }

    /// Prepares for reading the image, while this process may still ask a program for a login, and make a directory.
    fn prepare(&self) -> anyhow::Result<Prepared<'_>> {
        self.refuse_what_needs_a_cache()?;
        self.prepare_beside_a_registry()
    }

    /// Does the same for a command that talks to a registry anyway.
    fn prepare_beside_a_registry(&self) -> anyhow::Result<Prepared<'_>> {
        let cache = self.cache.as_deref();
        let cache = cache.filter(|_| is_image(self.path()));
        let mut registry = None;
        if let Some(dir) = cache {
            BlobCache::make(dir)?;
            let config = DeviceConfig::read(self.path()).ok();
            let repository =
                config.and_then(|(config, _)| repository_of(&config.repo_blob_url).ok());
            registry = repository.map(|repository| self.login(&repository));
        }
        Ok(Prepared {
            image: self,
            cache,
            registry,
        })
    }

    /// Returns how a registry is talked to, or why not: it may be that nothing is fetched from it.
    fn login(&self, repository: &Reference) -> Result<RegistryConfig, String> {
        let config = self.registry.config(repository);
        config.map_err(|error| format!("{error:#}"))
    }
}

/// An image that can be opened by a confined process.
struct Prepared<'a> {
    image: &'a ImageArg,
    /// The cache, if layers may be fetched.
    cache: Option<&'a Path>,
    /// How its registry is talked to, if it has one.
    registry: Option<Result<RegistryConfig, String>>,
}

impl Prepared<'_> {
    /// Returns what it takes to read it; `is_writable` is whether clients may write to a raw disk.
    fn access(&self, is_writable: bool) -> BlockAccess {
        let mut access = BlockAccess::to(self.image.path(), is_writable);
        if let Some(cache) = self.cache {
            access.writes.push(cache.to_owned());
            access.asks = Asks::Registry;
        }
        access
    }

    fn open(
        self,
        access: DeviceAccess,
        background: Background,
        start: &Start,
    ) -> anyhow::Result<Opened> {
        let path = self.image.path();
        let (cache, blobs) = self.blobs(background)?.unzip();
        let source = blobs.as_ref().map(|blobs| blobs as &dyn BlobSource);
        Ok(Opened {
            device: open_image(path, access, source, start)?,
            cache,
            blobs,
        })
    }

    /// Returns what fetches layers that are not here, if there is a cache.
    fn blobs(
        self,
        background: Background,
    ) -> anyhow::Result<Option<(Arc<BlobCache>, CachedBlobs)>> {
        let Some(dir) = self.cache else {
            return Ok(None);
        };
        let limits = CacheConfig {
            limit_bytes: self.image.cache_limit.0,
            read_deadline: self.image.read_deadline,
            ..CacheConfig::default()
        };
        let cache = BlobCache::open(dir, limits)?;
        let (registry, mirrors) = (self.registry, self.image.mirror.mirrors.clone());
        // All layers of an image are in one repository.
        let config = move |_: &Reference| match &registry {
            Some(Ok(registry)) => Ok(OriginConfig {
                registry: registry.clone(),
                mirrors: mirrors.clone(),
                logins: None,
            }),
            Some(Err(why)) => Err(std::io::Error::other(why.clone())),
            None => Err(std::io::Error::other("the image names no registry")),
        };
        let blobs = CachedBlobs::of_registries(Arc::clone(&cache), background, config);
        Ok(Some((cache, blobs)))
    }
}

fn show(format: FormatArg, done: &Value, said: String) -> anyhow::Result<Outcome> {
    print(format.format(), done, |_| said)?;
    Ok(Outcome::Done)
}
