//! Ranges of blobs from registries, by the fetch engine.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use ranges::{Counts, Fault, FaultKind, Fetcher, Place, Reading, Reconnecting};
use reqwest::{Method, StatusCode};
use serde::{Deserialize, Serialize};

use serving::metrics::{Sample, register_samples};

use super::fill::{Origin, stretch};
use crate::blobs::RangeSource;
use crate::upstream::UpstreamError;

/// What fetches ranges from each registry, by its name.
#[derive(Debug, Default)]
pub(super) struct Apart(Mutex<HashMap<String, Source>>);

/// What fetches ranges from a registry, which has a round trip and a rate of its own.
#[derive(Clone, Debug)]
struct Source {
    fetcher: Arc<Fetcher>,
    /// Its connections, which all blobs share.
    reconnecting: Arc<Reconnecting>,
}

impl Apart {
    /// Returns who fetches ranges of a blob, in the name of whoever asks.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(super) fn source(&self, origin: &Origin) -> io::Result<RangeSource> {
        let mut registries = self.0.lock();
        let name = origin.upstream.name();
        let registry = match registries.get(name) {
            Some(registry) => registry.clone(),
            None => {
                let registry = Source {
                    fetcher: Fetcher::start(1)?,
                    reconnecting: Arc::default(),
                };
                registries.insert(name.to_owned(), registry.clone());
                registry
            }
        };
        let place = Arc::new(UpstreamPlace {
            origin: origin.clone(),
            reconnecting: registry.reconnecting,
        });
        Ok(RangeSource {
            fetcher: registry.fetcher,
            place,
        })
    }

    /// Returns what was requested of a registry.
    pub(super) fn stats_of(&self, name: &str) -> RangeStats {
        let registries = self.0.lock();
        let registry = registries.get(name);
        registry
            .map(|registry| registry.fetcher.counts().into())
            .unwrap_or_default()
    }

    /// Registers what is requested of all registries.
    pub(super) fn register(self: &Arc<Self>, registry: &mut Registry) {
        let apart = Arc::clone(self);
        register_samples(registry, move || samples(apart.stats()));
    }

    /// Returns what was requested of all registries.
    fn stats(&self) -> RangeStats {
        let registries = self.0.lock();
        let registries = registries.values();
        registries
            .map(|registry| RangeStats::from(registry.fetcher.counts()))
            .sum()
    }
}

fn samples(stats: RangeStats) -> Vec<Sample> {
    vec![
        Sample::counter(
            "range_requests",
            "Requests to upstreams for ranges of blobs, ahead of downloads.",
            stats.requests,
        ),
        Sample::counter(
            "joined_pieces",
            "Pieces of these that were on their way for another client.",
            stats.joined,
        ),
        Sample::counter(
            "hedged_pieces",
            "Pieces that were requested once more because they were late.",
            stats.hedged,
        ),
        Sample::counter(
            "overtaken_pieces",
            "Pieces that were requested once more because they were far behind in a long request.",
            stats.overtaken,
        ),
        Sample::counter(
            "retried_pieces",
            "Pieces that were requested again after a failure.",
            stats.retried,
        ),
        Sample::counter(
            "range_stalls",
            "Times that nothing came of ranges for so long that their requests were given up.",
            stats.stalls,
        ),
    ]
}

/// What was requested in ranges since the start. A piece is 4 KiB of a blob.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangeStats {
    /// Requests, of one range or several.
    pub requests: u64,
    /// Pieces that were on their way for another client.
    pub joined: u64,
    /// Pieces that were requested once more because they were late.
    pub hedged: u64,
    /// Pieces that were requested once more because a client waits, and they were far behind in a long request.
    pub overtaken: u64,
    /// Pieces that were requested again after a failure.
    pub retried: u64,
    /// How often nothing came for so long that requests were given up.
    pub stalls: u64,
}

impl From<Counts> for RangeStats {
    fn from(counts: Counts) -> Self {
        Self {
            requests: counts.requests,
            joined: counts.joins,
            hedged: counts.hedges,
            overtaken: counts.overtakes,
            retried: counts.retries,
            stalls: counts.stalls,
        }
    }
}

impl std::iter::Sum for RangeStats {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            requests: sum.requests + one.requests,
            joined: sum.joined + one.joined,
            hedged: sum.hedged + one.hedged,
            overtaken: sum.overtaken + one.overtaken,
            retried: sum.retried + one.retried,
            stalls: sum.stalls + one.stalls,
        })
    }
}

/// A blob at a registry.
#[derive(Debug)]
struct UpstreamPlace {
    origin: Origin,
    reconnecting: Arc<Reconnecting>,
}

impl UpstreamPlace {
    async fn get(
        &self,
        range: Range<u64>,
        take: &mut (dyn FnMut(&[u8]) + Send),
    ) -> Result<(), UpstreamError> {
        let header = format!("bytes={}-{}", range.start, range.end - 1);
        let turn = self.reconnecting.turn().await;
        let mut answer = self.origin.ask(Method::GET, Some(header), None).await?;
        if answer.status() != StatusCode::PARTIAL_CONTENT {
            return Err(UpstreamError::Protocol("it does not send parts of blobs"));
        }
        if stretch(&answer)?.start != range.start {
            return Err(UpstreamError::Protocol(
                "it sent another range than was requested",
            ));
        }
        self.reconnecting.answered(answer.version());
        drop(turn);
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
            got.map_err(|error| {
                self.reconnecting.failed();
                Fault::new(kind_of(&error), error.to_string())
            })
        })
    }

    fn parallel(&self) -> usize {
        self.reconnecting.parallel()
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
