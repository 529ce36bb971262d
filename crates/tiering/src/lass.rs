//! The layer-aware storage strategy (LASS): which layers of an image go to fast memory while the
//! image is being pulled.
//!
//! An engine downloads several layers at once, and stores them one after another, the lowest
//! first. Storing while the network is still busy takes no extra time, on whatever disk; storing
//! after the last download has ended does. So the layer that is downloaded last (LDL) and those
//! above it (LAL) go to fast memory, and those below (LBL) to the disk.
//!
//! - [`Stack::outcome`] is the model of the paper, its equations 1 to 8: the cost of a boundary
//!   between disk and fast memory in time and in space.
//! - [`last_downloaded`] predicts the LDL from the sizes in a manifest, before anything was
//!   downloaded.
//! - [`Pulls`] follows the progress of pulls, and returns for a layer, when its first file is made, on
//!   which side of the boundary it is. It predicts nothing.
//! - [`streamed`] places layers that are unpacked while they are being downloaded, by how fast the
//!   disk is.
//! - [`weigh`] decides for a layer below the boundary whether the disk keeps up with the network, which
//!   the paper assumes; [`learn_rate`] estimates the rate of the disk from earlier layers.
//! - [`place`] is the decision. A wrong one costs space or time, never correctness.

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
