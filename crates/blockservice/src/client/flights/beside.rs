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
/// By how much a pause may grow: it is twice as long each time.
const LONGEST: u32 = 64;

/// Reasons to avoid the service.
#[derive(Debug)]
pub(super) struct Doubts {
    /// Since when it is suspected of silence.
    silent: Option<Instant>,
    /// The weight of chunks with wrong content.
    wrong: u32,
    /// Until when no requests are sent because of these. After that, one reader may ask.
    refused_until: Option<Instant>,
    /// Whether one does.
    is_tried: bool,
    /// The first pause, and the next one.
    pauses: (Duration, Duration),
    /// Whether there is another source, so that the service can be done without.
    is_beside: bool,
}

impl Doubts {
    /// Returns none; `pause` is how long the service is not asked when there are some, at first.
    pub(super) const fn none(pause: Duration) -> Self {
        Self {
            silent: None,
            wrong: 0,
            refused_until: None,
            is_tried: false,
            pauses: (pause, pause),
            is_beside: false,
        }
    }

    /// Notes that a chunk was what it should be.
    const fn right(&mut self) {
        self.wrong = self.wrong.saturating_sub(1);
        if self.wrong == 0 {
            self.pauses.1 = self.pauses.0;
        }
        if self.is_tried {
            (self.is_tried, self.refused_until) = (false, None);
        }
    }

    /// Notes that a chunk was something else; returns for how long the service is not asked from now on, if
    /// this was one too many.
    fn wrong(&mut self, now: Instant) -> Option<Duration> {
        if self.refuses(now) && !self.is_tried {
            return None;
        }
        self.is_tried = false;
        self.wrong += WRONG_WEIGHS;
        if self.wrong < WRONG_LIMIT {
            return None;
        }
        // One wrong chunk after the pause is enough.
        self.wrong = WRONG_LIMIT - WRONG_WEIGHS;
        let pause = self.pauses.1;
        self.refused_until = Some(now + pause);
        self.pauses.1 = (pause * 2).min(self.pauses.0 * LONGEST);
        Some(pause)
    }

    /// Returns whether a reader may ask. After a pause one may, and no other before something right has come for that one,
    /// or the next pause is over.
    fn admits(&mut self, now: Instant) -> bool {
        if self.refuses(now) {
            return false;
        }
        if self.is_distrusted() {
            (self.is_tried, self.refused_until) = (true, Some(now + self.pauses.1));
        }
        true
    }

    /// Returns whether nothing right came since too much was wrong.
    const fn is_distrusted(&self) -> bool {
        self.refused_until.is_some()
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
        doubts.is_beside = true;
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
        let answers = self.state.lock().engine.silence(self.now()) < patience;
        if answers && self.doubts.lock().admits(now) {
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

    /// Returns whether a reader with another source should avoid the service, because of wrong chunks.
    pub(in crate::client) fn is_refused(&self) -> bool {
        let mut doubts = self.doubts.lock();
        doubts.is_beside = true;
        !doubts.admits(Instant::now())
    }

    /// Returns whether nothing should be requested for which nobody waits, because of wrong chunks: another source has it.
    pub(in crate::client) fn is_left_alone(&self) -> bool {
        let doubts = self.doubts.lock();
        doubts.is_beside && doubts.is_distrusted()
    }

    /// Notes that the content of a chunk was valid.
    pub(super) fn was_right(&self) {
        self.doubts.lock().right();
    }

    /// Notes that the content of a chunk was wrong.
    pub(super) fn was_wrong(&self) {
        let (pause, is_beside) = {
            let mut doubts = self.doubts.lock();
            (doubts.wrong(Instant::now()), doubts.is_beside)
        };
        if pause.is_some() && is_beside {
            self.drop_unread();
        }
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

    const PAUSE: Duration = Duration::from_secs(1);

    #[test]
    fn four_wrong_chunks_in_a_row_pause_it_and_one_after_the_pause_again() {
        let (mut doubts, now) = (Doubts::none(PAUSE), Instant::now());
        let outcomes: Vec<_> = (0..4).map(|_| doubts.wrong(now)).collect();
        assert_eq!(outcomes, [None, None, None, Some(PAUSE)]);
        assert!(doubts.refuses(now) && !doubts.refuses(now + PAUSE));
        // What was under way does not count again.
        assert_eq!(doubts.wrong(now), None);
        assert_eq!(doubts.wrong(now + PAUSE), Some(PAUSE * 2));
        let mut at = now + PAUSE * 4;
        for _ in 0..10 {
            doubts.wrong(at);
            at += PAUSE * LONGEST;
        }
        assert_eq!(doubts.pauses.1, PAUSE * LONGEST);
        (0..WRONG_LIMIT).for_each(|_| doubts.right());
        assert_eq!(doubts.wrong(at), None);
        assert_eq!(doubts.pauses.1, PAUSE);
    }

    #[test]
    fn one_reader_asks_after_a_pause_and_all_do_when_it_was_right() {
        let (mut doubts, now) = (Doubts::none(PAUSE), Instant::now());
        assert!(doubts.admits(now) && doubts.admits(now));
        (0..4).for_each(|_| _ = doubts.wrong(now));
        assert!(!doubts.admits(now) && doubts.is_distrusted());
        let after = now + PAUSE;
        assert!(doubts.admits(after), "one may");
        assert!(!doubts.admits(after), "no other meanwhile");
        assert_eq!(doubts.wrong(after), Some(PAUSE * 2), "it is worse");
        assert!(!doubts.admits(after + PAUSE));
        // What is asked for in vain is no reason for all to ask.
        let later = after + PAUSE * 2;
        assert!(doubts.admits(later) && !doubts.admits(later));
        assert!(doubts.admits(later + PAUSE * 4) && doubts.is_distrusted());
        doubts.right();
        assert!(!doubts.is_distrusted());
        assert!(doubts.admits(later) && doubts.admits(later));
    }

    #[test]
    fn a_wrong_chunk_now_and_then_pauses_nothing() {
        let (mut doubts, now) = (Doubts::none(PAUSE), Instant::now());
        for _ in 0..1000 {
            assert_eq!(doubts.wrong(now), None);
            (0..WRONG_WEIGHS).for_each(|_| doubts.right());
        }
    }
}
