//! Block images as devices of this machine: opened as the node is asked to, and made reachable.
//!
//! - [`Images`] opens images; those that share a cache directory in one process share its [`BlobCache`].
//! - [`open_image`](open::open_image) opens one with what the caller has to fetch layers with.
//! - [`grow`] makes a device larger.
//! - [`exporter`] serves a device at a socket.
//! - [`identity`] tells what an image is from what others are.
//! - [`plans`] is what the store of boot images knows of starts of images.
//!
//! ```
//! use blocks::DeviceAccess;
//! use node_api::image::ImageSpec;
//!
//! let dir = tempfile::tempdir()?;
//! let disk = dir.path().join("disk.raw");
//! std::fs::write(&disk, [7; 4096])?;
//! let images = devices::Images::default();
//! let how = (DeviceAccess::ReadOnly, devices::Opening::First);
//! let opened = images.open(&disk, &ImageSpec::default(), dir.path(), how)?;
//! assert_eq!(opened.device.info().size, 4096);
//! # Ok::<(), anyhow::Error>(())
//! ```
//!
//! [`BlobCache`]: blockimages::BlobCache

#![forbid(unsafe_code)]

mod export;
mod growth;
mod identity;
mod images;
pub mod open;
pub mod plans;
mod registry;

pub use export::exporter;
pub use growth::grow;
pub use identity::identity;
pub use images::{Images, OpenedImage, Opening};
