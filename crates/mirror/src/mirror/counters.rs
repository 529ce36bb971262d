//! What the mirror counts, as Prometheus reads it.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::catalog::Catalog;
use super::reply::Source;
use crate::blobs::BlobCache;
use serving::load::LoadReport;

/// What is asked for most.
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

/// Counts since the start.
#[derive(Debug, Default)]
pub(super) struct Counters {
    requests: [[AtomicU64; Source::ALL.len()]; Kind::ALL.len()],
    /// Bytes of bodies to clients.
    pub(super) sent_bytes: AtomicU64,
    /// Bytes of blobs from upstreams.
    pub(super) fetched_bytes: AtomicU64,
    /// Requests to upstreams.
    pub(super) asked: AtomicU64,
    /// Of these, those that ended in an outage.
    pub(super) outages: AtomicU64,
    /// Blobs that were not what their names say.
    pub(super) mismatches: AtomicU64,
    /// Requests that a rule refused.
    pub(super) denied: AtomicU64,
    /// Answers that are on their way.
    pub(super) answering: AtomicU64,
}

impl Counters {
    pub(super) fn count(&self, kind: Kind, source: Source) {
        self.requests[kind as usize][source as usize].fetch_add(1, Relaxed);
    }

    /// Returns the page for Prometheus.
    pub(super) fn page(&self, blobs: &BlobCache, catalog: &Catalog, load: &LoadReport) -> String {
        let (catalog_bytes, catalog_budget) = catalog.size();
        let mut page = String::new();
        head(
            &mut page,
            "requests_total",
            "counter",
            "Requests, by what was asked for and where the answer came from.",
        );
        for kind in Kind::ALL {
            for source in Source::ALL {
                let count = self.requests[kind as usize][source as usize].load(Relaxed);
                let (kind, source) = (kind.word(), source.word());
                let labels = format!("{{kind=\"{kind}\",source=\"{source}\"}}");
                let _infallible = writeln!(page, "nicfetch_mirror_requests_total{labels} {count}");
            }
        }
        let sent = self.sent_bytes.load(Relaxed);
        let fetched = self.fetched_bytes.load(Relaxed);
        let evicted = blobs.evicted();
        for (name, kind, help, value) in [
            (
                "sent_bytes_total",
                "counter",
                "Bytes of bodies that clients got.",
                sent,
            ),
            (
                "fetched_bytes_total",
                "counter",
                "Bytes of bodies that upstreams sent.",
                fetched,
            ),
            (
                "upstream_requests_total",
                "counter",
                "Requests to upstreams.",
                self.asked.load(Relaxed),
            ),
            (
                "upstream_outages_total",
                "counter",
                "Requests to upstreams that got no answer, or were told to come later.",
                self.outages.load(Relaxed),
            ),
            (
                "mismatches_total",
                "counter",
                "Blobs that did not have the digest they were asked for by.",
                self.mismatches.load(Relaxed),
            ),
            (
                "denied_total",
                "counter",
                "Requests that the rules of a registry refused.",
                self.denied.load(Relaxed),
            ),
            (
                "answering",
                "gauge",
                "Answers that are on their way to clients.",
                self.answering.load(Relaxed),
            ),
            (
                "evicted_blobs_total",
                "counter",
                "Blobs that were removed to make room, or collected.",
                evicted.blobs,
            ),
            (
                "evicted_bytes_total",
                "counter",
                "What these took.",
                evicted.bytes,
            ),
            (
                "stored_bytes",
                "gauge",
                "What blobs take, with what is set aside for those on their way.",
                blobs.used_bytes(),
            ),
            (
                "budget_bytes",
                "gauge",
                "What they may take.",
                blobs.budget(),
            ),
            (
                "stored_blobs",
                "gauge",
                "Blobs that are whole.",
                blobs.whole_count() as u64,
            ),
            (
                "growing_blobs",
                "gauge",
                "Blobs that are on their way.",
                blobs.growing_count() as u64,
            ),
            (
                "manifests",
                "gauge",
                "Manifests and indexes that are known.",
                catalog.manifest_count() as u64,
            ),
            (
                "catalog_bytes",
                "gauge",
                "Bytes of the file of tags and manifests.",
                catalog_bytes,
            ),
            (
                "catalog_budget_bytes",
                "gauge",
                "What it may have.",
                catalog_budget,
            ),
            (
                "load_level",
                "gauge",
                "What is left undone: 0 nothing, 1 what nobody waits for, 2 whatever has to be fetched.",
                load.level as u64,
            ),
            (
                "shed_total",
                "counter",
                "Requests that were refused because something had to be fetched.",
                load.shed,
            ),
            (
                "put_off_total",
                "counter",
                "Work nobody waited for that was not done.",
                load.put_off,
            ),
        ] {
            head(&mut page, name, kind, help);
            let _infallible = writeln!(page, "nicfetch_mirror_{name} {value}");
        }
        page
    }
}

fn head(page: &mut String, name: &str, kind: &str, help: &str) {
    let _infallible = writeln!(
        page,
        "# HELP nicfetch_mirror_{name} {help}\n# TYPE nicfetch_mirror_{name} {kind}"
    );
}
