//! The bounds and constants of an engine.

use std::time::Duration;

/// What bounds an engine. [`Config::default`] suits one machine that mounts from one service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The most pieces that are being fetched or queued.
    pub flights: usize,
    /// The most tickets with an unfinished piece.
    pub tickets: usize,
    /// The most unfinished pieces of all tickets.
    pub waiting: usize,
    /// The maximum number of pieces that streams may promise; further ones are not waited for.
    pub promised: usize,
    /// The most bytes that may be requested at a time, from all peers.
    pub in_flight_bytes: u64,
    /// The smallest window of a peer, in bytes.
    pub window_floor_bytes: u64,
    /// The largest window of a peer, in bytes.
    pub window_cap_bytes: u64,
    /// The most pieces of one request.
    pub batch: usize,
    /// How long the line may take for one request that fills a cache: such requests are long, and few. Who waits for a
    /// piece in one of them does not wait for what is ahead of it.
    pub fill_request: Duration,
    /// The round trip of a peer that was not measured yet.
    pub initial_rtt: Duration,
    /// A demanded piece is not hedged earlier than this.
    pub hedge_floor: Duration,
    /// A peer that owes something and sends nothing for so long is stalled, or for four
    /// retransmission timeouts if these are longer.
    pub stall_floor: Duration,
    /// The same where another server can be asked: for this long, or for a retransmission timeout and what two
    /// pieces take if that is longer. Twice as long after each silence that was none.
    pub stall_elsewhere: Duration,
    /// How often a piece is requested again after a failure.
    pub retries: u8,
    /// After so many wrong pieces, a server is not asked any more.
    pub wrong_limit: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            flights: 1 << 16,
            tickets: 1 << 14,
            waiting: 1 << 17,
            // 128 GiB of chunks of 128 KiB.
            promised: 1 << 20,
            in_flight_bytes: 64 << 20,
            // What two chunks take, and less than one round trip's worth on any link that matters.
            window_floor_bytes: 256 << 10,
            window_cap_bytes: 16 << 20,
            batch: 64,
            // At 25 Mbit/s 0.9 MB: fifteen times what the line holds at 20 ms.
            fill_request: Duration::from_millis(300),
            initial_rtt: Duration::from_millis(50),
            hedge_floor: Duration::from_millis(50),
            // What a read may cost at most when a service falls silent.
            stall_floor: Duration::from_millis(500),
            // Four round trips of 20 ms: longer than a busy machine pauses as a rule.
            stall_elsewhere: Duration::from_millis(80),
            retries: 3,
            wrong_limit: 8,
        }
    }
}
