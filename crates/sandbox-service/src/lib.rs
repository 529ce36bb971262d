//! The daemon of sandboxes: it owns those of a machine, and answers whoever asks on a unix socket.
//!
//! [`bodies`] has what goes over the socket as JSON, [`Daemon`] does what is asked, [`api`] speaks HTTP
//! to clients, and [`client`] is one. `docs/sandboxes.md` describes it for users.

#![forbid(unsafe_code)]

pub mod api;
pub mod bodies;
pub mod client;
mod daemon;
mod handlers;
mod metrics;
mod packages;

pub use daemon::Daemon;
