//! How long a read waits for the service when the origin can answer it, too.

use std::time::{Duration, Instant};

use super::Flights;

/// How long a read waits for the service at least and at most when somebody else can answer it.
const BESIDE: (Duration, Duration) = (Duration::from_millis(60), Duration::from_millis(500));
impl Flights {
    /// Returns how long a read waits for the service that can be answered by somebody else: longer than an answer
    /// takes, but not at all while the service is silent. Then one read waits now and then.
    pub(in crate::client) fn patience_beside(&self) -> Duration {
        let connections = || self.connections.iter();
        let round_trip = connections().filter_map(|c| c.round_trip()).min();
        let patience = round_trip.unwrap_or_default() * 4;
        let patience = patience.clamp(BESIDE.0, BESIDE.1);
        let heard = connections().filter_map(|c| c.heard()).max();
        let mut suspected = self.suspected.lock();
        match *suspected {
            Some(since) if heard.is_none_or(|heard| heard <= since) => {
                if since.elapsed() < self.shared.config.patience.probe {
                    return Duration::ZERO;
                }
                *suspected = Some(Instant::now());
            }
            _ => *suspected = None,
        }
        drop(suspected);
        if self.state.lock().engine.silence(self.now()) < patience {
            patience
        } else {
            Duration::ZERO
        }
    }

    /// Notes that somebody waited since then and got nothing: the service is suspected of silence if nothing
    /// else came either.
    pub(in crate::client) fn waited_in_vain(&self, since: Instant) {
        let heard = self.connections.iter().filter_map(|c| c.heard()).max();
        if heard.is_none_or(|heard| heard <= since) {
            *self.suspected.lock() = Some(Instant::now());
        }
    }
}
