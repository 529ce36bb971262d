//! What happens when something does not come in time.

use std::time::Duration;

use super::wanting::End;
use super::{Alarm, Engine};
use crate::exchange::RequestId;
use crate::want::{Key, Priority, Verdict};

/// How long a busy server is left alone at first; twice as long each time.
const REST: Duration = Duration::from_millis(10);

/// How often a piece is waited for once more that a stream brings later than expected.
const STREAM_WAITS: u8 = 16;

impl<K: Key> Engine<K> {
    /// The alarm of a flight rang: it waited for a stream for too long, may be tried again, is late,
    /// or is lost.
    pub(super) fn flight_late(&mut self, now: Duration, key: K) {
        let Some(flight) = self.flights.get_mut(&key) else {
            return;
        };
        if flight.stream.take().is_some() {
            if self.waits_on(now, key) {
                return;
            }
            self.skip(key);
            self.enqueue(now, key, End::Front);
            return;
        }
        if flight.queued.is_some() {
            return;
        }
        let legs = flight.legs.clone();
        if legs.is_empty() {
            self.counts.retries += 1;
            self.enqueue(now, key, End::Front);
            return;
        }
        for leg in legs {
            if self.is_lost(now, leg) {
                self.forget(now, key, leg);
            }
        }
        self.hedge(now, key);
        self.watch_flight(now, key);
    }

    /// The alarm of a request rang: what it did not bring is lost, unless it waits behind others.
    pub(super) fn request_late(&mut self, now: Duration, id: RequestId) {
        let Some(request) = self.requests.get(&id) else {
            return;
        };
        let keys: Vec<K> = request.pieces.iter().map(|piece| piece.key).collect();
        for key in keys {
            self.flight_late(now, key);
        }
        if self.requests.contains_key(&id) {
            self.timers
                .set(Alarm::Request(id), now + self.config.stall_floor);
        }
    }

    /// Lets a flight wait longer for a stream that is slower than expected, but continues and still brings the piece
    /// before a request of its own would: what is requested now would come twice.
    fn waits_on(&mut self, now: Duration, key: K) -> bool {
        let Some((_, peer, _)) = self.streams.coming(&key) else {
            return false;
        };
        let Some(flight) = self.flights.get_mut(&key) else {
            return false;
        };
        let is_quiet = self.peers[peer.index()].is_quiet(now, flight.bytes, &self.config);
        flight.waits = flight.waits.saturating_add(1);
        !is_quiet && flight.waits <= STREAM_WAITS && self.wait_for_stream(now, key)
    }

    fn is_lost(&self, now: Duration, leg: RequestId) -> bool {
        self.requests.get(&leg).is_some_and(|request| {
            let link = &self.peers[request.peer.index()].link;
            request.lost <= now && link.delivered_bytes() >= request.behind
        })
    }

    /// Requests a late piece from somebody else, too, if somebody waits for it.
    fn hedge(&mut self, now: Duration, key: K) {
        let Some(flight) = self.flights.get(&key) else {
            return;
        };
        let late = flight.priority == Priority::Demand
            && flight.legs.len() == 1
            && flight.failures <= self.config.retries
            && !flight.waiters.is_empty()
            && flight.queued.is_none();
        if late && self.budget.allows() {
            self.enqueue(now, key, End::Front);
            if self
                .flights
                .get(&key)
                .is_some_and(|flight| flight.queued.is_some())
            {
                self.budget.spend();
            }
        }
    }

    /// A piece of a request was not answered although others were: it counts as failed.
    fn forget(&mut self, now: Duration, key: K, leg: RequestId) {
        let Some(request) = self.requests.get_mut(&leg) else {
            return;
        };
        let (peer, priority) = (request.peer, request.priority);
        let Some(at) = request.pieces.iter().position(|piece| piece.key == key) else {
            return;
        };
        let piece = request.pieces.remove(at);
        let through = request.pieces.is_empty();
        self.peers[peer.index()].settled(priority, u64::from(piece.bytes));
        if through {
            self.cancel(now, leg);
        }
        if let Some(flight) = self.flights.get_mut(&key) {
            flight.legs.retain(|other| *other != leg);
            flight.failed_on = Some(peer);
        }
        self.failed(now, key, Verdict::Failed);
    }

    /// An attempt failed: tries again, or ends the flight if it was the last attempt.
    pub(super) fn failed(&mut self, now: Duration, key: K, why: Verdict) {
        let Some(flight) = self.flights.get_mut(&key) else {
            return;
        };
        flight.why = Some(why);
        if why != Verdict::Absent {
            flight.failures = flight.failures.saturating_add(1);
        }
        if flight.is_moving() {
            return;
        }
        if flight.waiters.is_empty() {
            self.remove_flight(key);
        } else if flight.failures > self.config.retries {
            self.finish(now, key, why);
        } else if why == Verdict::Busy {
            let rest = REST * 2_u32.pow(u32::from(flight.failures.saturating_sub(1)).min(10));
            self.timers.set(Alarm::Flight(key), now + rest);
        } else {
            self.timers.clear(Alarm::Flight(key));
            self.counts.retries += 1;
            self.enqueue(now, key, End::Front);
        }
    }
}
