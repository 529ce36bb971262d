//! One direction of a line, which all connections share.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::shape::Shape;

/// Who must wait no longer than this does not sleep: a sleep takes longer.
const NOT_WORTH_SLEEPING: Duration = Duration::from_micros(30);

/// One direction of a line.
#[derive(Debug)]
pub(crate) struct Line {
    shape: Shape,
    /// When the last queued byte will have been sent.
    free: Mutex<Instant>,
    bytes: AtomicU64,
}

impl Line {
    pub(crate) fn new(shape: Shape) -> Self {
        Self {
            shape,
            free: Mutex::new(Instant::now()),
            bytes: AtomicU64::new(0),
        }
    }

    /// Sends so many bytes behind the queued ones, and returns when the last of them arrives. Waits
    /// while the line's queue is full.
    pub(crate) fn send(&self, bytes: u64) -> Instant {
        self.bytes.fetch_add(bytes, Relaxed);
        let sent = {
            let mut free = self.free.lock();
            *free = (*free).max(Instant::now()) + self.shape.time_of(bytes);
            *free
        };
        sleep_until(sent.checked_sub(self.shape.queue()).unwrap_or(sent));
        sent + self.shape.delay
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }
}

/// Sleeps until a moment that is not long from now.
pub(crate) fn sleep_until(moment: Instant) {
    let left = moment.saturating_duration_since(Instant::now());
    if left > NOT_WORTH_SLEEPING {
        thread::sleep(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_take_their_turn_one_behind_the_other() {
        let shape = Shape {
            delay: Duration::from_secs(3),
            bytes_per_second: 1_000_000,
        };
        let line = Line::new(shape);
        let began = Instant::now();
        let first = line.send(1_000);
        let second = line.send(2_000);
        assert!(first >= began + Duration::from_millis(3_001));
        assert!(second >= first + Duration::from_millis(2));
        assert_eq!(line.bytes(), 3_000);
    }

    #[test]
    fn who_sends_more_than_the_queue_holds_waits() {
        let line = Line::new(Shape {
            delay: Duration::ZERO,
            bytes_per_second: 1_000_000,
        });
        let began = Instant::now();
        line.send(50_000); // 50 ms, of which the queue holds 20
        assert!(began.elapsed() >= Duration::from_millis(29));
    }
}
