//! The measured path to a peer: round trip, delivery rate, and the window that follows.
//!
//! The window is twice the product of the smallest round trip and the highest rate of late, as BBR
//! does it: once keeps the line full, twice finds out whether the line is faster.

use std::collections::VecDeque;
use std::time::Duration;

/// For how long a smallest round trip or a highest rate counts, at least: conditions change.
const MEMORY: Duration = Duration::from_secs(10);
/// The most marks of one link: four per round trip are set, and those older than one are dropped.
const MARKS_MAX: usize = 16;
/// A rate is measured over at least this, or a burst out of a buffer would count as the line's rate.
const SPAN_MIN: Duration = Duration::from_micros(200);

/// The larger of the best of two successive periods: what the best of late is, in constant room.
#[derive(Clone, Copy, Debug)]
struct Best<T> {
    since: Duration,
    before: Option<T>,
    current: Option<T>,
}

impl<T: Copy> Best<T> {
    const fn new() -> Self {
        Self {
            since: Duration::ZERO,
            before: None,
            current: None,
        }
    }

    fn offer(&mut self, now: Duration, sample: T, better: fn(T, T) -> T) {
        if now.saturating_sub(self.since) > MEMORY {
            self.since = now;
            self.before = self.current.take();
        }
        self.current = Some(self.current.map_or(sample, |best| better(best, sample)));
    }

    fn get(&self, better: fn(T, T) -> T) -> Option<T> {
        match (self.before, self.current) {
            (Some(before), Some(current)) => Some(better(before, current)),
            (before, current) => before.or(current),
        }
    }
}

/// The measurements of one link.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    initial_rtt: Duration,
    smooth: Option<(Duration, Duration)>,
    shortest: Best<Duration>,
    fastest: Best<u64>,
    delivered: u64,
    /// Moments since when the link was busy without a pause, and what had been delivered then.
    marks: VecDeque<(Duration, u64)>,
}

impl Link {
    pub(crate) const fn new(initial_rtt: Duration) -> Self {
        Self {
            initial_rtt,
            smooth: None,
            shortest: Best::new(),
            fastest: Best::new(),
            delivered: 0,
            marks: VecDeque::new(),
        }
    }

    /// Records a round trip, by the rules of RFC 6298.
    pub(crate) fn round_trip(&mut self, now: Duration, sample: Duration) {
        self.shortest.offer(now, sample, Ord::min);
        self.smooth = Some(match self.smooth {
            None => (sample, sample / 2),
            Some((mean, deviation)) => {
                let off = mean.abs_diff(sample);
                ((mean * 7 + sample) / 8, (deviation * 3 + off) / 4)
            }
        });
    }

    /// Records a rate that was measured elsewhere.
    pub(crate) fn rate_was(&mut self, now: Duration, rate: u64) {
        self.fastest.offer(now, rate, Ord::max);
    }

    /// Records the rate of another link of this machine, as long as none was measured on this one.
    pub(crate) fn rate_of_another(&mut self, now: Duration, rate: u64) {
        if self.measured_rate().is_none() {
            self.fastest.offer(now, rate, Ord::max);
        }
    }

    /// Records that responses are due from now on, after a pause.
    pub(crate) fn busy(&mut self, now: Duration) {
        self.marks.clear();
        self.marks.push_back((now, self.delivered));
    }

    /// Records that no responses are due any more: the rate of later data means nothing.
    pub(crate) fn idle(&mut self) {
        self.marks.clear();
    }

    /// Records received bytes.
    pub(crate) fn delivered(&mut self, now: Duration, bytes: u64) {
        self.delivered += bytes;
        let span = self.shortest_rtt().max(SPAN_MIN);
        // The newest mark that is a round trip old; those before it are of no use any more.
        while self.marks.get(1).is_some_and(|(at, _)| *at + span <= now) {
            self.marks.pop_front();
        }
        if let Some(&(at, before)) = self.marks.front()
            && now >= at + span
        {
            let rate = per_second(self.delivered - before, now - at);
            self.fastest.offer(now, rate, Ord::max);
        }
        if let Some(&(last, _)) = self.marks.back()
            && now >= last + span / 4
            && self.marks.len() < MARKS_MAX
        {
            self.marks.push_back((now, self.delivered));
        }
    }

