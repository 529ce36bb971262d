//! What a mirror reports to its operator.

use prometheus_client::registry::Registry;

use super::Mirror;
use super::apart::RangeStats;
use super::counters::register_state;
use crate::blobs::BlobCache;
use serving::load::LoadReport;

/// The state of a mirror at one moment.
#[derive(Clone, Debug)]
pub struct MirrorStats {
    /// The upstream registries; the first is for clients that do not name one.
    pub upstreams: Vec<UpstreamStats>,
    /// Manifests in the catalog.
    pub manifests: u64,
    /// Bytes of the catalog's file.
    pub catalog_bytes: u64,
    /// The limit of this file.
    pub catalog_budget_bytes: u64,
    /// The load of the machine.
    pub load: LoadReport,
}

/// The state of a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamStats {
    /// The name that clients use.
    pub name: String,
    /// Whether its last request failed, so that requests with a fallback do not wait for it.
    pub is_out: bool,
    /// Ranges of blobs that were requested of it, ahead of downloads.
    pub ranges: RangeStats,
}

impl Mirror {
    /// Returns the state of the mirror.
    #[must_use]
    pub fn stats(&self) -> MirrorStats {
        let upstreams = self.upstreams.iter().map(|upstream| UpstreamStats {
            name: upstream.name().to_owned(),
            is_out: upstream.is_out(),
            ranges: self.apart.stats_of(upstream.name()),
        });
        let (catalog_bytes, catalog_budget_bytes) = self.catalog.size();
        MirrorStats {
            upstreams: upstreams.collect(),
            manifests: self.catalog.manifest_count() as u64,
            catalog_bytes,
            catalog_budget_bytes,
            load: self.config.load.report(),
        }
    }

    /// Returns the cache of blobs.
    #[must_use]
    pub fn blobs(&self) -> &BlobCache {
        &self.blobs
    }

    /// Registers the metrics of the mirror, as `nicfetch_mirror_…`.
    pub fn register_metrics(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("nicfetch_mirror");
        self.counters.register(registry);
        register_state(registry, &self.blobs, &self.catalog, &self.config.load);
        self.apart.register(registry);
    }
}
