//! Exports of block devices: over NBD, as the disk of a virtual machine, and as a block device of this one.
//!
//! - [`Exporter`] exports a [`BlockDevice`](blocks::BlockDevice); the [`Export`] that it
//!   returns is served until it is stopped.
//! - [`nbd`]: the network block device over a unix socket, for QEMU, libnbd's programs and the kernel.
//! - [`vhost_user`]: vhost-user-blk, for QEMU and libblkio.
//! - [`ublk`]: a block device of this machine.
//!
//! A server may be killed and started again on the same socket: clients that reconnect lose nothing.
//!
//! ```
//! use std::sync::Arc;
//!
//! use blocks::testing::MemDevice;
//! use blockexport::nbd::{NbdConfig, NbdExporter};
//! use blockexport::Exporter as _;
//!
//! let dir = tempfile::tempdir()?;
//! let exporter = NbdExporter { socket: dir.path().join("nbd.sock"), config: NbdConfig::default() };
//! let export = exporter.export(Arc::new(MemDevice::new(1 << 20, 512)))?;
//! // Now `qemu-img info` or `nbdinfo` of this address would show a disk of 1 MiB.
//! assert!(export.address().starts_with("nbd+unix:///disk?socket="));
//! assert_eq!(export.counts().clients, 0);
//! export.stop();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod accept;
mod budget;
mod crew;
mod error;
mod export;
pub mod nbd;
mod place;
pub mod ublk;
pub mod vhost_user;

pub use error::ExportError;
pub use export::{Counts, Export, Exporter};
pub use place::Place;
