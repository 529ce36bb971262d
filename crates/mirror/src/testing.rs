//! A proxy before a registry that serves badly, for tests.

mod faults;

pub use faults::{Fault, FaultProxy, Seen};
