//! containerd's snapshotter as a service ([`snapshotter_service`]): its layers are served from boot images,
//! pulls wait for fast memory instead of the disk, and first boots are recorded by a process beside it. And
//! a pull of our own, which unpacks layers while they are being downloaded ([`pull`]).
//!
//! ```
//! use containerd_service::pull::Blobs;
//! use containerd_service::snapshotter_service::place_arg::FastPlaceSpec;
//! use host::size::Size;
//! use snapshotter::FastPlace;
//!
//! // Where layers go while a pull waits for them: memory, but no more of it than 4 GiB.
//! let fast: FastPlaceSpec = "tmpfs,max=4G".parse()?;
//! assert_eq!(fast.open("layers_fast", Size(1 << 30))?, (FastPlace::Tmpfs, 4 << 30));
//! // Docker saves and pushes layers as they came; other users of containerd need only the files.
//! assert_eq!((Blobs::of("moby"), Blobs::of("k8s.io")), (Blobs::Keep, Blobs::Drop));
//! # Ok::<(), anyhow::Error>(())
//! ```

#![forbid(unsafe_code)]

mod disk_writes;
mod placement;
pub mod pull;
pub mod snapshotter_service;
