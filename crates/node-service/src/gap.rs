//! How long a mount or a device had no worker, as records and responses tell it.

use std::time::Duration;

/// Returns whole milliseconds, rounded up: a gap is never zero.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_micros().div_ceil(1000)).unwrap_or(u64::MAX)
}
