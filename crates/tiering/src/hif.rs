//! Hot image files (HIF): the parts of an image that a start needs, predicted before the first start or recorded.
//!
//! - [`classify`] predicts by layers, as the paper does: from the commands that made them, as the
//!   history in the image's configuration has them.
//! - [`start_files`] predicts by files, which is finer: it follows the command through scripts,
//!   loaders and libraries, in the image's files ([`ImageFiles`], of which [`Layers`] is the real
//!   one).
//! - [`recorded_files`] measures a start that was recorded, by files and by blocks; and
//!   [`way_of`] decides in which of these two ways a file is stored.

mod class;
mod command;
mod elf;
mod engine;
mod files;
mod recorded;
mod start;
mod way;

pub use class::{Class, MadeLayer, Step, classify};
pub use files::{ImageFiles, Layers, Node};
pub use recorded::{Recorded, RecordedFile, recorded_files};
pub use start::{HotFile, Need, Start, start_files};
pub use way::{Because, KeptAs, Passing, way_of};
