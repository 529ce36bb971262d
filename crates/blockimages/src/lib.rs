//! Block images as devices: raw files, and layers in overlaybd's formats.
//!
//! - [`open_image`] opens an image by overlaybd's `config.v1.json` and returns a [`LayeredDevice`],
//!   which can be written if the image has an upper.
//! - [`CachedBlobs`] has layers that are not on this machine: on demand, through a [`BlobCache`].
//! - [`convert`](mod@convert) makes block images of container images, and pushes them.
//! - [`manage`] makes images, and commits and collects their writable layers.
//! - [`plan`](mod@plan) is what starts of images read, kept by the digests of layers.
//! - [`DeviceFile`] is a device as a file, for a mount.
//! - [`RawDevice`] is a raw disk image, or any file.
//!
//! ```
//! use blocks::{BlockDevice as _, DeviceAccess};
//!
//! let dir = tempfile::tempdir()?;
//! let path = dir.path().join("disk.raw");
//! std::fs::write(&path, [7; 1024])?;
//! let device = blockimages::RawDevice::open(&path, DeviceAccess::ReadOnly)?;
//! let mut sector = [0; 512];
//! device.read_at(512, &mut sector)?;
//! assert_eq!((device.info().size, sector), (1024, [7; 512]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod blob_source;
mod cache;
mod config;
mod content_root;
pub mod convert;
mod disk_file;
mod error;
mod failed_reads;
mod file;
mod image;
mod layered;
pub mod manage;
mod mounted;
mod origin;
pub mod plan;
mod raw;
mod reads;
mod remote;
mod start;
pub mod start_data;
mod turbo;
mod upper;

pub use blob_source::{BlobSource, RemoteLayer};
pub use cache::{BlobCache, CacheConfig, CacheCounts, CachedBlob, Filler, PlanFetcher};
pub use config::{CONFIG_NAME, DeviceConfig, LowerConfig, UpperConfig};
pub use content_root::{ContentRoot, ParseContentRootError};
pub use error::ImageError;
pub use file::{DeviceFile, FILE_NAME};
pub use image::{OpenedContent, open_contents, open_image, open_image_from};
pub use layered::LayeredDevice;
pub use lsmt::{ReadAt, Trace, TraceDialect, TraceRead};
pub use mounted::{FileDevice, FileSystemKind, MountedImage, Power};
pub use origin::{Origin, OriginConfig, Registries, repository_of};
pub use ranges::{Asker, Ending, Logins};
pub use raw::RawDevice;
pub use remote::{Background, CachedBlobs, MakeOrigin};
pub use start::{LayerStart, RecordingProgress, Start, StartRecorder};
pub use turbo::unpacked_lower;
