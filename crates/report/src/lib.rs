//! A self-contained HTML page about a boot, from recordings and measurements.
//!
//! Everything here is pure: from data to text. A program with a store and mounts fills an
//! [`ImageReport`] or a [`NodeReport`]; [`ImageReport::html`] and [`NodeReport::html`] write the
//! page. A page is self-contained: no network, no fonts, no framework. Equal data make equal
//! pages.
//!
//! - [`Timeline`] is the needed data by time, [`Content`] by file, [`LayerReport`] the cost of each
//!   layer, [`MountReport`] the misses. Each is bounded, whatever a boot image holds.
//! - [`Measured`] has the results of a benchmark: the duration of the same boot from the disk, from a daemon
//!   as in YOLO, and from the page cache. `docs/report.md` describes its file.
//!
//! Names of files, images and commands are untrusted. The page escapes
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
