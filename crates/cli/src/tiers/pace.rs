//! The pace of moves: a rate, a bar, and an end when the user says so.

use std::ops::ControlFlow;
use std::sync::Arc;

use indicatif::ProgressBar;
use tiering::Rate;
use tiering::pace::{Cancelled, Demand, Pace, Throttle};

use crate::interrupt::Interrupt;

/// How often an interrupt is looked for, at least, in parts of a second.
const LOOKS: u64 = 10;

/// Goes at a rate, if there is one, shows how far it is, and stops when it is asked to.
#[derive(Debug)]
pub(crate) struct Paced {
    throttle: Throttle,
    /// Bytes that take a part of a second.
    slice: u64,
    interrupt: Interrupt,
    bar: ProgressBar,
}

impl Paced {
    pub(crate) fn new(rate: Option<Rate>, interrupt: &Interrupt, bar: ProgressBar) -> Self {
        let per_second = rate.map_or(u64::MAX, Rate::bytes_per_second);
        Self {
            throttle: Throttle::new(rate, Arc::<Demand>::default()),
            slice: (per_second / LOOKS).max(1),
            interrupt: interrupt.clone(),
            bar,
        }
    }
}

impl Pace for Paced {
    fn turn(&self, bytes: u64) -> Result<(), Cancelled> {
        let mut left = bytes;
        loop {
            if self.interrupt.asked() {
                return Err(Cancelled);
            }
            if left == 0 {
                break;
            }
            let piece = left.min(self.slice);
            self.throttle.turn(piece)?;
            left -= piece;
        }
        self.bar.inc(bytes);
        Ok(())
    }
}

/// Returns a watch of a boot image's copying that goes at `pace`.
pub(super) fn watch(pace: &dyn Pace) -> impl FnMut(bootimg::Progress) -> ControlFlow<()> {
    let mut before = 0;
    move |progress| {
        let bytes = progress.done.saturating_sub(before);
        before = progress.done;
        match pace.turn(bytes) {
            Ok(()) => ControlFlow::Continue(()),
            Err(Cancelled) => ControlFlow::Break(()),
        }
    }
}
