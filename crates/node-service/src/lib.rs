//! The node service: one process that owns the mounts and devices of a machine, and workers that serve them.
//!
//! The node holds what must outlive a worker: the FUSE device, the private mount and the opened
//! source of each mount. A worker is stateless beyond the boot image and the mount's spec; when it
//! dies, another takes over with the same descriptors (docs/adr/0007). When the node itself dies,
//! its keeper holds the descriptors: systemd, or a process of yolofs (docs/adr/0008).
//!
//! A program starts the node with [`service::run`], a worker with [`worker::run`], and the process that makes
//! boot images of boots that drift with [`lesson::run`].
//!
//! ```
//! use std::sync::Arc;
//!
//! use node_api::client::NodeClient;
//! use node_api::memory::MemoryNode;
//! use node_service::api::{Api, listen};
//!
//! // The API, in front of a node that is only a list of mounts.
//! let dir = tempfile::tempdir()?;
//! let socket = dir.path().join("node.sock");
//! let api = Api::serve(listen(&socket)?, Arc::new(MemoryNode::default()))?;
//!
//! let client = NodeClient::at(&socket);
//! let spec = r#"{"source": "/srv/web", "mountpoint": "/mnt/web", "store": "/var/lib/yolofs"}"#;
//! let made = client.make(&serde_json::from_str(spec)?)?;
//! assert!(made.new);
//! assert_eq!(client.mounts()?.len(), 1);
//! drop(api);
//! assert!(client.mounts().is_err());
//! # Ok::<(), anyhow::Error>(())
//! ```

#![forbid(unsafe_code)]

mod adopt;
pub mod api;
mod asked;
mod assigned;
mod assignment;
mod attach;
mod connector;
mod covers;
mod deaths;
mod descriptors;
mod device;
mod device_service;
mod device_takeover;
mod drain;
mod drift;
mod few;
mod file_devices;
mod gap;
mod guard;
#[cfg(feature = "testing")]
pub mod hostile;
mod keep;
mod learn;
pub mod lesson;
mod lost;
mod make;
mod metrics;
mod missing;
mod mount_locks;
mod network;
mod owned;
mod owner;
mod ownership;
mod place;
mod probe;
mod restore;
pub mod service;
mod takeover;
mod ublk_devices;
mod upgrade;
mod watch;
mod wire;
pub mod worker;
mod workers;
