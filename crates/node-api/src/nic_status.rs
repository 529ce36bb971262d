//! The status of the block service of a mount.

use serde::{Deserialize, Serialize};

/// One of the block services of a mount.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NicServiceStatus {
    /// Where it is.
    pub address: String,
    /// Whether reads are asked of it now.
    pub asked: bool,
    /// Requests for chunks that were sent to it.
    pub requests: u64,
    /// Chunks that came from it, right or wrong.
    pub chunks: u64,
    /// Bytes of these, as they came.
    pub wire_bytes: u64,
    /// Chunks of these that were not what was asked for. Never served.
    pub lies: u64,
    /// How often it fell silent, so that others were asked.
    pub stalls: u64,
}

/// The block service of a mount, or several that have the same source. Chunks are of at most 128 KiB; all counts are since it was
/// mounted.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct NicStatus {
    /// The address of the service.
    pub address: String,
    /// The service's name of the source.
    pub source: String,
    /// The id of the source's index.
    pub index: String,
    /// Whether reads are sent to it now.
    pub connected: bool,
    /// Each service. What follows is of all of them.
    #[serde(default)]
    pub services: Vec<NicServiceStatus>,
    /// Chunks that came from it, and were right.
    pub chunks: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Requested chunks that the service did not have at that time.
    pub absent: u64,
    /// Chunks that it did not bring in time.
    pub late: u64,
    /// Chunks that could not be requested, because the service was not reachable.
    pub away: u64,
    /// Chunks that failed verification. They are never served.
    pub lies: u64,
    /// Reads that were sent a second time because the first took long.
    pub hedged: u64,
    /// Chunks that were requested once more because a reader waited for them, and they were far behind in a long request.
    #[serde(default)]
    pub overtaken: u64,
    /// Wanted chunks that were on their way already, asked for or as a part of a stream.
    #[serde(default)]
    pub joined: u64,
    /// Chunks that were requested again after a failure.
    #[serde(default)]
    pub retried: u64,
    /// Requests for chunks that were sent to it.
    #[serde(default)]
    pub requests: u64,
    /// Streams of the chunks of a plan that it began.
    #[serde(default)]
    pub streams: u64,
    /// Bytes of chunks as they came, compressed or not.
    #[serde(default)]
    pub wire_bytes: u64,
    /// Bytes of those that came twice.
    #[serde(default)]
    pub duplicate_bytes: u64,
    /// Chunks out of the mount's own cache.
    pub local_chunks: u64,
    /// Chunks from the origin, which were right.
    pub origin_chunks: u64,
    /// Chunks from the origin that were something else. Never served.
    pub origin_wrong: u64,
    /// Reads that failed, because no source returned the data in time.
    pub failed_reads: u64,
    /// Whether all of the source was fetched into the mount's own cache; absent without one.
    pub filled: Option<bool>,
}
