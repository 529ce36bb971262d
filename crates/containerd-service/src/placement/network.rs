//! How fast the network brings the layers of a pull.

use std::time::Duration;

use tiering::Rate;

/// Bytes that tell how fast the network is: fewer may all have waited in its buffers.
const TELLING: u64 = 64 << 10;

/// Returns the rate of a network that has brought these bytes in this time, if they are enough to measure it.
pub(crate) fn rate(bytes: u64, elapsed: Duration) -> Option<Rate> {
    Rate::measured(bytes, elapsed).filter(|_| bytes >= TELLING)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_takes_bytes_and_time() {
        let second = Duration::from_secs(1);
        assert_eq!(rate(TELLING - 1, second), None);
        let told = rate(TELLING, second).unwrap();
        assert_eq!(told.bytes_per_second(), TELLING);
    }
}
