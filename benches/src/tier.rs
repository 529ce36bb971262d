//! Images on tiers: what N-Docker's evaluation measures, with our parts beside the paper's.
//!
//! NVM is a tmpfs. [`lab`] times cold starts, with a disk whose reads are limited, and [`deploy`]
//! pulls, with one whose writes are; `aims` has the aims of both.

mod aims;
mod cri;
pub mod deploy;
mod hot;
mod image;
pub mod lab;
mod migration;
mod place;
mod slow_disk;
mod tables;

pub use aims::{of_pulls, of_starts};
pub use image::{Category, ImageFacts};
pub use migration::{Foreground, of_migration};
pub use place::{Footprint, Place, Start};
pub use slow_disk::WriteRate;
pub use tables::{pulls_table, starts_table};

/// What "cold" means for starts, and what is timed of pulls, in words, for the report.
pub const PROCEDURE: &str = "starts: sync; echo 3 > /proc/sys/vm/drop_caches; read the files of the \
programs (chroot, bootimg, yolofs and their libraries) and run an empty start from the host's own \
root, so that only the image is cold; mount what is measured (a boot image is prewarmed; whole copies \
are on NVM already); limit the disk's reads; start. Pulls: a new containerd and a new snapshotter with \
empty directories on the disk; sync; limit the disk's writes and what may wait for them; PullImage; \
syncfs of the disk";
