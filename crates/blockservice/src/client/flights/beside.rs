//! How long a read waits for the service when another source can serve it, too: the origin, or a local disk.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Flights;
use crate::wire::Message;

/// How long a read waits for the service at least and at most when somebody else can answer it.
const BESIDE: (Duration, Duration) = (Duration::from_millis(60), Duration::from_millis(500));
/// What a wrong chunk weighs against a right one.
const WRONG_WEIGHS: u32 = 4;
/// From this weight on, the service is not asked for a while: after four wrong chunks in a row, or when more
/// than one in five is wrong.
const WRONG_LIMIT: u32 = 16;
/// How long it is not asked, at first and at most; twice as long each time.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(64));

/// Reasons to avoid the service.
#[derive(Debug)]
pub(super) struct Doubts {
    /// Since when it is suspected of silence.
    silent: Option<Instant>,
    /// The weight of chunks with wrong content.
    wrong: u32,
    /// Until when no requests are sent because of these.
    refused_until: Option<Instant>,
    /// The next pause.
    pause: Duration,
}

impl Doubts {
    pub(super) const fn none() -> Self {
        Self {
            silent: None,
            wrong: 0,
            refused_until: None,
            pause: PAUSE.0,
        }
    }

    /// Notes that a chunk was what it should be.
    const fn right(&mut self) {
        self.wrong = self.wrong.saturating_sub(1);
        if self.wrong == 0 {
            self.pause = PAUSE.0;
        }
    }

    /// Notes that a chunk was something else; returns for how long the service is not asked from now on, if
    /// this was one too many.
    fn wrong(&mut self, now: Instant) -> Option<Duration> {
        if self.refuses(now) {
            return None;
        }
        self.wrong += WRONG_WEIGHS;
        if self.wrong < WRONG_LIMIT {
            return None;
        }
        // One wrong chunk after the pause is enough.
        self.wrong = WRONG_LIMIT - WRONG_WEIGHS;
        let pause = self.pause;
        self.refused_until = Some(now + pause);
        self.pause = (pause * 2).min(PAUSE.1);
        Some(pause)
    }

    fn refuses(&self, now: Instant) -> bool {
        self.refused_until.is_some_and(|until| now < until)
    }
}

impl Flights {
    /// Returns how long a read that another source can serve waits for the service: longer than a response
    /// takes, but not at all while the service is silent, or has sent too many wrong chunks.
    pub(in crate::client) fn patience_beside(&self) -> Duration {
        let connections = || self.connections.iter();
        let round_trip = connections().filter_map(|c| c.round_trip()).min();
        let patience = round_trip.unwrap_or_default() * 4;
        let patience = patience.clamp(BESIDE.0, BESIDE.1);
        let heard = connections().filter_map(|c| c.heard()).max();
        let now = Instant::now();
        let mut doubts = self.doubts.lock();
        if doubts.refuses(now) {
            return Duration::ZERO;
        }
        match doubts.silent {
            Some(since) if heard.is_none_or(|heard| heard <= since) => {
                let is_due = now.duration_since(since) >= self.shared.config.patience.probe;
                if is_due {
                    doubts.silent = Some(now);
                }
                drop(doubts);
                if is_due {
                    self.probe();
                }
                return Duration::ZERO;
            }
            _ => doubts.silent = None,
        }
        drop(doubts);
        if self.state.lock().engine.silence(self.now()) < patience {
            patience
        } else {
            Duration::ZERO
        }
    }

    /// Has the service asked for a sign of life, for which no reader waits.
    fn probe(&self) {
        for connection in self.connections.iter().filter(|c| c.is_up()) {
            let connection = Arc::clone(connection);
            let patience = self.shared.config.patience.silent;
            let _task = self.driver.spawn(async move {
                let sign = connection.ask(Message::Stat, Vec::new());
                // Whatever comes, the connection notes when.
                let _heard = tokio::time::timeout(patience, sign).await;
            });
        }
    }

    /// Notes that a reader has waited since then without success: the service is suspected of silence if no
    /// other data arrived either.
    pub(in crate::client) fn waited_in_vain(&self, since: Instant) {
        let heard = self.connections.iter().filter_map(|c| c.heard()).max();
        if heard.is_none_or(|heard| heard <= since) {
            self.doubts.lock().silent = Some(Instant::now());
        }
    }

    /// Returns whether readers with another source should avoid the service, because of wrong chunks.
    pub(in crate::client) fn is_refused(&self) -> bool {
        self.doubts.lock().refuses(Instant::now())
    }

    /// Notes that the content of a chunk was valid.
    pub(super) fn was_right(&self) {
        self.doubts.lock().right();
    }

    /// Notes that the content of a chunk was wrong.
    pub(super) fn was_wrong(&self) {
        let pause = self.doubts.lock().wrong(Instant::now());
        let name = self.name();
        match pause {
            Some(pause) => log::warn!(
                "the block service sent too many wrong chunks of {name}: reads that the origin or the disk can \
                 answer do not ask it for {pause:?}"
            ),
            None => log::warn!(
                "the block service sent wrong content for a chunk of {name}: it is read from another source"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_wrong_chunks_in_a_row_pause_it_and_one_after_the_pause_again() {
        let (mut doubts, now) = (Doubts::none(), Instant::now());
        let outcomes: Vec<_> = (0..4).map(|_| doubts.wrong(now)).collect();
        assert_eq!(outcomes, [None, None, None, Some(PAUSE.0)]);
        assert!(doubts.refuses(now) && !doubts.refuses(now + PAUSE.0));
        // What was under way does not count again.
        assert_eq!(doubts.wrong(now), None);
        assert_eq!(doubts.wrong(now + PAUSE.0), Some(PAUSE.0 * 2));
        let mut at = now + PAUSE.0 * 4;
        for _ in 0..10 {
            doubts.wrong(at);
            at += PAUSE.1;
        }
        assert_eq!(doubts.pause, PAUSE.1);
        (0..WRONG_LIMIT).for_each(|_| doubts.right());
        assert_eq!(doubts.wrong(at), None);
        assert_eq!(doubts.pause, PAUSE.0);
    }

    #[test]
    fn a_wrong_chunk_now_and_then_pauses_nothing() {
        let (mut doubts, now) = (Doubts::none(), Instant::now());
        for _ in 0..1000 {
            assert_eq!(doubts.wrong(now), None);
            (0..WRONG_WEIGHS).for_each(|_| doubts.right());
        }
    }
}
