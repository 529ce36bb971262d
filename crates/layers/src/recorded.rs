//! One layer that is recorded instead of sped up.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use localfs::{Patience, SourceRoot};
use tracer::{Allowance, RawTrace, Trace};
use yolofs::{Busy, Layering, Mount};

use super::served::mount;
use crate::server::LayerPlace;
use mounting::recorded::Recorded;
use mounting::source::Source;

/// How long the mount may be in use when the recording is over; then it is detached.
const UMOUNT_PATIENCE: Duration = Duration::from_secs(10);

/// A mounted layer that records its requests. Dropping it unmounts, lazily if it is in use.
#[derive(Debug)]
pub struct RecordedLayer {
    place: LayerPlace,
    root: Arc<SourceRoot>,
    recorded: Recorded,
    mount: Mount,
}

impl RecordedLayer {
    /// Mounts a layer with a recorder below it, within the memory that the allowance has left.
    ///
    /// # Errors
    /// If it cannot be opened or mounted.
    pub fn start(place: &LayerPlace, allowance: &Arc<Allowance>) -> anyhow::Result<Self> {
        // Opened before the mount covers it: it may be served in place.
        let context = || format!("opening layer {}", place.layer.short());
        let patience = Patience::default().deadline;
        let root = SourceRoot::open_within(&place.source, patience).with_context(context)?;
        let root = Arc::new(root);
        let recorded = Recorded::sharing(&root, allowance).with_context(context)?;
        let mount = mount(recorded.file_system(), place, Layering::Over)?;
        Ok(Self {
            place: place.clone(),
            root,
            recorded,
            mount,
        })
    }

    /// Returns which layer it is.
    #[must_use]
    pub const fn place(&self) -> &LayerPlace {
        &self.place
    }

    /// Returns the time of the last request, or `None` before the first.
    #[must_use]
    pub fn last_event(&self) -> Option<Instant> {
        self.recorded.last_event()
    }

    /// Returns whether content was read so far; names alone do not count.
    #[must_use]
    pub fn has_read(&self) -> bool {
        self.recorded.has_read()
    }

    /// Ends the recording; the mount is still served to its users.
    #[must_use]
    pub fn stop(&self) -> RawTrace {
        self.recorded.stop()
    }

    /// Scans the layer and returns the recording as a trace of it. Files that changed since they were
    /// read are left out, and logged.
    ///
    /// # Errors
    /// If the layer cannot be scanned.
    pub fn trace(&self, raw: RawTrace) -> anyhow::Result<(Source, Trace)> {
        let source = Source::scan(Arc::clone(&self.root))?;
        let (trace, left_out) = self.recorded.trace(raw, &source);
        for file in left_out {
            log::warn!("{file}: left out of the boot image");
        }
        Ok((source, trace))
    }

    /// Unmounts; remaining users are served until they end.
    ///
    /// # Errors
    /// If another mount covers it.
    pub fn detach(&self) -> anyhow::Result<()> {
        Ok(self.mount.unmount(Busy::Lazy, UMOUNT_PATIENCE)?)
    }

    /// Returns whether it has no users any more.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.mount.wait_for_users(Duration::ZERO)
    }
}
