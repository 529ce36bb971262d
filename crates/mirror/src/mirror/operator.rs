//! What an operator is told of a mirror.

use prometheus_client::registry::Registry;

use super::Mirror;
use super::counters::register_state;
use crate::blobs::BlobCache;
use serving::load::LoadReport;

/// What a mirror has, at one moment.
#[derive(Clone, Debug)]
pub struct MirrorStats {
    /// The registries behind it, the one for clients that name none first.
    pub upstreams: Vec<UpstreamStats>,
    /// Manifests that are known.
    pub manifests: u64,
    /// Bytes of the file of tags and manifests.
    pub catalog_bytes: u64,
    /// The most that this file may have.
    pub catalog_budget_bytes: u64,
    /// How hard the machine is pressed.
    pub load: LoadReport,
}

/// The state of one registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamStats {
    /// As clients call it.
    pub name: String,
    /// Whether its last request failed, and it is not asked for a while.
    pub is_out: bool,
}

impl Mirror {
    /// Returns what the mirror has.
    #[must_use]
    pub fn stats(&self) -> MirrorStats {
        let upstreams = self.upstreams.iter().map(|upstream| UpstreamStats {
            name: upstream.name().to_owned(),
            is_out: upstream.is_out(),
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

    /// Has the metrics of the mirror exposed, as `nicfetch_mirror_…`.
    pub fn register_metrics(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("nicfetch_mirror");
        self.counters.register(registry);
        register_state(registry, &self.blobs, &self.catalog, &self.config.load);
    }
}
