//! One layer that is served from its boot image.

use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use blocks::{CachedSource, Digest};
use bootimg::{Attached, Image};
use localfs::{DirSource, Patience, TimedSource};
use yolofs::{
    Busy, Config, FileSystem, Layering, Mode, Mount, MountOptions, PrewarmOptions, PrewarmReport,
    XattrAnswers,
};

use super::reach::privileges_at;
use crate::server::LayerPlace;
use host::mount_table::needs_root;
use mounting::descriptors::files_for_each_of;
use mounting::prewarming::Prewarming;
use mounting::source::{Source, space_within};
use node_api::mount_daemon::PrewarmSummary;
use node_api::mount_state::PrewarmState;

/// How long users of a mount may take to let go of it.
const UMOUNT_PATIENCE: Duration = Duration::from_secs(2);

/// Most files that a prewarm of one layer holds by descriptors: a boot touches some hundred files
/// of a layer.
const PINS_MAX: u64 = 2048;
/// As many layers as a node with a hundred images has share the descriptors for that.
const PINS_SHARED_BY: u64 = 512;

/// The source of a layer: what the boot image has not, the directory has.
type Cached = CachedSource<Arc<Attached>, Arc<TimedSource<DirSource>>>;

/// A layer with its mount. Dropping it unmounts, lazily if it is in use.
#[derive(Debug)]
pub struct Served {
    pub place: LayerPlace,
    pub image: Arc<Attached>,
    pub source: Arc<Cached>,
    pub mount: Mount,
    prewarming: Prewarming,
}

impl Served {
    /// Mounts a layer whose plain directory was scanned.
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
        // Mostly the two trees are equal. One of them is enough then: the trees are most of what
        // a served layer takes of memory.
        let tree = if **image.tree() == *source.tree {
            Arc::clone(image.tree())
        } else {
            Arc::clone(&source.tree)
        };
        let root = Arc::clone(&source.root);
        let source = Source { root, tree };
        let image = Arc::new(image.attach(&source.tree));
        let reader = TimedSource::new(source.reader(), Patience::default());
        let reader = Arc::new(reader);
        let cached = Arc::new(CachedSource::new(Arc::clone(&image), Arc::clone(&reader)));
        let boot_files: HashSet<_> = image.plan().extents.iter().map(|e| e.file).collect();
        let mode = Mode::Lower;
        let fs = FileSystem::new(
            Arc::clone(&source.tree) as _,
            Arc::clone(&cached) as _,
            Config { mode, boot_files },
        )
        .with_xattr_answers(xattrs)
        .with_sparse(Arc::clone(&reader) as _)
        .with_attrs(Arc::clone(&reader) as _)
        .with_space(space_within(&reader, &source.root))
        .with_waiter(reader.waiter());
        let mount = mount(fs, place, layering)?;
        Ok(Self {
            place: place.clone(),
            image,
            source: cached,
            mount,
            prewarming: Prewarming::new(PrewarmState::Waiting),
        })
    }

    /// Returns the layer.
    pub const fn layer(&self) -> &Digest {
        &self.place.layer
    }

    /// Says where the prewarm stands.
    pub fn prewarm_state(&self) -> PrewarmState {
        self.prewarming.state()
    }

    /// Brings the boot image into the page cache.
    ///
    /// # Errors
    /// If the mount cannot be used. That costs speed only.
    pub fn prewarm(&self) -> anyhow::Result<PrewarmSummary> {
        let max_pins = Some(files_for_each_of(PINS_SHARED_BY).min(PINS_MAX));
        let prewarmed = self.prewarming.run(|cancel| {
            let options = PrewarmOptions {
                cancel: Some(cancel),
                max_pins,
                ..PrewarmOptions::default()
            };
            let blocks = self.image.passing();
            let result = self.mount.prewarm(self.image.plan(), &blocks, &options);
            match result {
                // Unmounted by whoever removes the layer: nothing is wrong.
                Err(_) if !self.mount.visible() => Ok(PrewarmReport {
                    cancelled: true,
                    ..PrewarmReport::default()
                }),
                result => result,
            }
        });
        prewarmed.context("bringing the boot image into the page cache")
    }

    /// Makes a prewarm end soon, whether it has begun or not.
    pub fn cancel_prewarm(&self) {
        self.prewarming.close();
    }

    /// Unmounts; remaining users are served until they end.
    ///
    /// # Errors
    /// If another mount lies on top of it.
    pub fn unmount(&self) -> anyhow::Result<()> {
        self.cancel_prewarm();
        self.mount.unmount(Busy::Lazy, UMOUNT_PATIENCE)?;
        Ok(())
    }

    /// Returns whether nobody uses it any more.
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
