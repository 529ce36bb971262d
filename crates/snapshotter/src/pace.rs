//! How fast layers are brought home, and when that stops.

use std::ops::ControlFlow;

use crate::error::{Result, SnapshotError};

/// Bytes that are copied or compared between two questions to the pace.
pub(crate) const CHUNK: usize = 256 << 10;

/// Controls when background work continues.
pub trait Pace {
    /// Waits until `bytes` more may be processed; breaks if the work is to stop as it is. Is called with 0
    /// before each step that changes something.
    fn turn(&self, bytes: u64) -> ControlFlow<()>;
}

/// Never waits.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unhurried;

impl Pace for Unhurried {
    fn turn(&self, _bytes: u64) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

/// Waits for the pace.
pub(crate) fn turn(pace: &dyn Pace, bytes: u64) -> Result<()> {
    match pace.turn(bytes).is_break() {
        true => Err(SnapshotError::Stopped),
        false => Ok(()),
    }
}
