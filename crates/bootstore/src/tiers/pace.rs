//! The pace of moves: a rate, a progress bar, and cancellation by the user.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use tiering::Rate;
use tiering::pace::{Cancelled, Demand, Pace, Throttle};

use super::behind::{Behind, Disk};
use host::interrupt::Interrupt;
use host::progress::Bar;

/// How often an interrupt is looked for, at least, in parts of a second.
const LOOKS: u64 = 10;

/// Limits moves to a rate, if there is one, yields to other readers of the disk, shows progress, and
/// stops on request.
#[derive(Debug)]
pub struct Paced {
    rate: Option<Rate>,
    throttle: Throttle,
    /// Bytes in a fraction of a second.
    slice: u64,
    behind: Arc<Mutex<Behind>>,
    interrupt: Interrupt,
    bar: Bar,
}

impl Paced {
    /// Moves at this rate at most, until it is interrupted, and shows how far it is.
    pub fn new(rate: Option<Rate>, interrupt: &Interrupt, bar: Bar) -> Self {
        let per_second = rate.map_or(u64::MAX, Rate::bytes_per_second);
        Self {
            rate,
            throttle: Throttle::new(rate, Arc::<Demand>::default()),
            slice: (per_second / LOOKS).max(1),
            behind: Arc::new(Mutex::new(Behind::new())),
            interrupt: interrupt.clone(),
            bar,
        }
    }

    /// Returns the same pace for the next move, with its own progress bar.
    pub fn next(&self, bar: Bar) -> Self {
        Self {
            behind: Arc::clone(&self.behind),
            ..Self::new(self.rate, &self.interrupt, bar)
        }
    }

    /// Sets the disk that later moves read: the one below `path`.
    pub fn read_from(&self, path: &Path) {
        self.behind.lock().watch(Disk::below(path));
    }

    /// Returns how often the mover waited for other readers of that disk.
    pub fn gave_way(&self) -> u64 {
        self.behind.lock().gave_way()
    }
}

impl Pace for Paced {
    fn turn(&self, bytes: u64) -> Result<(), Cancelled> {
        let go_on = || !self.interrupt.asked();
        self.behind.lock().turn(&go_on);
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
