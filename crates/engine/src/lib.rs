//! Clients of Docker and containerd: images, containers, leases.
//!
//! - [`ImageName`]: a user's name of an image, with its location;
//! - [`LocalImage`]: an image as an engine stores it, with the directory of each layer;
//! - [`docker`]: Docker, through its own client program;
//! - [`containerd`]: containerd, through its gRPC interface;
//! - [`EngineError`]: why a request failed.
//!
//! Nothing here depends on boot images. Images are only read; [`containerd::Lease`] is how a pull stores
//! an image in containerd.
//!
//! ```
//! use blocks::Digest;
//! use engine::ImageName;
//! use engine::containerd::chain_ids;
//!
//! let name = ImageName::parse("containerd://k8s.io/docker.io/library/nginx:1.27")?;
//! let expected = ImageName::Containerd {
//!     namespace: "k8s.io".to_owned(),
//!     reference: "docker.io/library/nginx:1.27".to_owned(),
//! };
//! assert_eq!(name, Some(expected));
//! // What does not say where the image is, is no name of an engine's.
//! assert_eq!(ImageName::parse("/srv/tree")?, None);
//!
//! // containerd calls the lowest layer by its own digest, and others by all below them, too.
//! let layers = [Digest([1; 32]), Digest([2; 32])];
//! let chains = chain_ids(&layers);
//! assert_eq!(chains[0], layers[0]);
//! assert_ne!(chains[1], layers[1]);
//! # Ok::<(), engine::ParseImageNameError>(())
//! ```

#![forbid(unsafe_code)]

mod call;
pub mod containerd;
pub mod docker;
mod error;
mod image;
mod name;
mod time;

pub use call::{Follow, Followed};
pub use containerd::Containerd;
pub use docker::Docker;
pub use error::EngineError;
pub use image::{LocalImage, LocalLayer};
pub use name::{ImageName, ParseImageNameError, check_reference};
