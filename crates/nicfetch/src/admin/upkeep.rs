//! Status and maintenance of the block service: garbage collection and verification.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use serde::{Deserialize, Serialize};

use super::sources::{failed, on_disk};
use super::{BlockSide, FeedStatus, IDLE, Operated, Removed, json};
use chunks::ChunkStore as _;
use mirror::{Refusal, Reply, WholeImage};

/// The status of the block service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlocksStatus {
    /// Sources that can be opened.
    pub sources: u64,
    /// Bytes of all files of all sources: compared with `raw_bytes` it shows the gain by sharing chunks.
    pub source_bytes: u64,
    /// Chunks in the store.
    pub chunks: u64,
    /// Their bytes, decompressed.
    pub raw_bytes: u64,
    /// Their bytes, compressed.
    pub stored_bytes: u64,
    /// Bytes of the files that they are in.
    pub disk_bytes: u64,
    /// The limit of these bytes.
    pub budget_bytes: u64,
    /// Stored chunks that are never evicted.
    pub pinned_chunks: u64,
    /// Chunks that were evicted since the start.
    pub evicted_chunks: u64,
    /// Damaged records that were found since the start.
    pub damaged: u64,
    /// Connections of machines.
    pub connections: u64,
    /// Chunks that were sent since the start.
    pub sent_chunks: u64,
    /// Bytes of them, compressed.
    pub sent_bytes: u64,
    /// Requests for chunks that are not in the store.
    pub absent: u64,
    /// Reads of chunks, connections and authentications that were refused.
    pub refused: u64,
    /// Chunks that wait to be read from the store.
    pub waiting: u64,
    /// Progress of turning pulled images into sources.
    pub feed: FeedStatus,
}

/// The result of a garbage collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Collected {
    /// Blobs, complete and incomplete.
    #[serde(flatten)]
    pub blobs: Removed,
    /// Chunks, if blocks are served.
    pub chunks: Option<CollectedChunks>,
}

/// The result of a garbage collection of the block service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CollectedChunks {
    /// Indexes that no source uses any more, with their boot images.
    pub indexes: u64,
    /// Segments that were compacted.
    pub segments_repacked: u64,
    /// Bytes of the files of chunks before.
    pub bytes_before: u64,
    /// Bytes of the files of chunks afterwards.
    pub bytes_after: u64,
}

/// The result of verifying all blobs and chunks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verified {
    /// Blobs that were read.
    pub blobs: u64,
    /// Their bytes.
    pub blob_bytes: u64,
    /// Chunks that were read.
    pub chunks: u64,
    /// Their bytes, decompressed.
    pub chunk_bytes: u64,
    /// Damaged blobs and chunks, which were removed.
    pub damaged: u64,
    /// Names of the first of these.
    pub damaged_names: Vec<String>,
    /// Blobs, and files of segments of chunks, that the disk did not give, which are kept; none from a nicfetch of an earlier
    /// release.
    #[serde(default)]
    pub unread_names: Vec<String>,
}

/// Stops the verification when the client disconnects.
struct Waiting(Arc<AtomicBool>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

impl Operated {
    /// Collects garbage of the mirror and of the block service.
    pub(super) async fn collect(self) -> Result<Reply, Refusal> {
        let done = on_disk(move || {
            let blobs = Removed::from(self.mirror.blobs().collect(IDLE));
            let chunks = self.blocks.map(|blocks| {
                let indexes = blocks.sources.catalog().collect().map_err(failed)?;
                let chunks = blocks.sources.store().gc().map_err(failed)?;
                Ok::<_, Refusal>(CollectedChunks {
                    indexes,
                    segments_repacked: chunks.compacted,
                    bytes_before: chunks.bytes_before,
                    bytes_after: chunks.bytes_after,
                })
            });
            let chunks = chunks.transpose()?;
            Ok::<_, Refusal>(Collected { blobs, chunks })
        });
        json(&done.await??)
    }

    /// Verifies every blob and every chunk, and removes those that are damaged.
    pub(super) async fn verify(self) -> Result<Reply, Refusal> {
        let waiting = Waiting(Arc::default());
        let over = Arc::clone(&waiting.0);
        let go_on = move || match over.load(Relaxed) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        };
        let done = on_disk(move || {
            let blobs = self.mirror.blobs().verify(&mut |_| go_on());
            let mut verified = Verified {
                blobs: blobs.blobs,
                blob_bytes: blobs.bytes,
                damaged: blobs.damaged.len() as u64,
                damaged_names: blobs.damaged.iter().map(ToString::to_string).collect(),
                unread_names: blobs.unread.iter().map(ToString::to_string).collect(),
                ..Verified::default()
            };
            if let Some(blocks) = self.blocks {
                let chunks = blocks.sources.store().verify(&mut |_| go_on());
                verified.chunks = chunks.chunks;
                verified.chunk_bytes = chunks.raw_bytes;
                verified.damaged += chunks.damaged;
                let named = chunks.named.iter().map(ToString::to_string);
                verified.damaged_names.extend(named);
                let unread = chunks.unread_segments.iter();
                let unread = unread.map(|number| format!("segments/{number:016x}.seg"));
                verified.unread_names.extend(unread);
            }
            verified
        });
        let verified = done.await?;
        drop(waiting);
        json(&verified)
    }
}

impl BlockSide {
    /// Requests that an image is turned into a source.
    pub(super) async fn want(self, image: WholeImage) -> Result<(), Refusal> {
        on_disk(move || self.feed.want(image))
            .await?
            .map_err(failed)
    }

    /// Returns the status of the block service.
    pub(super) fn status(&self) -> BlocksStatus {
        let (chunks, service) = (self.sources.store().stats(), self.service.stats());
        BlocksStatus {
            sources: service.sources,
            source_bytes: self.source_bytes(),
            chunks: chunks.chunks,
            raw_bytes: chunks.raw_bytes,
            stored_bytes: chunks.stored_bytes,
            disk_bytes: chunks.disk_bytes,
            budget_bytes: chunks.budget_bytes,
            pinned_chunks: chunks.pinned,
            evicted_chunks: chunks.evicted,
            damaged: chunks.damaged,
            connections: service.connections,
            sent_chunks: service.chunks,
            sent_bytes: service.bytes,
            absent: service.absent,
            refused: service.refused,
            waiting: service.waiting,
            feed: self.feed.fed(),
        }
    }

    /// Returns the bytes of all sources. Each index is read once.
    fn source_bytes(&self) -> u64 {
        let names = self.sources.catalog().names();
        let mut known = self.sizes.lock();
        known.retain(|id, _| names.iter().any(|(_, named)| named == id));
        let bytes = names.iter().map(|(name, id)| {
            *known.entry(*id).or_insert_with(|| {
                let index = self.sources.catalog().source(name).ok().flatten();
                index.map_or(0, |index| super::sources::bytes_of(&index))
            })
        });
        bytes.sum()
    }
}
