//! Ranges of blobs from registries, by the fetch engine.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use parking_lot::Mutex;
use ranges::{Fault, FaultKind, Fetcher, Place, Reading};
use reqwest::{Method, StatusCode, Version};

use super::fill::{Origin, stretch};
use crate::blobs::RangeSource;
use crate::upstream::UpstreamError;

/// Connections to a registry for ranges, with one request at a time.
const CONNECTIONS: usize = 16;
/// Requests on one connection of HTTP/2: servers take at least 100.
const STREAMS: usize = 64;

/// What fetches ranges from each registry, by its name: each has a round trip and a rate of its own.
#[derive(Debug, Default)]
pub(super) struct Apart(Mutex<HashMap<String, Arc<Fetcher>>>);

impl Apart {
    /// Returns who fetches ranges of a blob, in the name of whoever asks.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(super) fn source(&self, origin: &Origin) -> io::Result<RangeSource> {
        let mut fetchers = self.0.lock();
        let name = origin.upstream.name();
        let fetcher = match fetchers.get(name) {
            Some(fetcher) => Arc::clone(fetcher),
            None => {
                let fetcher = Fetcher::start(1)?;
                fetchers.insert(name.to_owned(), Arc::clone(&fetcher));
                fetcher
            }
        };
        let place = Arc::new(UpstreamPlace {
            origin: origin.clone(),
            is_multiplexed: AtomicBool::new(false),
        });
        Ok(RangeSource { fetcher, place })
    }
}

/// A blob at a registry.
#[derive(Debug)]
struct UpstreamPlace {
    origin: Origin,
    /// Whether it answered over HTTP/2.
    is_multiplexed: AtomicBool,
}

impl UpstreamPlace {
    async fn get(
        &self,
        range: Range<u64>,
        take: &mut (dyn FnMut(&[u8]) + Send),
    ) -> Result<(), UpstreamError> {
        let header = format!("bytes={}-{}", range.start, range.end - 1);
        let mut answer = self.origin.ask(Method::GET, Some(header), None).await?;
        if answer.status() != StatusCode::PARTIAL_CONTENT {
            return Err(UpstreamError::Protocol("it does not send parts of blobs"));
        }
        if stretch(&answer)?.start != range.start {
            return Err(UpstreamError::Protocol(
                "it sent another range than was requested",
            ));
        }
        let is_multiplexed = answer.version() == Version::HTTP_2;
        self.is_multiplexed.store(is_multiplexed, Relaxed);
        let mut left = range.end - range.start;
        while left > 0 {
            let Some(piece) = self.origin.chunk(&mut answer).await? else {
                return Err(UpstreamError::Cut);
            };
            let used = usize::try_from(left).map_or(piece.len(), |left| left.min(piece.len()));
            left -= used as u64;
            take(&piece[..used]);
        }
        Ok(())
    }
}

impl Place for UpstreamPlace {
    fn read<'a>(
        &'a self,
        range: Range<u64>,
        take: &'a mut (dyn FnMut(&[u8]) + Send),
    ) -> Reading<'a> {
        Box::pin(async move {
            let got = self.get(range, take).await;
            got.map_err(|error| Fault::new(kind_of(&error), error.to_string()))
        })
    }

    fn parallel(&self) -> usize {
        match self.is_multiplexed.load(Relaxed) {
            true => STREAMS,
            false => CONNECTIONS,
        }
    }
}

/// Returns what is to be done about a request without a usable response.
fn kind_of(error: &UpstreamError) -> FaultKind {
    match error {
        UpstreamError::NoAnswer(error) if error.is_connect() => FaultKind::Away,
        UpstreamError::TooSlow { .. } => FaultKind::Away,
        error if error.is_outage() => FaultKind::Busy,
        // Whoever asked for it may get it in another way: by a request of its own, which says what is wrong.
        _ => FaultKind::Absent,
    }
}
