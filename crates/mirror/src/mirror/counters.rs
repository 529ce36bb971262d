//! The metrics of the mirror.

use std::sync::Arc;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::catalog::Catalog;
use super::reply::Source;
use crate::blobs::BlobCache;
use serving::load::Load;
use serving::metrics::{Sample, register_samples};

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Manifest,
    Blob,
    Other,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Manifest, Self::Blob, Self::Other];

    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Manifest => "manifest",
            Self::Blob => "blob",
            Self::Other => "other",
        }
    }
}

/// The labels of a count of requests.
type RequestLabels = [(&'static str, &'static str); 2];

fn labels(kind: Kind, source: Source) -> RequestLabels {
    [("kind", kind.word()), ("source", source.word())]
}

/// Counts since the start.
#[derive(Debug)]
pub(super) struct Counters {
    requests: Family<RequestLabels, Counter>,
    /// Bytes of bodies to clients.
    pub(super) sent_bytes: Counter,
    /// Bytes of blobs from upstreams.
    pub(super) fetched_bytes: Counter,
    /// Requests to upstreams.
    pub(super) asked: Counter,
    /// Of these, those that ended in an outage.
    pub(super) outages: Counter,
    /// Content that did not have its digest.
    pub(super) mismatches: Counter,
    /// Requests that access control refused.
    pub(super) denied: Counter,
    /// Responses in progress.
    pub(super) answering: Gauge,
}

impl Default for Counters {
    fn default() -> Self {
        let requests = Family::default();
        // What never happened is exposed as 0, and is not missing.
        for kind in Kind::ALL {
            for source in Source::ALL {
                drop(requests.get_or_create(&labels(kind, source)));
            }
        }
        Self {
            requests,
            sent_bytes: Counter::default(),
            fetched_bytes: Counter::default(),
            asked: Counter::default(),
            outages: Counter::default(),
            mismatches: Counter::default(),
            denied: Counter::default(),
            answering: Gauge::default(),
        }
    }
}

impl Counters {
    pub(super) fn count(&self, kind: Kind, source: Source) {
        self.requests.get_or_create(&labels(kind, source)).inc();
    }

    /// Registers the counts.
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "requests",
            "Requests, by what was asked for and where the answer came from",
            self.requests.clone(),
        );
        let counters = [
            (
                "sent_bytes",
                "Bytes of bodies that clients got",
                &self.sent_bytes,
            ),
            (
                "fetched_bytes",
                "Bytes of bodies that upstreams sent",
                &self.fetched_bytes,
            ),
            ("upstream_requests", "Requests to upstreams", &self.asked),
            (
                "upstream_outages",
                "Requests to upstreams without a response, or with 408, 429 or 5xx",
                &self.outages,
            ),
            (
                "mismatches",
                "Blobs that did not have the digest they were asked for by",
                &self.mismatches,
            ),
            (
                "denied",
                "Requests that the rules of a registry refused",
                &self.denied,
            ),
        ];
        for (name, help, counter) in counters {
            registry.register(name, help, counter.clone());
        }
        registry.register(
            "answering",
            "Answers that are on their way to clients",
            self.answering.clone(),
        );
    }
}

/// Registers the state of the cache and of the catalog, and the load.
pub(super) fn register_state(
    registry: &mut Registry,
    blobs: &Arc<BlobCache>,
    catalog: &Arc<Catalog>,
    load: &Arc<Load>,
) {
    let blobs = Arc::clone(blobs);
    register_samples(registry, move || blob_samples(&blobs));
    let catalog = Arc::clone(catalog);
    register_samples(registry, move || catalog_samples(&catalog));
    let load = Arc::clone(load);
    register_samples(registry, move || load_samples(&load));
}

fn blob_samples(blobs: &BlobCache) -> Vec<Sample> {
    let evicted = blobs.evicted();
    vec![
        Sample::counter(
            "evicted_blobs",
            "Blobs that were removed to make room, or collected.",
            evicted.blobs,
        ),
        Sample::counter(
            "evicted_bytes",
            "Bytes of these on the disk.",
            evicted.bytes,
        ),
        Sample::gauge(
            "stored_bytes",
            "Bytes that blobs take on the disk, with the room reserved for those being fetched.",
            blobs.used_bytes(),
        ),
        Sample::gauge(
            "budget_bytes",
            "Bytes that blobs may take on the disk.",
            blobs.budget(),
        ),
        Sample::gauge(
            "stored_blobs",
            "Blobs that are complete.",
            blobs.whole_count() as u64,
        ),
        Sample::gauge(
            "growing_blobs",
            "Blobs that are being fetched.",
            blobs.growing_count() as u64,
        ),
    ]
}

fn catalog_samples(catalog: &Catalog) -> Vec<Sample> {
    let (bytes, budget) = catalog.size();
    vec![
        Sample::gauge(
            "manifests",
            "Manifests and indexes that are known.",
            catalog.manifest_count() as u64,
        ),
        Sample::gauge(
            "catalog_bytes",
            "Bytes of the file of tags and manifests.",
            bytes,
        ),
        Sample::gauge(
            "catalog_budget_bytes",
            "Bytes that this file may have.",
            budget,
        ),
    ]
}

fn load_samples(load: &Load) -> Vec<Sample> {
    let load = load.report();
    vec![
        Sample::gauge(
            "load_level",
            "Load shedding: 0 none, 1 background work, 2 each request that needs a download.",
            load.level as u64,
        ),
        Sample::counter(
            "shed",
            "Requests that were refused because something had to be fetched.",
            load.shed,
        ),
        Sample::counter("put_off", "Background work that was skipped.", load.put_off),
    ]
}
