//! The layers of container images, each a source with a boot image and a mount of its own.
//!
//! A [`server::LayerServer`] serves many of them: whoever knows an engine says which layer lies where, and
//! the server binds its boot image to the place ([`bind`]), mounts it, and has the boot image brought into
//! the page cache behind the engine's back. Where a node service runs, it owns the mounts, which then
//! outlive whoever asked for them; elsewhere the process that asks serves them itself ([`choose`]).
//!
//! Layers that are recorded are mounted as [`recorded`] ones, and what they read is united with what the
//! store has of them ([`keep`]).

#![forbid(unsafe_code)]

pub mod bind;
mod by_node;
pub mod choose;
pub mod keep;
mod own;
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
