//! Images on tiers: what N-Docker's evaluation measures, with our parts beside the paper's.
//!
//! The disk is a throttled loop device; NVM is a tmpfs. [`starts`] times cold starts from four
//! [`Place`]s, [`aims`] has what issue 6 asks of them.

mod aims;
mod hot;
mod image;
mod lab;
mod place;

pub use aims::of_starts;
pub use image::{Category, ImageFacts};
pub use lab::{PROCEDURE, TierLab};
pub use place::{Footprint, Place, Start, tables};