    /// Returns the bytes that came so far.
    pub(crate) const fn delivered_bytes(&self) -> u64 {
        self.delivered
    }

    /// The smoothed round trip.
    pub(crate) fn rtt(&self) -> Duration {
        self.smooth.map_or(self.initial_rtt, |(mean, _)| mean)
    }

    /// How much round trips vary, four times their mean deviation.
    pub(crate) fn variation(&self) -> Duration {
        self.smooth
            .map_or(self.initial_rtt, |(_, deviation)| deviation * 4)
    }

    /// How long a response may take before it counts as lost.
    pub(crate) fn timeout(&self) -> Duration {
        self.rtt() + self.variation()
    }

    fn shortest_rtt(&self) -> Duration {
        self.shortest.get(Ord::min).unwrap_or(self.initial_rtt)
    }

    /// The highest rate of late in bytes per second; before the first measurement, one that fills
    /// `window` in a round trip.
    pub(crate) fn rate(&self, window: u64) -> u64 {
        self.fastest
            .get(Ord::max)
            .unwrap_or_else(|| per_second(window, self.shortest_rtt()))
            .max(1)
    }

    /// The rate, once it was measured.
    pub(crate) fn measured_rate(&self) -> Option<u64> {
        self.fastest.get(Ord::max)
    }

    /// How many bytes may be on their way, within bounds.
    pub(crate) fn window(&self, floor: u64, cap: u64) -> u64 {
        let measured = self.fastest.get(Ord::max).map_or(0, |rate| {
            let micros = u64::try_from(self.shortest_rtt().as_micros()).unwrap_or(u64::MAX);
            rate.saturating_mul(micros).saturating_mul(2) / 1_000_000
        });
        measured.max(floor).min(cap)
    }
}

/// How long `bytes` take at a rate in bytes per second.
pub(crate) fn transfer(bytes: u64, rate: u64) -> Duration {
    // A rate is at least 1, and lengths stay below 2^60: no overflow.
    Duration::from_nanos(
        u64::try_from(u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1)))
            .unwrap_or(u64::MAX),
    )
}

fn per_second(bytes: u64, span: Duration) -> u64 {
    let nanos = span.as_nanos().max(1);
    u64::try_from(u128::from(bytes) * 1_000_000_000 / nanos).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_link_measures_what_it_delivers_per_round_trip() {
        let mut link = Link::new(50 * MS);
        link.round_trip(20 * MS, 20 * MS);
        link.busy(Duration::ZERO);
        for at in 20..=60 {
            link.delivered(at * MS, 100_000);
        }
        // 100 kB each millisecond, of which the marks see whole round trips.
        let rate = link.measured_rate().expect("three round trips passed");
        assert!((90_000_000..=110_000_000).contains(&rate), "{rate}");
        let window = link.window(0, u64::MAX);
        assert!((3_600_000..=4_400_000).contains(&window), "{window}");
        assert_eq!(link.window(0, 1000), 1000);
    }

    #[test]
    fn a_pause_does_not_count_as_slowness_nor_a_burst_as_speed() {
        let mut link = Link::new(10 * MS);
        link.busy(Duration::ZERO);
        link.delivered(10 * MS, 1000);
        let before = link.measured_rate();
        link.idle();
        link.delivered(5000 * MS, 1 << 30);
        assert_eq!(link.measured_rate(), before);
    }

    #[test]
    fn the_best_of_long_ago_is_forgotten() {
        let mut best = Best::new();
        best.offer(Duration::ZERO, 9, u64::max);
        for second in [11, 22] {
            best.offer(Duration::from_secs(second), 3, u64::max);
        }
        assert_eq!(best.get(u64::max), Some(3));
    }

    #[test]
    fn round_trips_are_smoothed_and_their_variation_is_added() {
        let mut link = Link::new(50 * MS);
        assert_eq!(link.rtt(), 50 * MS);
        link.round_trip(Duration::ZERO, 20 * MS);
        assert_eq!((link.rtt(), link.timeout()), (20 * MS, 60 * MS));
        for _ in 0..100 {
            link.round_trip(Duration::ZERO, 20 * MS);
        }
        assert!(link.timeout() < 21 * MS);
    }
}
