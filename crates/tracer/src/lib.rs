//! Recording, merging and displaying the requests of boots.
//!
//! ```text
//! mount --note()--> Recorder --stop()----+
//!                                        +--> Trace --merge()--> ReplayPlan --> boot image
//! logs of QEMU, blkparse --import::*()---+      |
//!                                               +--> file, Summary, Plot
//! ```
//!
//! - [`Recorder`] observes the mount and costs a boot next to nothing.
//! - [`RawTrace`] is its recording, before the files have the ids of a tree.
//! - [`Trace`] is one recorded boot. It is self-contained: it has the paths and versions of
//!   its files, so it can be read when the mount is long gone. Its file format
//!   is described in `docs/trace-format.md`.
//! - [`import`] makes traces of logs of other tools.
//! - [`merge()`] makes one plan of several traces: which blocks, in which order, how reliably.
//! - [`Summary`] and [`plot`] show a boot to people.
//!
//! Everything works on bytes in memory; only the recorder reads from the system: the
//! names of processes in `/proc`.

#![forbid(unsafe_code)]

mod commands;
mod format;
pub mod import;
mod merge;
pub mod plot;
mod raw_trace;
mod recorder;
mod summary;
mod trace;

pub use merge::{MergeError, MergeOptions, Merged, Similarity, merge};
pub use raw_trace::RawTrace;
pub use recorder::{Allowance, Limits, Recorder};
pub use summary::{CommandShare, Footprint, GRANULARITIES, Summary, WarmthBytes};
pub use trace::{CommandId, Trace, TraceError, TraceEvent, TraceInfo, TracedFile};
