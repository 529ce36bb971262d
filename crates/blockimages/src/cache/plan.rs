//! What a start is known to read, fetched before all else in the background: of all layers of an image together, in
//! the order in which it is read.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use ranges::{Feed, Fetcher, Priority};

use super::unstored::AHEAD_BYTES;
use super::{BlobCache, CachedBlob};

/// Bytes that are put together though other things are read between them: about what one request brings.
const PIECE_BYTES: u64 = 256 << 10;
/// How many pieces back one is looked for that a range continues: a start reads a few files in turn.
const PIECES_BACK: usize = 32;

/// Chunks that are fetched of a plan, as many as a recording notes: 4 GiB of 4 KiB each. A registry may claim that its
/// layers are huge, and send a plan of all of them.
const CHUNKS_MAX: usize = 1 << 20;
/// Chunks that are looked at for them: a plan may name the same ones again and again.
const LOOKS_MAX: usize = 4 * CHUNKS_MAX;

/// A plan that is being fetched; dropping this stops it.
#[derive(Debug)]
pub struct PlanFetcher {
    /// One for each fetcher that the plan needs: of one image, there is one.
    feeds: Vec<Arc<Feed>>,
}

/// Chunks of a blob that are requested together.
#[derive(Clone, Debug)]
struct Piece {
    blob: Arc<CachedBlob>,
    chunks: Range<u32>,
}

impl PlanFetcher {
    /// Starts fetching ranges of blobs of one cache. While that cannot be written, no more is fetched than there is memory for.
    #[must_use]
    pub fn start(plan: &[(Arc<CachedBlob>, Range<u64>)]) -> Self {
        let cache = plan.first().map(|(blob, _)| Arc::clone(blob.cache()));
        let not_stored = cache.as_ref().map_or(0, |cache| cache.not_stored());
        let mut orders: Vec<(Arc<Fetcher>, Vec<_>)> = Vec::new();
        for piece in pieces(plan) {
            let fetcher = piece.blob.fetcher();
            let span = piece.blob.span(piece.chunks.clone());
            match orders.iter_mut().find(|(of, _)| Arc::ptr_eq(of, fetcher)) {
                Some((_, order)) => order.push(span),
                None => orders.push((Arc::clone(fetcher), vec![span])),
            }
        }
        let feed = |(fetcher, order): (Arc<Fetcher>, _)| {
            let feed = Arc::new(fetcher.feed(order, Priority::Plan));
            if let Some(cache) = &cache {
                cache.note_plan(&feed, not_stored);
            }
            feed
        };
        let feeds = orders.into_iter().map(feed).collect();
        Self { feeds }
    }

    /// Returns whether nothing more comes.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.feeds.iter().all(|feed| feed.is_done())
    }

    /// Returns whether all came.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        let mut feeds = self.feeds.iter();
        feeds.all(|feed| feed.is_whole() && feed.fault().is_none())
    }
}

impl BlobCache {
    /// Returns how many chunks could not be written until now.
    fn not_stored(&self) -> u64 {
        self.meter.not_stored.load(Relaxed)
    }

    /// Notes a plan that is to end when what is not stored of it would drive out what came before.
    fn note_plan(&self, feed: &Arc<Feed>, not_stored_before: u64) {
        let mut plans = self.plans.lock();
        plans.retain(|(plan, _)| plan.strong_count() > 0);
        plans.push((Arc::downgrade(feed), not_stored_before));
    }

