//! The state of peers, and their pending requests.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::config::Config;
use crate::counts::PeerCounts;
use crate::exchange::{Lane, RequestId, Server};
use crate::link::{Link, transfer};
use crate::want::Priority;

/// A stream that brings nothing for so long is not waited for. The highest rate of late says little of a piece
/// that does not compress: this is what a large one takes at 10 Mbit/s.
const QUIET: Duration = Duration::from_millis(100);

/// The state of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Down,
    Up,
    /// It owes something and sends nothing.
    Stalled,
}

/// Whether the server of a peer is believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    Full,
    /// It sent wrong pieces, and others can be asked.
    Paused,
    /// It sent too many of them.
    Lost,
}

/// How often the time doubles after which silence counts, where another server can be asked.
const DOUBTS_MAX: u8 = 3;

/// One peer.
#[derive(Debug)]
pub(crate) struct PeerState {
    pub(crate) server: Server,
    pub(crate) lane: Lane,
    /// Whether it is asked only where no other server can be.
    pub(crate) reserve: bool,
    pub(crate) state: State,
    pub(crate) trust: Trust,
    /// How often it was taken for stalled and was not.
    false_stalls: u8,
    pub(crate) counts: PeerCounts,
    /// Whether it supports sending pieces of a stream early.
    pub(crate) promotes: bool,
    /// Whether it sends the rest of a plan when it is asked for that.
    pub(crate) resumes: bool,
    pub(crate) link: Link,
    /// When something last came from it, or when it began to owe something.
    pub(crate) heard: Duration,
    pub(crate) requests: BTreeSet<RequestId>,
    /// Bytes that are on their way, of each priority.
    open_bytes: [u64; 3],
}

impl PeerState {
    pub(crate) const fn new(server: Server, lane: Lane, config: &Config) -> Self {
        Self {
            server,
            lane,
            reserve: false,
            state: State::Down,
            trust: Trust::Full,
            false_stalls: 0,
            counts: PeerCounts {
                requests: 0,
                pieces: 0,
                received_bytes: 0,
                wrong: 0,
                stalls: 0,
            },
            promotes: false,
            resumes: false,
            link: Link::new(config.initial_rtt),
            heard: Duration::ZERO,
            requests: BTreeSet::new(),
            open_bytes: [0; 3],
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        self.state == State::Up && self.trust == Trust::Full
    }

    /// Whether it is meant for requests of a priority.
    pub(crate) fn serves(&self, priority: Priority) -> bool {
        match self.lane {
            Lane::Any => true,
            Lane::Demand => priority == Priority::Demand,
            Lane::Background => priority != Priority::Demand,
        }
    }

    pub(crate) fn window(&self, config: &Config) -> u64 {
        self.link
            .window(config.window_floor_bytes, config.window_cap_bytes)
    }

    pub(crate) fn rate(&self, config: &Config) -> u64 {
        self.link.rate(config.window_floor_bytes)
    }

    /// The bytes that are on their way.
    pub(crate) const fn in_flight(&self) -> u64 {
        let [fill, plan, demand] = self.open_bytes;
        fill + plan + demand
    }

    /// How many bytes may be requested now at a priority, of `queued` that wait. Nothing unless it
    /// is all of it or half of the window, which is what the line holds: what waits goes in few requests.
    pub(crate) fn room(&self, priority: Priority, queued: u64, config: &Config) -> u64 {
        let window = self.window(config);
        // Whoever waits is not held back by what is wanted less.
        let used = self.open_bytes[priority as usize..].iter().sum();
        if priority == Priority::Fill && self.lane == Lane::Background {
            // Those who wait have a connection of their own: this one may be busy with a long request, beside what
            // keeps the line full until the next one is answered.
            let long = self
                .bytes_in(config.fill_request, config)
                .min(config.window_cap_bytes);
            return if used <= window { long.max(window) } else { 0 };
        }
        let room = window.saturating_sub(used);
        if used == 0 || queued <= room || room >= window / 2 {
            room
        } else {
            0
        }
    }

    /// When the last of `bytes` will have come if they are requested now.
    pub(crate) fn expected(&self, bytes: u64, config: &Config) -> Duration {
        self.link.rtt() + transfer(self.in_flight() + bytes, self.rate(config))
    }

    /// The duration of a demand request for so many bytes, at `rate` bytes per second.
    pub(crate) fn demand_trip(&self, bytes: u64, rate: u64) -> Duration {
        let ahead = self.open_bytes[Priority::Demand as usize] + bytes;
        self.link.rtt() + transfer(ahead, rate)
    }

    /// The bytes that the line brings in a time.
    fn bytes_in(&self, time: Duration, config: &Config) -> u64 {
        let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        self.rate(config).saturating_mul(millis) / 1000
    }

    /// Whether it has sent nothing for so long that more is wrong than a piece of so many bytes on its way.
    pub(crate) fn is_quiet(&self, now: Duration, bytes: u32, config: &Config) -> bool {
        let piece = transfer(u64::from(bytes) * 2, self.rate(config));
        let limit = (self.link.timeout() + piece).max(QUIET);
        now.saturating_sub(self.heard) > limit
    }

    /// How long it may be silent.
    pub(crate) fn patience(&self, config: &Config) -> Duration {
        (self.link.timeout() * 4).max(config.stall_floor)
    }

    /// How long its server may be silent if another one can be asked.
    pub(crate) fn patience_elsewhere(&self, config: &Config) -> Duration {
        let two = transfer(config.window_floor_bytes, self.rate(config));
        let patience = (self.link.timeout() + two).max(config.stall_elsewhere);
        (patience * (1 << self.false_stalls)).min(self.patience(config))
    }

    /// Records that it was wrongly taken for stalled.
    pub(crate) fn returned(&mut self) {
        self.false_stalls = self.false_stalls.saturating_add(1).min(DOUBTS_MAX);
    }

    pub(crate) const fn requested(&mut self, priority: Priority, bytes: u64) {
        self.open_bytes[priority as usize] += bytes;
    }

    pub(crate) const fn settled(&mut self, priority: Priority, bytes: u64) {
        let open = &mut self.open_bytes[priority as usize];
        *open = open.saturating_sub(bytes);
    }
}
