//! What a mount promises, tried on the kernel of this machine.
//!
//! Needs root and /dev/fuse: `cargo test -p yolofs --features privileged`.

#![expect(clippy::unwrap_used, reason = "all of this is tests")]

#[path = "../../examples/handed/mod.rs"]
mod handed;

mod contents;
mod disk;
mod handles;
mod late;
mod lifecycle;
mod live;
mod overlay;
mod prewarm;
mod pushes;
mod read_only;
mod requested;
mod rig;
mod takeover;
mod writes;