    /// Ends plans of which the memory for what cannot be written has no room for more: it would be fetched in vain. Readers
    /// get the rest when they want it.
    pub(super) fn end_plans(&self) {
        let chunks = AHEAD_BYTES / u64::from(self.config.chunk_bytes);
        let not_stored = self.not_stored();
        let ends = |before: u64| not_stored.saturating_sub(before) >= chunks;
        let ended: Vec<_> = {
            let mut plans = self.plans.lock();
            let ended = plans.extract_if(.., |(_, before)| ends(*before));
            ended.filter_map(|(plan, _)| plan.upgrade()).collect()
        };
        for feed in ended.iter().filter(|feed| !feed.is_done()) {
            self.meter.pauses.fetch_add(1, Relaxed);
            log::warn!(
                "the cache {} cannot be written: no more of a plan is fetched before it is read",
                self.dir.display()
            );
            feed.stop();
        }
    }
}

/// Orders a plan: each chunk once, with those that follow it on the blob. What is too much is left out.
fn pieces(plan: &[(Arc<CachedBlob>, Range<u64>)]) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    let mut seen: HashMap<*const CachedBlob, HashSet<u32>> = HashMap::new();
    let (mut chunks, mut looks) = (0, 0);
    for (blob, range) in plan {
        let seen = seen.entry(Arc::as_ptr(blob)).or_default();
        let most = PIECE_BYTES / u64::from(blob.cache().config.chunk_bytes);
        for chunk in blob.chunks_of(range) {
            if chunks >= CHUNKS_MAX || looks >= LOOKS_MAX {
                return pieces;
            }
            looks += 1;
            if !seen.insert(chunk) {
                continue;
            }
            chunks += 1;
            let back = pieces.len().saturating_sub(PIECES_BACK);
            let continued = pieces[back..].iter_mut().rev().find(|piece| {
                piece.chunks.end == chunk
                    && Arc::ptr_eq(&piece.blob, blob)
                    && u64::from(chunk - piece.chunks.start) < most
            });
            match continued {
                Some(piece) => piece.chunks.end += 1,
                None => pieces.push(Piece {
                    blob: Arc::clone(blob),
                    chunks: chunk..chunk + 1,
                }),
            }
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use blocks::Digest;
    use ranges::testing::MemoryPlace;
    use ranges::{Fault, FaultKind};

    use super::*;
    use crate::{CacheConfig, Origin};

    const MIB: u64 = 1 << 20;

    /// Returns a layer that a registry claims to be huge.
    fn huge(cache: &Arc<BlobCache>, seed: u8) -> Arc<CachedBlob> {
        let origin = Origin {
            servers: vec!["memory".to_owned()],
            places: vec![Arc::new(MemoryPlace {
                answer: Arc::new(|_| Err(Fault::new(FaultKind::Absent, "it is not there"))),
                parallel: 1,
            })],
        };
        cache.blob(Digest([seed; 32]), 1 << 43, origin).unwrap()
    }

    #[test]
    fn a_plan_of_all_of_a_huge_layer_takes_memory_for_what_starts_read() {
        let dir = tempfile::tempdir().unwrap();
        let config = CacheConfig {
            limit_bytes: 1 << 30,
            chunk_bytes: 4096,
            read_deadline: Duration::from_secs(30),
        };
        let cache = BlobCache::open(&dir.path().join("cache"), config).unwrap();
        let (one, other) = (huge(&cache, 1), huge(&cache, 2));
        let chunks_of = |plan: &[_]| {
            let pieces = pieces(plan);
            let chunks = pieces.iter().map(|piece| piece.chunks.len());
            (chunks.sum::<usize>(), pieces.len())
        };
        let read = |blob, at: u64| (Arc::clone(blob), at * MIB..(at + 1) * MIB);
        let all: Vec<_> = (0..3000)
            .flat_map(|at| [read(&one, at), read(&other, at)])
            .collect();
        assert_eq!(chunks_of(&all), (CHUNKS_MAX, CHUNKS_MAX / 64));
        // The same again and again is not looked at for ever: what comes after that is left out.
        let mut again = vec![read(&one, 0); LOOKS_MAX / 256];
        again.push(read(&one, 1));
        assert_eq!(chunks_of(&again), (256, 4));
        assert_eq!(chunks_of(&again[1..]), (512, 8));
    }
}
