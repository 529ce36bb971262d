//! containerd's snapshotter as a service ([`snapshotter_service`]): its layers are served from boot images,
//! pulls wait for fast memory instead of the disk, and first boots are recorded by a process beside it. And
//! a pull of our own, which unpacks layers while they are being downloaded ([`pull`]).

#![forbid(unsafe_code)]

mod disk_writes;
mod placement;
pub mod pull;
pub mod snapshotter_service;
