//! Mounts: one is assembled here ([`assembly`]) from a source ([`source`]), a boot image of
//! the store ([`boot`]), tiers, and a block service ([`nic`]).
//!
//! A standalone mount is served by [`daemon`], with a helper beside it ([`mounter`]) that
//! mounts and unmounts; the node and the services of layers use the parts. [`confinement`] has the privileges that a
//! process drops before it serves, and [`recorded`] the mounts that record.

#![forbid(unsafe_code)]

pub mod assembly;
pub mod boot;
pub mod buffers;
mod checked_heads;
pub mod clones;
pub mod confinement;
pub mod daemon;
pub mod descriptors;
pub mod from;
pub mod memory_group;
pub mod mount_status;
pub mod mounter;
pub mod nic;
pub mod prewarmer;
pub mod prewarming;
pub mod read_around;
pub mod recorded;
pub mod request;
pub mod source;
pub mod xattrs;
