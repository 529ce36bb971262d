//! The images that one process has open, and the caches that they share.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use blockimages::{
    Background, BlobCache, BlobSource, CacheConfig, CachedBlobs, Ending, OriginConfig, Start,
    StartRecorder,
};
use blocks::{BlockDevice, DeviceAccess};
use node_api::image::{ImageSpec, ImageStatus, KeptPlan, Prefetch, StartPlanState, StartStatus};
use oci::Reference;
use parking_lot::Mutex;

use crate::open::{is_image, open_image};
use crate::{plans, registry};

/// The caches of this process. A cache directory belongs to one process, and devices in it share the cache.
#[derive(Debug, Default)]
pub struct Images {
    caches: Mutex<Vec<(PathBuf, Weak<BlobCache>)>>,
}

/// Whether an image was opened before, for the same mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// It was not: a start follows.
    First,
    /// It was, by a worker that has ended: somebody waits for what he reads.
    Again,
}

/// An image that can be read, and what fetches its layers meanwhile.
pub struct OpenedImage {
    /// The image.
    pub device: Arc<dyn BlockDevice>,
    /// Where its layers come from, if they are not on this machine.
    pub cache: Option<Arc<BlobCache>>,
    start: Start,
    /// For the plan that is made of a recording.
    image: PathBuf,
    store: PathBuf,
    /// Fetches as long as it is there.
    blobs: Option<CachedBlobs>,
}

impl OpenedImage {
    /// Returns how its start goes, and what its cache has done.
    #[must_use]
    pub fn status(&self) -> ImageStatus {
        let counts = self.cache.as_ref().map(|cache| cache.counts());
        let counts = counts.unwrap_or_default();
        let progress = self.start.recorder.as_ref().map(StartRecorder::progress);
        let plan = match (&self.start.plan, progress) {
            (_, Some(progress)) if progress.is_over => StartPlanState::Recorded,
            (_, Some(_)) => StartPlanState::Recording,
            (Some(_), None) if self.has_plan() => StartPlanState::Fetched,
            (Some(_), None) => StartPlanState::Planned,
            (None, None) => StartPlanState::Unknown,
        };
        let progress = progress.unwrap_or_default();
        let quiet_ms = progress
            .quiet
            .map(|quiet| u64::try_from(quiet.as_millis()).unwrap_or(u64::MAX));
        ImageStatus {
            start: StartStatus {
                plan,
                recorded_bytes: progress.bytes,
                quiet_ms,
            },
            fetches: counts.requests,
            fetched_bytes: counts.fetched_bytes,
            cached_bytes: counts.cached_bytes,
        }
    }

    fn has_plan(&self) -> bool {
        self.blobs.as_ref().is_some_and(CachedBlobs::has_plans)
    }

    /// Has all who wait for servers give up after this time: the device ends.
    pub fn give_up(&self, patience: Duration) {
        self.start.ending.within(patience);
    }

    /// Makes a plan of what was read since the image was opened, and records no more.
    ///
    /// # Errors
    /// If it is not being recorded, nothing was read, or the store cannot be written.
    pub fn keep_plan(&self) -> anyhow::Result<KeptPlan> {
        let recorder = self.start.recorder.as_ref();
        let recorder = recorder.filter(|recorder| !recorder.progress().is_over);
        let recorder = recorder.context("the start of this image is not being recorded")?;
        let kept = plans::keep(&self.store, &self.image, &recorder.trace())?;
        recorder.stop();
        Ok(kept)
    }
}

impl std::fmt::Debug for OpenedImage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenedImage")
            .field("device", &self.device.info())
            .field("cache", &self.cache)
            .finish_non_exhaustive()
    }
}

impl Images {
    /// Opens an image, or a raw disk, and begins to fetch what is known of its start: by the store, or by its registry.
    ///
    /// # Errors
    /// If it cannot be opened, somebody else writes to it, or another process owns the cache.
    pub fn open(
        &self,
        path: &Path,
        spec: &ImageSpec,
        store: &Path,
        (access, opening): (DeviceAccess, Opening),
    ) -> anyhow::Result<OpenedImage> {
        self.open_until(path, spec, store, (access, opening), Arc::default())
    }

    /// Does what [`open`](Self::open) does, until `ending` says that the image is not wanted any more; it is that of
    /// the device, too.
    ///
    /// # Errors
    /// As [`open`](Self::open), and if it was ended.
    pub fn open_until(
        &self,
        path: &Path,
        spec: &ImageSpec,
        store: &Path,
        (access, opening): (DeviceAccess, Opening),
        ending: Arc<Ending>,
    ) -> anyhow::Result<OpenedImage> {
        let began = Instant::now();
        let dir = spec.cache.as_deref().filter(|_| is_image(path));
        let cache = dir.map(|dir| self.cache(dir, spec)).transpose()?;
        let background = match spec.background {
            Prefetch::Plan => Background::Plan,
            Prefetch::Everything => Background::Everything,
        };
        let blobs = cache.clone().map(|cache| {
            let (talk, mirrors) = (spec.registry.clone(), spec.mirrors.clone());
            CachedBlobs::of_registries(cache, background, move |reference: &Reference| {
                let config = registry::config(&talk, reference);
                let config = config.map_err(|error| std::io::Error::other(format!("{error:#}")))?;
                let mirrors = mirrors.clone();
                Ok(OriginConfig { mirrors, ..config })
            })
        });
        let (plan, data) = match &cache {
            Some(_) if spec.plan => {
                if opening == Opening::First {
                    plans::take(store, path, spec);
                }
                (plans::known(store, path), plans::known_data(store, path))
            }
            _ => (None, None),
        };
        // What an earlier process has seen of the start is lost, and half of it is no plan.
        let records = spec.record && opening == Opening::First && !plans::is_whole(&plan, path);
        let start = Start {
            plan,
            data,
            recorder: records.then(StartRecorder::default),
            began: Some(began),
            ending,
        };
        let source = blobs.as_ref().map(|blobs| blobs as &dyn BlobSource);
        Ok(OpenedImage {
            device: open_image(path, access, source, &start)?,
            cache,
            start,
            image: path.to_owned(),
            store: store.to_owned(),
            blobs,
        })
    }

    fn cache(&self, dir: &Path, spec: &ImageSpec) -> anyhow::Result<Arc<BlobCache>> {
        let mut caches = self.caches.lock();
        caches.retain(|(_, cache)| cache.strong_count() > 0);
        let known = caches.iter().find(|(known, _)| known == dir);
        if let Some(cache) = known.and_then(|(_, cache)| cache.upgrade()) {
            return Ok(cache);
        }
        let config = CacheConfig {
            limit_bytes: spec.cache_bytes,
            read_deadline: spec.read_deadline(),
            ..CacheConfig::default()
        };
        let cache = BlobCache::open(dir, config);
        let cache = cache.with_context(|| format!("opening the cache {}", dir.display()))?;
        caches.push((dir.to_owned(), Arc::downgrade(&cache)));
        Ok(cache)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_is_shared_within_a_process_and_with_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let spec = ImageSpec::default();
        let (images, others) = (Images::default(), Images::default());
        let cache = images.cache(dir.path(), &spec).unwrap();
        let again = images.cache(dir.path(), &spec).unwrap();
        assert!(Arc::ptr_eq(&cache, &again));
        // As another process would.
        let why = format!("{:#}", others.cache(dir.path(), &spec).unwrap_err());
        assert!(why.contains("cache"), "{why}");
        drop((cache, again));
        others.cache(dir.path(), &spec).unwrap();
    }
}
