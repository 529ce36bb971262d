//! A proxy snapshotter for containerd on overlayfs, with an interface for serving lower layers.
//!
//! containerd keeps images as chains of snapshots: each layer is unpacked into an *active* one and
//! *committed*, and a container runs on an active one whose parents are the layers. A snapshotter
//! keeps these, and returns their mounts. This one does what containerd's own overlayfs snapshotter
//! does, and gets the place of each lower layer from [`Lowers`].
//!
//! - [`Snapshotter`]: the snapshots of one root, as a plain object that blocks.
//! - [`service`]: the same on a socket, as gRPC.
//! - [`Lowers`]: the interface; [`PlainLowers`] serves nothing, [`FaultyLowers`] serves badly.
//! - [`BlockImages`]: another interface, to who makes file systems of layers that are block images.
//! - [`Staged`]: a layer that another process unpacks, and a snapshot adopts.
//! - [`Unpacker`]: the capabilities of the process that unpacks layers.
//! - [`FastLayers`]: a fast place for layers; another interface, [`Unpacks`], decides which go there.
//!
//! ```
//! use snapshotter::{Config, Kind, Labels, PlainLowers, Snapshotter};
//!
//! let dir = tempfile::tempdir()?;
//! let config = Config { root: dir.path().join("root"), upper: None, layers: None, unpacker: None, blocks: None };
//! let snapshots = Snapshotter::open(config, PlainLowers)?;
//!
//! // A layer is unpacked into an active snapshot, and committed.
//! let mounts = snapshots.prepare("unpacking", None, Labels::new())?;
//! assert_eq!(mounts[0].fs_type, "bind");
//! std::fs::write(format!("{}/file", mounts[0].source), "from the layer")?;
//! snapshots.commit("layer", "unpacking", Labels::new())?;
//!
//! // A container runs on a snapshot of its own, on top of the layer.
//! snapshots.prepare("container", Some("layer"), Labels::new())?;
//! assert_eq!(snapshots.stat("layer")?.kind, Kind::Committed);
//! assert_eq!(snapshots.stat("container")?.parent.as_deref(), Some("layer"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod block;
mod block_layer;
mod catalog;
mod copy;
mod directories;
mod disk_usage;
mod error;
mod fast;
mod filter;
mod kind;
mod known;
mod lowers;
mod mapping;
mod overlay;
mod own_device;
mod pace;
mod same;
pub mod service;
mod snapshot;
mod snapshotter;
mod staged;
mod tier;
mod unpacks;

pub use block::{BlockDir, BlockError, BlockImages};
pub use block_layer::BlockLayer;
pub use error::{Result, SnapshotError};
pub use fast::{FastConfig, FastLayers, FastUsage, Taken};
pub use filter::FilterError;
pub use known::Unpacker;
pub use lowers::{FaultyLowers, LayerDir, Lowers, PlainLowers};
pub use overlay::Mount;
pub use own_device::{DeviceForm, OwnDevice, WantedDevice};
pub use pace::{Pace, Unhurried};
pub use snapshot::{Kind, Labels, Snapshot, SnapshotId, Stack, Usage};
pub use snapshotter::{Config, Snapshotter, Staging};
pub use staged::{STAGED_LABEL, Staged, StagedName};
pub use tier::{FastPlace, UpperConfig, UpperUsage, WhenFull};
pub use unpacks::{Adopted, Unpack, Unpacks};
