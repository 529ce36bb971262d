//! The images that one process has open, and the caches that they share.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use anyhow::Context as _;
use blockimages::{
    Background, BlobCache, BlobSource, CacheConfig, CachedBlobs, OriginConfig, Start,
};
use blocks::{BlockDevice, DeviceAccess};
use node_api::image::{ImageSpec, Prefetch};
use oci::Reference;
use parking_lot::Mutex;

use crate::open::{is_image, open_image};
use crate::{plans, registry};

/// The caches of this process. A cache directory belongs to one process, and devices in it share the cache.
#[derive(Debug, Default)]
pub struct Images {
    caches: Mutex<Vec<(PathBuf, Weak<BlobCache>)>>,
}

/// An image that can be read, and what fetches its layers meanwhile.
pub struct OpenedImage {
    /// The image.
    pub device: Arc<dyn BlockDevice>,
    /// Where its layers come from, if they are not on this machine.
    pub cache: Option<Arc<BlobCache>>,
    /// Fetches as long as it is there.
    _blobs: Option<CachedBlobs>,
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
    /// Opens an image, or a raw disk, and begins to fetch what the store knows of its start.
    ///
    /// # Errors
    /// If it cannot be opened, somebody else writes to it, or another process owns the cache.
    pub fn open(
        &self,
        path: &Path,
        spec: &ImageSpec,
        store: &Path,
        access: DeviceAccess,
    ) -> anyhow::Result<OpenedImage> {
        let dir = spec.cache.as_deref().filter(|_| is_image(path));
        let cache = dir
            .map(|dir| self.cache(dir, spec.cache_bytes))
            .transpose()?;
        let background = match spec.background {
            Prefetch::Plan => Background::Plan,
            Prefetch::Everything => Background::Everything,
        };
        let blobs = cache.clone().map(|cache| {
            let (talk, mirrors) = (spec.registry.clone(), spec.mirrors.clone());
            CachedBlobs::of_registries(cache, background, move |reference: &Reference| {
                let config = registry::config(&talk, reference);
                let registry =
                    config.map_err(|error| std::io::Error::other(format!("{error:#}")))?;
                let mirrors = mirrors.clone();
                Ok(OriginConfig { registry, mirrors })
            })
        });
        let plan = match &cache {
            Some(_) if spec.plan => plans::known(store, path),
            _ => None,
        };
        let start = Start {
            plan,
            recorder: None,
        };
        let source = blobs.as_ref().map(|blobs| blobs as &dyn BlobSource);
        Ok(OpenedImage {
            device: open_image(path, access, source, &start)?,
            cache,
            _blobs: blobs,
        })
    }

    fn cache(&self, dir: &Path, limit_bytes: u64) -> anyhow::Result<Arc<BlobCache>> {
        let mut caches = self.caches.lock();
        caches.retain(|(_, cache)| cache.strong_count() > 0);
        let known = caches.iter().find(|(known, _)| known == dir);
        if let Some(cache) = known.and_then(|(_, cache)| cache.upgrade()) {
            return Ok(cache);
        }
        let config = CacheConfig {
            limit_bytes,
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
        let (images, others) = (Images::default(), Images::default());
        let cache = images.cache(dir.path(), 1 << 20).unwrap();
        let again = images.cache(dir.path(), 1 << 20).unwrap();
        assert!(Arc::ptr_eq(&cache, &again));
        // As another process would.
        let why = format!("{:#}", others.cache(dir.path(), 1 << 20).unwrap_err());
        assert!(why.contains("cache"), "{why}");
        drop((cache, again));
        others.cache(dir.path(), 1 << 20).unwrap();
    }
}
