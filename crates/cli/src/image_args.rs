//! The flags of how a block image is opened by the node, or by the daemon of a mount.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use confine::Identity;
use host::size::Size;
use node_api::image::{ImageSpec, Prefetch, RegistrySpec};
use recording::until::seconds;

use crate::worker_user::WorkerUserArg;

/// Who is asked for layers before their registry.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct MirrorArgs {
    /// Ask this mirror of the registry (`http://HOST:PORT`, such as nicfetch) first, and the registry for what it does
    /// not bring; can be repeated
    #[arg(long = "mirror", value_name = "URL", requires = "image_cache")]
    pub(crate) mirrors: Vec<String>,
}

/// What is said of a block image that is mounted.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Block images")]
pub(crate) struct ImageArgs {
    /// Fetch layers of the block image from their registry on demand, and keep what was fetched in this directory,
    /// which all mounts and devices of the node may share
    #[arg(long, value_name = "DIR")]
    image_cache: Option<PathBuf>,
    /// Bytes that the cache may have
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "4G",
        requires = "image_cache"
    )]
    image_cache_limit: Size,
    /// Fail reads that registries and mirrors have not answered after this many seconds
    #[arg(
        long,
        value_name = "SECS",
        default_value = "60",
        value_parser = seconds,
        requires = "image_cache"
    )]
    image_deadline: Duration,
    #[command(flatten)]
    mirror: MirrorArgs,
    #[command(flatten)]
    worker_user: WorkerUserArg,
}

impl ImageArgs {
    /// Returns who the daemon of a mount that no node serves becomes.
    ///
    /// # Errors
    /// If there is no such user.
    pub(crate) fn daemon_user(&self) -> anyhow::Result<Option<Identity>> {
        self.worker_user.identity()
    }

    /// Whether a user was named for that daemon.
    pub(crate) const fn daemon_user_is_given(&self) -> bool {
        self.worker_user.is_given()
    }

    /// Checks that nothing is said of a block image, because the source is none.
    ///
    /// # Errors
    /// If something is said.
    pub(crate) fn refuse(&self) -> anyhow::Result<()> {
        ensure!(
            self.image_cache.is_none(),
            "--image-cache is for block images: name the source overlaybd:IMAGE"
        );
        ensure!(
            !self.worker_user.is_given(),
            "--worker-user is for block images: name the source overlaybd:IMAGE"
        );
        Ok(())
    }

    /// Returns how the image is opened.
    ///
    /// # Errors
    /// If the cache cannot be found.
    pub(crate) fn spec(&self) -> anyhow::Result<ImageSpec> {
        spec(
            self.image_cache.as_deref(),
            (self.image_cache_limit, self.image_deadline),
            Prefetch::default(),
            RegistrySpec::default(),
            &self.mirror,
        )
    }
}

/// Returns how an image is opened whose cache is named like this on the command line.
///
/// # Errors
/// If the cache cannot be found.
pub(crate) fn spec(
    cache: Option<&std::path::Path>,
    (limit, deadline): (Size, Duration),
    background: Prefetch,
    registry: RegistrySpec,
    mirror: &MirrorArgs,
) -> anyhow::Result<ImageSpec> {
    let absolute = |dir: &std::path::Path| {
        std::path::absolute(dir).with_context(|| format!("finding the cache {}", dir.display()))
    };
    Ok(ImageSpec {
        cache: cache.map(absolute).transpose()?,
        cache_bytes: limit.0,
        background,
        record: false,
        plan: true,
        registry,
        read_deadline_ms: u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX),
        mirrors: mirror.mirrors.clone(),
    })
}
