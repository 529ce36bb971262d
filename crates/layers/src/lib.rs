//! The layers of container images: each is a source with its own boot image and mount.
//!
//! A [`server::LayerServer`] serves many of them: the service of an engine says where each layer is, and
//! the server binds its boot image to the place ([`bind`]), mounts it, and loads the boot image into
//! the page cache in the background. Where a node service runs, it owns the mounts, which then
//! outlive the requesting process; elsewhere the requesting process serves them itself ([`choose`]).
//!
//! Layers that are recorded are mounted as [`recorded`] ones, and their recordings are merged with those in
//! the store ([`keep`]).
//!
//! ```
//! use std::time::{Duration, SystemTime};
//!
//! use blocks::{Access, Caller, Digest, Event, Observer as _, Warmth};
//! use bootimg::{Store, StoreConfig};
//! use host::interrupt::Interrupt;
//! use layers::bind::bind;
//! use layers::keep::{About, Earlier, keep_layer};
//! use mounting::source::{Source, trace_info};
//! use tracer::{Limits, MergeOptions, Recorder};
//!
//! // A layer that an engine has unpacked, and a boot that read one file of it.
//! let dir = tempfile::tempdir()?;
//! let unpacked = dir.path().join("here");
//! std::fs::create_dir(&unpacked)?;
//! std::fs::write(unpacked.join("program"), [7; 4096])?;
//! let here = Source::open(&unpacked)?;
//! let recorder = Recorder::new(Limits::default());
//! let file = here.tree.resolve(b"program").expect("it was written");
//! let read = Access { file, offset: 0, len: 4096, warmth: Warmth::Cold };
//! recorder.note(Caller::default(), Event::Read(read), Duration::ZERO);
//! let trace = recorder.finish(trace_info(&here.root, SystemTime::now()), &here.tree);
//! let recording = tracer::merge(&[trace], &here.tree, &MergeOptions::default())?;
//!
//! let (layer, interrupt) = (Digest([7; 32]), Interrupt::unarmed()?);
//! let store = Store::open(dir.path().join("store"), StoreConfig::default())?;
//! let about = About::default();
//! let kept = keep_layer(&store, &here, &layer, &recording, &about, Earlier::United, &interrupt)?;
//! assert_eq!(kept.map(|kept| kept.blocks), Some(1));
//!
//! // Where the same layer is unpacked again, the recording counts, too.
//! let again = dir.path().join("there");
//! std::fs::create_dir(&again)?;
//! std::fs::write(again.join("program"), [7; 4096])?;
//! let bound = bind(&store, &Source::open(&again)?, &layer, &interrupt)?;
//! assert_eq!(bound.map(|image| image.plan().block_count()), Some(1));
//! # Ok::<(), anyhow::Error>(())
//! ```

#![forbid(unsafe_code)]

pub mod bind;
mod by_node;
pub mod choose;
pub mod keep;
mod own;
pub mod patient_node;
mod place;
mod reach;
pub mod recorded;
mod recorded_here;
mod served;
pub mod server;
pub mod status;
#[cfg(test)]
mod tests;
pub mod warm;
