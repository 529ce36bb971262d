//! The measured properties of a connection's network path, and how its handshake measures them.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::{Connection, Lane};
use crate::wire::ReadForm;

/// Below so many bytes a second chunks are requested as stored: a processor decompresses faster than they come.
const STORED_BELOW: u64 = 64_000_000;

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

    /// Notes at which rate data comes, in bytes per second.
    pub(in crate::client) fn brings(&self, rate: u64) {
        self.brings.store(rate, Relaxed);
    }

    /// Returns the form in which chunks are requested. The service measures by writes that wait, but a chunk at a time
    /// fits into the buffers of its socket.
    pub(in crate::client) fn read_form(&self) -> ReadForm {
        match self.brings.load(Relaxed) {
            1..STORED_BELOW => ReadForm::Stored,
            _ => ReadForm::Any,
        }
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
