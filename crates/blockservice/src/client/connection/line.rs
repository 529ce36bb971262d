//! The measured properties of a connection's network path, and how its handshake measures them.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::{Connection, Lane};

impl Connection {
    /// Records the round trip of a handshake.
    pub(in crate::client) fn measured(&self, round_trip: Duration) {
        let micros = u64::try_from(round_trip.as_micros()).unwrap_or(u64::MAX);
        let micros = micros.max(1);
        let known = self.round_trip_us.load(Relaxed);
        if known == 0 || micros < known {
            self.round_trip_us.store(micros, Relaxed);
        }
    }

    /// Returns the rate of the response to a START, in bytes per second; 0 if that was too short to measure.
    pub(in crate::client) fn rate(&self) -> u64 {
        self.rate.load(Relaxed)
    }

    /// Returns the shortest round trip of handshakes, after the first one.
    pub(in crate::client) fn round_trip(&self) -> Option<Duration> {
        let micros = self.round_trip_us.load(Relaxed);
        (micros > 0).then(|| Duration::from_micros(micros))
    }

    /// Returns whether the handshake is sent at once, with what the connection begins with: without a key there
    /// is nothing that depends on the challenge. The first connection waits for it, since the service learns from
    /// that how long the line is.
    pub(in crate::client) fn speaks_at_once(&self) -> bool {
        self.place.lane == Lane::Background
            && self.shared.config.key.is_none()
            && !self.waits.load(Relaxed)
    }

    /// Notes that the service is of a release with an older handshake.
    pub(in crate::client) fn waits_for_the_challenge(&self) {
        self.waits.store(true, Relaxed);
    }
}
