//! Which parts of an image are on fast memory, and when: N-Docker's placement of layers and hot image
//! files, on the tiers of a machine.
//!
//! `docs/tiering.md` describes the decisions, and which of them the programs use.
//!
//! - [`lass`] places the layers of an image while it is being pulled.
//!
//! Decisions are pure functions: they take facts, and return what is to be done.
//!
//! ```
//! use std::time::Duration;
//!
//! use tiering::heat::{HALF_LIFE, Heat};
//!
//! // What was needed once a day ago is half as hot as what is needed now.
//! let mut heat = Heat::default();
//! heat.add(Duration::ZERO, 1.0);
//! assert!((heat.at(HALF_LIFE) - 0.5).abs() < 1e-9);
//! ```

#![forbid(unsafe_code)]

pub mod heat;
pub mod hif;
mod journal;
pub mod lass;
pub mod medium;
pub mod objects;
pub mod pace;
pub mod parts;
pub mod policy;
mod rate;
#[cfg(feature = "testing")]
pub mod testing;
pub mod tier;

pub use rate::Rate;
