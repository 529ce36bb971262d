//! Docker and containerd, asked for their images and told to run them.
//!
//! - [`ImageName`]: what a user calls an image, and where that says it is;
//! - [`LocalImage`]: an image as an engine keeps it, with the directory of each layer;
//! - [`docker`]: Docker, through its own client program;
//! - [`containerd`]: containerd, through its gRPC interface;
//! - [`EngineError`]: why an engine could not answer.
//!
//! Nothing here knows of boot images. What is found is only read; [`containerd::Lease`] is how a pull puts
//! an image into containerd.

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
pub use image::{ConfigFile, HealthCheck, ImageConfig, LocalImage, LocalLayer};
pub use name::{ImageName, ParseImageNameError, check_reference};
