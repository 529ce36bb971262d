//! Keeps in memory the pages of the host's own files that starts of containers and VMs touch: of the programs of an
//! engine or an emulator and their libraries, and no others.
//!
//! ```text
//! command --record()--> Trace --PinDir--> Profile --Holder--> locked pages
//!            |                                         |
//!       tracefs, or mincore                 Watch: a package was upgraded
//! ```
//!
//! - [`record()`] runs a command and finds which pages of which files it touches.
//! - [`Profile`] is that, file by file. It is stored as a trace (`docs/trace-format.md`) whose source is
//!   [`SOURCE`]; [`PinDir`] is the directory with all of them.
//! - [`Holder`] locks the pages of the profiles that are applied, within a budget, and follows the files.
//! - [`serve()`] is the process that owns a holder, and [`talk`] has the requests to it.
//!
//! ```
//! use pinning::Pages;
//!
//! let mut pages = Pages::default();
//! pages.insert(0..2);
//! pages.insert(5..6);
//! assert_eq!(pages.insert(1..4), 2, "of three pages, two are new");
//! assert_eq!(pages.ranges().collect::<Vec<_>>(), [0..4, 5..6]);
//! ```

#![forbid(unsafe_code)]

mod follow;
mod group;
mod holder;
mod limits;
mod pages;
mod pin_dir;
mod profile;
mod record;
mod serve;
pub mod talk;
mod watch;

pub use group::Group;
pub use holder::{Holder, bytes_of, status_of_nobody};
pub use pages::{PAGE, Pages};
pub use pin_dir::PinDir;
pub use profile::{Profile, ProfileFile, SOURCE};
pub use record::{Method, Order, Recorded, record};
pub use serve::{ServeSettings, serve};
