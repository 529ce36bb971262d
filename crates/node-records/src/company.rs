//! What kind of worker a mount or a device has.

use std::path::PathBuf;

use node_api::device::DeviceSpec;
use node_api::image::ImageSpec;
use node_api::spec::MountSpec;

/// So many mounts share a worker: a thousand of them cost few processes, and a crash touches few.
pub const SHARED_BY: usize = 64;

/// So many images share a worker because they share its cache, which one process owns.
const CACHE_SHARED_BY: usize = 2048;

/// What kind of worker a mount or a device has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Company {
    /// A worker that serves other mounts, too.
    Shared,
    /// A worker for this mount only, because it crashed others.
    Alone,
    /// A worker for this mount only, which may connect to a block service.
    OnNetwork,
    /// One for block images, which may write to them and ask registries: that of all images with this cache,
    /// or one of its own.
    OfImages(Option<PathBuf>),
}

impl Company {
    /// Returns what kind of worker a mount is to have, which crashed others or did not.
    #[must_use]
    pub fn of(spec: &MountSpec, crashed_others: bool) -> Self {
        if ImageSpec::of_source(&spec.source).is_some() {
            let image = spec.image.as_ref();
            return Self::OfImages(image.and_then(|image| image.cache.clone()));
        }
        match (&spec.nic, crashed_others) {
            (Some(_), _) => Self::OnNetwork,
            (None, true) => Self::Alone,
            (None, false) => Self::Shared,
        }
    }

    /// Returns what kind of worker a device is to have.
    #[must_use]
    pub fn of_device(spec: &DeviceSpec) -> Self {
        Self::OfImages(spec.options.cache.clone())
    }

    /// Returns how many may be served by it.
    #[must_use]
    pub const fn room(&self) -> usize {
        match self {
            Self::Shared => SHARED_BY,
            Self::OfImages(Some(_)) => CACHE_SHARED_BY,
            Self::Alone | Self::OnNetwork | Self::OfImages(None) => 1,
        }
    }

    /// Whether others are served by it, too.
    #[must_use]
    pub const fn is_shared(&self) -> bool {
        self.room() > 1
    }
}
