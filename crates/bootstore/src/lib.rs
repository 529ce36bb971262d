//! The store of boot images as the programs of a node use it ([`store`]), and the tiers of faster memory
//! that copies of boot images and of whole files lie on ([`tiers`], docs/tiering.md).
//!
//! The format and the store itself are of crate `bootimg`, the arithmetic of placement of crate `tiering`:
//! here are their files on this machine, locks between processes, and the moves.
//!
//! ```
//! use bootstore::store::StoreSettings;
//!
//! let dir = tempfile::tempdir()?;
//! let settings = StoreSettings::to_read(dir.path().join("store"));
//! assert!(settings.open_existing()?.is_none(), "a store is made when something is written to it");
//! # Ok::<(), anyhow::Error>(())
//! ```

#![forbid(unsafe_code)]

pub mod store;
pub mod tiers;
