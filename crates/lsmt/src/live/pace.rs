//! How fast a copy in the background may go.

use std::num::NonZeroU64;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::error::{LsmtError, Result};

/// The longest pause at once, so that a cancellation is seen.
const PAUSE: Duration = Duration::from_millis(20);

/// Limits the rate of a copy, and can end it.
#[derive(Debug)]
pub struct Pace {
    bytes_per_second: Option<NonZeroU64>,
    /// When the bytes so far are paid for.
    paid: Mutex<Option<Instant>>,
    canceled: AtomicBool,
}

impl Pace {
    /// Goes as fast as it can.
    pub fn unlimited() -> Self {
        Self::new(None)
    }

    /// Copies so many bytes a second at most.
    pub fn bytes_per_second(rate: NonZeroU64) -> Self {
        Self::new(Some(rate))
    }

    fn new(bytes_per_second: Option<NonZeroU64>) -> Self {
        Self {
            bytes_per_second,
            paid: Mutex::default(),
            canceled: AtomicBool::new(false),
        }
    }

    /// Ends the copy at its next piece.
    pub fn cancel(&self) {
        self.canceled.store(true, Relaxed);
    }

    /// Waits until so many more bytes may be copied.
    pub(crate) fn spend(&self, bytes: u64) -> Result<()> {
        let until = {
            let mut paid = self.paid.lock();
            let now = Instant::now();
            // No credit is saved up: after a pause it begins anew.
            let from = paid.map_or(now, |paid| paid.max(now));
            let cost = self.bytes_per_second.map_or(Duration::ZERO, |rate| {
                Duration::from_nanos(bytes.saturating_mul(1_000_000_000) / rate.get())
            });
            *paid = Some(from + cost);
            from
        };
        loop {
            if self.canceled.load(Relaxed) {
                let what = "copy";
                return Err(LsmtError::Canceled { what });
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            thread::sleep(left.min(PAUSE));
        }
    }
}
