//! The node, its mounts and its devices, as others see them: what a mount or a device is asked to be ([`spec`],
//! [`device`]), what a mount tells of itself ([`status`]), and how the node is asked ([`client`], docs/api.md).
//!
//! Nothing here mounts. The operations of a node are a trait ([`control::NodeControl`]), so that its callers
//! can be tested without a node.
//!
//! ```
//! use node_api::spec::MountSpec;
//!
//! let asked = r#"{"source": "/srv/web", "mountpoint": "/mnt/web", "store": "/var/lib/yolofs/store"}"#;
//! let spec: MountSpec = serde_json::from_str(asked)?;
//! assert!(spec.inject && spec.is_on_disk());
//! // What is not understood is refused, and not ignored.
//! assert!(serde_json::from_str::<MountSpec>(r#"{"mode": "upper"}"#).is_err());
//! # Ok::<(), serde_json::Error>(())
//! ```

#![forbid(unsafe_code)]

pub mod bodies;
pub mod boot_choice;
pub mod client;
pub mod control;
pub mod device;
pub mod image;
#[cfg(any(test, feature = "testing"))]
pub mod memory;
pub mod mount_daemon;
pub mod mount_state;
pub mod nic;
pub mod nic_needs;
pub mod nic_status;
pub mod serve_mode;
pub mod spec;
pub mod status;
pub mod view;
