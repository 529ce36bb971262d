//! One layer that is served from its boot image.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use blocks::Digest;
use bootimg::{Image, layer_name};
use yolofs::{Busy, FileSystem, Layering, Mount, MountOptions, PrewarmReport, XattrAnswers};

use super::place::LayerPlace;
use super::reach::privileges_at;
use host::mount_table::needs_root;
use mounting::assembly::{self, Assembly, AssemblyOptions, Parts};
use mounting::boot::Boot;
use mounting::descriptors::files_for_each_of;
use mounting::prewarming::{PrewarmRequest, Prewarming};
use mounting::source::Source;
use node_api::mount_daemon::PrewarmSummary;
use node_api::mount_state::PrewarmState;
use node_api::serve_mode::ServeMode;

/// How long users of a mount may take to let go of it.
const UMOUNT_PATIENCE: Duration = Duration::from_secs(2);

/// Most files that a prewarm of one layer holds by descriptors: a boot touches some hundred files
/// of a layer.
const PINS_MAX: u64 = 2048;
/// As many layers as a node with a hundred images has share the descriptors for that.
const PINS_SHARED_BY: u64 = 512;

/// A layer with its mount. Dropping it unmounts, lazily if it is in use.
#[derive(Debug)]
pub struct Served {
    pub place: LayerPlace,
    pub boot: Arc<Boot>,
    pub parts: Parts,
    pub mount: Mount,
    prewarming: Prewarming,
}

impl Served {
    /// Mounts a layer whose directory was scanned.
    ///
    /// # Errors
    /// If it cannot be mounted.
    pub fn start(
        place: &LayerPlace,
        source: &Source,
        image: Arc<Image>,
        layering: Layering,
        xattrs: XattrAnswers,
    ) -> anyhow::Result<Self> {
        let boot = Boot::attach(layer_name(&place.layer), image, &source.tree);
        let options = AssemblyOptions {
            mode: Some(ServeMode::Lower),
            xattrs,
            ..AssemblyOptions::default()
        };
        let tree = Arc::clone(&source.tree);
        let Assembly { fs, parts } =
            assembly::of_disk(&source.root, tree, Some(Arc::clone(&boot)), &options)?;
        let mount = mount(fs, place, layering)?;
        Ok(Self {
            place: place.clone(),
            boot,
            parts,
            mount,
            prewarming: Prewarming::new(PrewarmState::Waiting),
        })
    }

    /// Returns the layer.
    pub const fn layer(&self) -> &Digest {
        &self.place.layer
    }

    /// Returns the state of the prewarm.
    pub fn prewarm_state(&self) -> PrewarmState {
        self.prewarming.state()
    }

    /// Brings the boot image into the page cache.
    ///
    /// # Errors
    /// If the mount cannot be used. That costs speed only.
    pub fn prewarm(&self) -> anyhow::Result<PrewarmSummary> {
        let request = PrewarmRequest {
            max_pins: Some(files_for_each_of(PINS_SHARED_BY).min(PINS_MAX)),
            ..PrewarmRequest::default()
        };
        self.prewarming
            .prewarm(&self.boot, &request, |plan, blocks, options| {
                match self.mount.prewarm(plan, blocks, options) {
                    // Unmounted by whoever removes the layer: nothing is wrong.
                    Err(_) if !self.mount.visible() => Ok(PrewarmReport {
                        cancelled: true,
                        ..PrewarmReport::default()
                    }),
                    result => result,
                }
            })
    }

    /// Cancels the prewarm, whether it has begun or not.
    pub fn cancel_prewarm(&self) {
        self.prewarming.close();
    }

    /// Unmounts; remaining users are served until they end.
    ///
    /// # Errors
    /// If another mount covers it.
    pub fn unmount(&self) -> anyhow::Result<()> {
        self.cancel_prewarm();
        self.mount.unmount(Busy::Lazy, UMOUNT_PATIENCE)?;
        Ok(())
    }

    /// Returns whether it has no users any more.
    pub fn is_over(&self) -> bool {
        self.mount.wait_for_users(Duration::ZERO)
    }
}

/// Mounts a layer's file system.
pub(crate) fn mount(
    fs: FileSystem,
    place: &LayerPlace,
    layering: Layering,
) -> anyhow::Result<Mount> {
    let LayerPlace { target, label, .. } = place;
    let mut options = MountOptions::new(target, label);
    options.layering = layering;
    options.privileges = privileges_at(target);
    // Opens cost nothing and pages are pushed: few requests come, and a second thread for each of
    // some hundred layers would wait for ever.
    options.threads = NonZeroUsize::MIN;
    Mount::start(Arc::new(fs), &options)
        .with_context(|| format!("mounting on {}{}", target.display(), needs_root()))
}
