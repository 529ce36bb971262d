//! The status of the block service of a mount.

use serde::{Deserialize, Serialize};

/// The block service of a mount. Chunks are of at most 128 KiB; all counts are since it was
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
