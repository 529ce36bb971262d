//! `nicfetch`, the service on a host's SmartNIC: images are fetched once, and served to all authorized
//! virtual machines of the host.
//!
//! It is a [`mirror::Mirror`] for engines that pull images and a [`blockservice::service::Service`]
//! for mounts that read blocks, over one disk. [`admin`] is the API by which an operator queries and
//! controls both: health, metrics, cached data, prewarming, pins; [`client`] is its client. [`serve`] runs
//! all of this by a [`config::Config`], and [`import`] makes sources of directories, disk images
//! and container images.
//!
//! ```
//! use nicfetch::admin::{AdminToken, Removed};
//!
//! // The token itself is never printed.
//! assert_eq!(format!("{:?}", AdminToken::new("secret")), "AdminToken");
//! // What the API answers is JSON.
//! let removed: Removed = serde_json::from_str(r#"{"blobs": 2, "bytes": 4096}"#)?;
//! assert_eq!(removed.bytes, 4096);
//! # Ok::<(), serde_json::Error>(())
//! ```

#![forbid(unsafe_code)]

pub mod admin;
pub mod blocks;
pub mod client;
pub mod config;
mod feed;
pub mod image;
pub mod import;
mod import_target;
pub mod operator;
pub mod place;
pub mod pulled;
pub mod serve;
