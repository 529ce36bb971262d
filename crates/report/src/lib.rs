//! One self-contained HTML page about a boot, from what was recorded and measured.
//!
//! Everything here is pure: from data to text. Whoever has a store and mounts fills an
//! [`ImageReport`] or a [`NodeReport`]; [`ImageReport::html`] and [`NodeReport::html`] write the
//! page. A page needs nothing but itself: no network, no fonts, no framework. Equal data make equal
//! pages.
//!
//! - [`Timeline`] is what was needed when, [`Content`] is what it was, [`LayerReport`] what each
//!   layer costs, [`MountReport`] what missed. Each is bounded, whatever a boot image holds.
//! - [`Measured`] is what a bench found: how long the same boot takes from the disk, from a daemon
//!   as in YOLO, and from the page cache. `docs/report.md` describes its file.
//!
//! Names of files, images and commands are written by whoever made an image. The page escapes
//! every one, and forbids the browser any script, style or address that is not its own.
//!
//! ```
//! use report::ImageReport;
//!
//! let report = ImageReport {
//!     name: "<b>nginx</b>".to_owned(),
//!     ..ImageReport::default()
//! };
//! let page = report.html();
//! assert!(page.contains("&lt;b&gt;nginx"), "names are escaped");
//! ```

#![forbid(unsafe_code)]

mod content;
mod html;
mod image;
mod kind;
mod measured;
mod mount;
mod node;
mod sum;
mod timeline;

pub use content::{Content, DirectoryShare, FileShare, KindShare};
pub use image::{ImageReport, LayerReport, NamedDigest, RecordingReport, StabilityReport};
pub use kind::{Execute, FileKind};
pub use measured::{Comparison, Measured, MeasuredError, ServedFrom, WayReport};
pub use mount::MountReport;
pub use node::NodeReport;
pub use timeline::{Moment, Need, Timeline};
