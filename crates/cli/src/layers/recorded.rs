//! One layer that is recorded instead of sped up.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context as _;
use tracer::{Limits, Recorder, Trace};
use yolofs::{Busy, Config, FileSystem, Layering, Mount};

use super::LayerPlace;
use super::served::mount;
use crate::read_around::ReadAround;
use crate::source::{Source, space, trace_info};

/// How long the mount may be in use when the recording is over; then it is detached.
const UMOUNT_PATIENCE: Duration = Duration::from_secs(10);

/// A mounted layer that notes what is asked of it. Dropping it unmounts, lazily if it is in use.
#[derive(Debug)]
pub(crate) struct RecordedLayer {
    place: LayerPlace,
    source: Source,
    recorder: Arc<Recorder>,
    started: SystemTime,
    mount: Mount,
}

impl RecordedLayer {
    /// Mounts a layer with a recorder under it.
    ///
    /// # Errors
    /// If it cannot be opened, scanned or mounted.
    pub(crate) fn start(place: &LayerPlace) -> anyhow::Result<Self> {
        // Opened before the mount covers it: it may be served in place.
        let source = Source::open(&place.source)
            .with_context(|| format!("opening layer {}", place.layer.short()))?;
        let recorder = Arc::new(Recorder::new(Limits::default()));
        let reader = source.reader();
        let fs = FileSystem::new(
            Arc::clone(&source.tree) as _,
            Arc::new(ReadAround::new(Arc::clone(&reader))),
            Config::default(),
        )
        .with_sparse(Arc::clone(&reader) as _)
        .with_residency(reader)
        .with_space(space(&source.root))
        .with_observer(Arc::clone(&recorder) as _);
        let mount = mount(fs, place, Layering::Over)?;
        Ok(Self {
            place: place.clone(),
            source,
            recorder,
            started: SystemTime::now(),
            mount,
        })
    }

    /// Returns which layer it is.
    #[must_use]
    pub(crate) const fn place(&self) -> &LayerPlace {
        &self.place
    }

    /// Returns when the last request was answered, or `None` before the first.
    #[must_use]
    pub(crate) fn last_event(&self) -> Option<Instant> {
        self.recorder.last_event()
    }

    /// Ends the recording and leaves the mount to whoever uses it.
    #[must_use]
    pub(crate) fn stop(&self) -> Trace {
        let info = trace_info(&self.source.root, self.started);
        self.recorder.finish(info, &self.source.tree)
    }

    /// Returns the layer's directory, as it was opened before the mount covered it.
    #[must_use]
    pub(crate) const fn source(&self) -> &Source {
        &self.source
    }

    /// Takes the mount away; users that remain are served until the last of them lets go.
    ///
    /// # Errors
    /// If another mount lies on top of it.
    pub(crate) fn detach(&self) -> anyhow::Result<()> {
        Ok(self.mount.unmount(Busy::Lazy, UMOUNT_PATIENCE)?)
    }

    /// Returns whether nobody uses it any more.
    #[must_use]
    pub(crate) fn is_over(&self) -> bool {
        self.mount.wait_for_users(Duration::ZERO)
    }
}
