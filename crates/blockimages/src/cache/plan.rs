//! What a start is known to read, fetched before all else in the background: of all layers of an image together, in
//! the order in which it is read.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use ranges::{Feed, Fetcher, Priority};

use super::CachedBlob;

/// Bytes that are put together though other things are read between them: about what one request brings.
const PIECE_BYTES: u64 = 256 << 10;
/// How many pieces back one is looked for that a range continues: a start reads a few files in turn.
const PIECES_BACK: usize = 32;

/// A plan that is being fetched; dropping this stops it.
#[derive(Debug)]
pub struct PlanFetcher {
    /// One for each fetcher that the plan needs: of one image, there is one.
    feeds: Vec<Feed>,
}

/// Chunks of a blob that are requested together.
#[derive(Clone, Debug)]
struct Piece {
    blob: Arc<CachedBlob>,
    chunks: Range<u32>,
}

impl PlanFetcher {
    /// Starts fetching ranges of blobs of one cache.
    #[must_use]
    pub fn start(plan: &[(Arc<CachedBlob>, Range<u64>)]) -> Self {
        let mut orders: Vec<(Arc<Fetcher>, Vec<_>)> = Vec::new();
        for piece in pieces(plan) {
            let fetcher = piece.blob.fetcher();
            let span = piece.blob.span(piece.chunks.clone());
            match orders.iter_mut().find(|(of, _)| Arc::ptr_eq(of, fetcher)) {
                Some((_, order)) => order.push(span),
                None => orders.push((Arc::clone(fetcher), vec![span])),
            }
        }
        let feed = |(fetcher, order): (Arc<Fetcher>, _)| fetcher.feed(order, Priority::Plan);
        let feeds = orders.into_iter().map(feed).collect();
        Self { feeds }
    }

    /// Returns whether nothing more comes.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.feeds.iter().all(Feed::is_done)
    }

    /// Returns whether all came that has.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.feeds.iter().all(|feed| feed.fault().is_none())
    }
}

/// Orders a plan: each chunk once, with those that follow it on the blob.
fn pieces(plan: &[(Arc<CachedBlob>, Range<u64>)]) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    let mut seen: HashMap<*const CachedBlob, HashSet<u32>> = HashMap::new();
    for (blob, range) in plan {
        let seen = seen.entry(Arc::as_ptr(blob)).or_default();
        let most = PIECE_BYTES / u64::from(blob.cache().config.chunk_bytes);
        for chunk in blob.chunks_of(range) {
            if !seen.insert(chunk) {
                continue;
            }
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
