//! A proxy snapshotter for containerd on overlayfs; who serves a lower layer is a seam.

#![forbid(unsafe_code)]
