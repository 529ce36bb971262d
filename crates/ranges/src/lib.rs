//! Ranges of blobs over HTTP, by the engine of the crate `fetch`.
//!
//! A [`Fetcher`] stands for one or more servers that have the same blobs: mirrors, and the registry behind them, which
//! is asked for what no mirror brings. A blob is cut into pieces of one size. Who needs pieces asks with a priority; the
//! engine decides what is requested from whom and when, so that each piece is fetched once for all who want it, the line
//! is full and bounded, and a late, silent or failing server is replaced by the next one. Here its decisions become
//! requests, and what comes is published to the blob's [`Receiver`] before those who wait are told.
//!
//! - [`Place`] is the transport: how a range of one blob is read from one server. [`RegistryPlace`] reads from
//!   registries, over HTTP/2 if they have it, else over several connections.
//! - [`Blob::read`] waits for pieces (demand); [`Fetcher::feed`] fetches a plan or all of a blob without a waiting
//!   thread.

#![forbid(unsafe_code)]

mod fetcher;
mod jobs;
mod key;
mod lane;
mod place;
mod reconnecting;
mod registry;
mod runs;
mod servers;
#[cfg(feature = "testing")]
pub mod testing;
mod wait;

pub use fetch::{Counts, Priority, Server};
pub use fetcher::{Blob, CONFIG, Feed, Fetcher};
pub use jobs::Span;
pub use place::{Fault, FaultKind, Layout, Place, Reading, Receiver};
pub use reconnecting::Reconnecting;
pub use registry::{Asker, Logins, RegistryPlace};
pub use wait::{Ending, Wait};
