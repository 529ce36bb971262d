//! The pace of moves: a rate, a bar, and an end when the user says so.

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

/// Goes at a rate, if there is one, after those who read the same disk, shows how far it is, and
/// stops when it is asked to.
#[derive(Debug)]
pub struct Paced {
    rate: Option<Rate>,
    throttle: Throttle,
    /// Bytes that take a part of a second.
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

    /// Returns the same pace for what comes after this, as a bar of its own shows it.
    pub fn next(&self, bar: Bar) -> Self {
        Self {
            behind: Arc::clone(&self.behind),
            ..Self::new(self.rate, &self.interrupt, bar)
        }
    }

    /// Says that what is moved from now on is read from the disk that `path` lies on.
    pub fn read_from(&self, path: &Path) {
        self.behind.lock().watch(Disk::below(path));
    }

    /// Returns how often was waited for others who read that disk.
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
