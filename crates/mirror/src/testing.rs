//! A proxy before a registry that injects faults, for tests.

mod faults;

pub use faults::{Fault, FaultProxy, Seen};
