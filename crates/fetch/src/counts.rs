//! What an engine did, in numbers.

/// What came from one peer, in numbers that only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerCounts {
    /// Requests that were sent to it.
    pub requests: u64,
    /// Pieces that came from it.
    pub pieces: u64,
    /// Bytes of these, as they were sent.
    pub received_bytes: u64,
    /// Pieces of these with wrong bytes.
    pub wrong: u64,
    /// How often it stalled.
    pub stalls: u64,
}

/// Counters of an engine; they only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that were sent.
    pub requests: u64,
    /// Pieces in these requests.
    pub requested: u64,
    /// Wanted pieces that were already requested for another caller, or that a stream brought.
    pub joins: u64,
    /// Flights that became more urgent because of a join.
    pub promotions: u64,
    /// Pieces that were requested from a second peer because the first was late.
    pub hedges: u64,
    /// Pieces that were requested once more because somebody waits for them, and they were far behind in a long request.
    pub overtakes: u64,
    /// Pieces that were requested again after a failure.
    pub retries: u64,
    /// Pieces of streams that were requested ahead of their turn, or were not needed any more.
    pub skips: u64,
    /// Pieces that streams were requested to send early.
    pub reordered: u64,
    /// Streams that were asked for because those before them broke off, or there was none.
    pub resumes: u64,
    /// Requests that were cancelled.
    pub cancelled: u64,
    /// Pieces that came more than once.
    pub duplicates: u64,
    /// Bytes of these.
    pub duplicate_bytes: u64,
    /// Bytes of all pieces that came, as they were sent.
    pub received_bytes: u64,
    /// Pieces that came with wrong bytes.
    pub wrong: u64,
    /// How often a peer stalled.
    pub stalls: u64,
    /// Wanted pieces that were refused because a bound was reached.
    pub refused: u64,
    /// Wanted pieces whose deadline passed.
    pub late: u64,
}
