//! Boot images in registries: artifacts that refer to their container image (docs/registries.md).
//!
//! [`push`](push::push) packs the boot images of an image's layers and pushes them beside the image;
//! [`pull`](pull::pull) fetches and verifies them on another node. Both need a
//! [`Repository`](oci::registry::Repository), which the caller opens with the credentials of [`login`], through the
//! proxy of [`proxy`], before it [confines](confine) itself. [`plans`] does the same for block images, whose boot
//! images are plans.
//!
//! ```
//! // A registry is asked through the proxy of the environment, unless NO_PROXY names it.
//! assert!(artifacts::proxy::is_covered(".example.com", "registry.example.com"));
//! assert!(!artifacts::proxy::is_covered("example.com", "registry.example.org"));
//! ```

#![forbid(unsafe_code)]

mod confinement;
pub mod login;
mod manifest;
pub mod plans;
pub mod proxy;
pub mod pull;
pub mod push;
mod transfer;

pub use confinement::confine;
