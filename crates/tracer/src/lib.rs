//! What a boot did, and what to make of it.
//!
//! ```text
//! mount --note()--> Recorder --stop()----+
//!                                        +--> Trace --merge()--> ReplayPlan --> boot image
//! logs of QEMU, blkparse --import::*()---+      |
//!                                               +--> file, Summary, Plot
//! ```
//!
//! - [`Recorder`] listens at the mount and costs a boot next to nothing.
//! - [`RawTrace`] is what it heard, before the files have the ids of a tree.
//! - [`Trace`] is one recorded boot. It stands by itself: it carries the paths and versions of
//!   the files it mentions, so it can be understood when the mount is long gone. Its file form
//!   is laid down in `docs/trace-format.md`.
//! - [`import`] makes traces of what other tools saw.
//! - [`merge()`] makes one plan of several traces: which blocks, in which order, how reliably.
//! - [`Summary`] and [`plot`] tell people what a boot did.
//!
//! Everything works on bytes in memory; only the recorder asks the system for something, the
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
