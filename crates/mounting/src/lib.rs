//! Mounts: what one serves is put together here ([`assembly`]), from a source ([`source`]), a boot image of
//! the store ([`boot`]), tiers, and a block service ([`nic`]).
//!
//! A mount that has a process of its own is served by [`daemon`], with a helper beside it ([`mounter`]) that
//! mounts and unmounts; those of a node and of layers take the parts. What a process gives up before it
//! serves is in [`confinement`], and a mount that is recorded is a [`recorded`] one.

#![forbid(unsafe_code)]

pub mod assembly;
pub mod boot;
pub mod buffers;
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
