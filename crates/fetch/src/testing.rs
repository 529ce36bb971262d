//! A simulator of links and servers in virtual time, with a naive model of an engine's promises.
//!
//! A [`Simulation`] plays the caller of an [`Engine`](crate::Engine): it sends the engine's requests over
//! [`Line`]s to servers with [`Behaviour`], and checks each step against [`Promises`], which keeps plain
//! lists and does not depend on how the engine decides. Equal scripts and seeds give equal runs, to
//! the nanosecond. Slow start and loss on a line are not modelled: a loss is a stall of its connection.

mod model;
mod network;
mod random;
mod simulation;

pub use model::Promises;
pub use network::{Behaviour, Line, Order};
pub use random::Random;
pub use simulation::{Ended, Report, Simulation, Step};
