//! `nicfetch`, the service on a host's SmartNIC: images are fetched once, and served to all virtual
//! machines of the host that may have them.
//!
//! It is a [`mirror::Mirror`] for engines that pull images and a [`blockservice::service::Service`]
//! for mounts that read blocks, over one disk. [`admin`] is the API by which an operator sees and
//! changes both: health, metrics, what is kept, prewarming, pins.
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
