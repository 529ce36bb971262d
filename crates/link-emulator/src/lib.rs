//! A line with a delay and a rate between programs of one machine, for tests and benchmarks.
//!
//! A [`Link`] listens on loopback addresses, and forwards each connection to a server elsewhere on this
//! machine. Bytes arrive after the [`Shape`]'s delay, and no faster than its rate. All connections of a
//! link share **one** line in each direction, as those of one machine do.
//!
//! What it does not emulate: loss, reordering, and the slow start of TCP (a connection has the whole rate
//! from its first byte on).
//!
//! It works with threads rather than with an asynchronous runtime, because the timers of those count in
//! milliseconds, and a line within a data centre is shorter than that.
//!
//! ```
//! use std::time::Duration;
//!
//! use link_emulator::Shape;
//!
//! // 30 ms to a region and back, 100 Mbit/s: a MiB takes some 84 ms.
//! let shape = Shape::new(Duration::from_millis(30), 100);
//! assert_eq!(shape.delay, Duration::from_millis(15));
//! assert_eq!(shape.time_of(1 << 20).as_millis(), 83);
//! ```

#![forbid(unsafe_code)]

mod address;
mod connection;
mod fault;
mod line;
mod link;
mod queue;
mod shape;

pub use address::{Address, BadAddress};
pub use fault::Fault;
pub use link::{Counts, Link, LinkError};
pub use queue::{Piece, Tap};
pub use shape::Shape;
