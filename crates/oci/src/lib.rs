//! Container images outside an engine: references, layouts, archives, layers and registries.
//!
//! - [`Reference`] is the name of an image: `nginx`, `registry:5000/a/b:tag@sha256:…`.
//! - [`layout`] and [`archive`] open images in a directory or a tar; both return an
//!   [`Image`]: its configuration and its layers, each with its diff ID.
//! - [`unpack`] makes a directory of a layer, in overlayfs's format, or its metadata and contents
//!   without one.
//! - [`registry`] is the protocol: manifests, blobs, and artifacts that refer to an image.
//! - [`fetch_layer`] does both at once: a layer is unpacked while it is being downloaded.
//!
//! Nothing here is trusted: every blob is verified by its digest while it is read, and every
//! length is bounded before memory is allocated. Nothing here depends on boot images.
//!
//! ```
//! use oci::Reference;
//!
//! let nginx: Reference = "nginx".parse()?;
//! assert_eq!(nginx.repository(), "library/nginx");
//! assert_eq!(nginx.tag(), Some("latest"));
//! assert_eq!(nginx.familiar(), "nginx");
//! # Ok::<(), oci::ParseReferenceError>(())
//! ```

#![forbid(unsafe_code)]

pub mod archive;
mod blob;
mod error;
mod file_range;
mod image;
mod incoming;
pub mod layout;
mod reference;
pub mod registry;
pub mod unpack;

pub use blob::{BlobError, Verified, digest_and_len, digest_of};
pub use distribution::image::{
    CONFIG_MAX, DOCUMENT_MAX, DOCUMENT_TYPES, Descriptor, DocumentError, ImageConfig, Index,
    Manifest, OCI_CONFIG, OCI_INDEX, OCI_MANIFEST, Platform, RunConfig,
};
pub use error::ImageError;
pub use image::{Image, LayerBlob};
pub use incoming::{DownloadWatch, Incoming, IncomingError, fetch_layer};
pub use reference::{ParseReferenceError, Reference};

/// Receives the number of bytes done, and breaks to cancel.
pub type Watch<'a> = &'a mut dyn FnMut(u64) -> std::ops::ControlFlow<()>;
