//! The layer-aware storage strategy (LASS): which layers of an image go to fast memory while the
//! image is being pulled.
//!
//! An engine downloads several layers at once, and stores them one after another, the lowest
//! first. What is stored while the network still has work costs nobody time, on whatever disk;
//! what is stored after the last download has ended is waited for. So the layer that is
//! downloaded last (LDL) and those above it (LAL) go to fast memory, and those below (LBL) to the
//! disk.
//!
//! - [`Stack::outcome`] is the model of the paper, its equations 1 to 8: what a boundary
//!   between disk and fast memory costs in time and in room.
//! - [`last_downloaded`] predicts the LDL from the sizes in a manifest, before anything was
//!   downloaded.
//! - [`Pulls`] is told what pulls do, and knows of a layer, when its first file is made, on which
//!   side of the boundary it is. It predicts nothing.
//! - [`streamed`] places layers that are unpacked while they are being downloaded, by how fast the
//!   disk is.
//! - [`weigh`] asks of a layer below the boundary whether the disk keeps up with the network, which
//!   the paper takes for granted; [`learn_rate`] tells how fast the disk is, from earlier layers.
//! - [`place`] is the decision. A wrong one costs room or time, never a byte.

mod disk_rate;
mod download;
mod keeping_up;
mod model;
mod pulls;
mod streamed;

pub use disk_rate::{Written, learn_rate};
pub use download::{CONCURRENT, last_downloaded};
pub use keeping_up::{Left, Promised, weigh};
pub use model::{Boundary, Outcome, Speeds, Stack, Strategy};
pub use pulls::{Part, Placement, PullId, Pulls, PullsFull, place};
pub use streamed::{Arriving, Disk, Line, Streamed, streamed};
