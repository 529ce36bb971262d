//! Containers as people run them: real images, by an engine of the rig's own, on its own disk.
//!
//! The time of a sample runs from the start of `docker run` until the program in the container
//! answers a client ([`probe`]). The engine's data directory is on the stage, so what an image's
//! layers cost to read, and what a container's costs to make, is paid there.
//!
//! Limits of cgroup v1 are per group and not inherited. An engine would put each container into a
//! group of its own, out of reach of the stage's limit; so the hierarchy in question is moved out
//! of its sight ([`hidden`]), and everything stays in the rig's group.

pub mod aims;
pub mod attached;
pub mod containerd;
pub mod ctr;
pub mod engine;
pub mod hidden;
pub mod lab;
pub mod launch;
pub mod phases;
pub mod probe;
pub mod program;
pub mod sample;
pub mod snapshots;
pub mod turns;
