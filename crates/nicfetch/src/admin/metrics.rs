//! The metrics of nicfetch.

use prometheus_client::registry::Registry;
use serving::metrics::{Sample, register_samples};

use super::{BlockSide, BlocksStatus, Operated};

impl Operated {
    /// Returns all metrics of this nicfetch.
    #[must_use]
    pub fn metrics(&self) -> Registry {
        let mut registry = Registry::default();
        self.mirror.register_metrics(&mut registry);
        if let Some(blocks) = &self.blocks {
            blocks.service.register_metrics(&mut registry);
            blocks.register_metrics(&mut registry);
        }
        registry
    }
}

impl BlockSide {
    fn register_metrics(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("nicfetch_blocks");
        let blocks = self.clone();
        register_samples(registry, move || samples(&blocks.status()));
    }
}

fn samples(status: &BlocksStatus) -> Vec<Sample> {
    let mut samples = service_samples(status).to_vec();
    samples.extend(store_samples(status));
    samples.extend(feed_samples(status));
    samples
}

fn service_samples(status: &BlocksStatus) -> [Sample; 6] {
    [
        Sample::counter("sent_chunks", "Chunks that were sent.", status.sent_chunks),
        Sample::counter(
            "sent_bytes",
            "Bytes of these, compressed.",
            status.sent_bytes,
        ),
        Sample::counter(
            "absent",
            "Chunks that were requested and are not in the store.",
            status.absent,
        ),
        Sample::counter(
            "refused",
            "Reads of chunks, connections and authentications that were refused.",
            status.refused,
        ),
        Sample::gauge(
            "waiting",
            "Chunks that wait to be read from the store.",
            status.waiting,
        ),
        Sample::gauge(
            "connections",
            "Connections of machines.",
            status.connections,
        ),
    ]
}

fn store_samples(status: &BlocksStatus) -> [Sample; 10] {
    [
        Sample::gauge("sources", "Sources that can be opened.", status.sources),
        Sample::gauge(
            "source_bytes",
            "Bytes of all files of all sources.",
            status.source_bytes,
        ),
        Sample::gauge(
            "raw_bytes",
            "Bytes of the stored chunks, decompressed.",
            status.raw_bytes,
        ),
        Sample::gauge(
            "stored_bytes",
            "Bytes of the stored chunks, compressed.",
            status.stored_bytes,
        ),
        Sample::gauge(
            "disk_bytes",
            "Bytes of the files that they are in.",
            status.disk_bytes,
        ),
        Sample::gauge(
            "budget_bytes",
            "Bytes that these files may take.",
            status.budget_bytes,
        ),
        Sample::gauge("stored_chunks", "Chunks in the store.", status.chunks),
        Sample::gauge(
            "pinned_chunks",
            "Stored chunks that are never evicted.",
            status.pinned_chunks,
        ),
        Sample::counter(
            "evicted_chunks",
            "Chunks that were evicted to make room.",
            status.evicted_chunks,
        ),
        Sample::counter(
            "damaged",
            "Damaged records that were found.",
            status.damaged,
        ),
    ]
}

fn feed_samples(status: &BlocksStatus) -> [Sample; 4] {
    let feed = &status.feed;
    [
        Sample::gauge(
            "feed_waiting",
            "Images that wait to become sources.",
            feed.waiting,
        ),
        Sample::counter("feed_done", "Images that became sources.", feed.done),
        Sample::counter(
            "feed_failed",
            "Images that could not become sources.",
            feed.failed,
        ),
        Sample::gauge(
            "feed_set_aside",
            "Images that failed too often and are not tried again before they are prewarmed.",
            feed.set_aside,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use blockservice::identity::Access;
    use blockservice::service::{Limits, Service};
    use chunks::{ChunkStore, PolicyKind, Sources, StoreConfig};
    use mirror::blobs::BlobConfig;
    use mirror::{Mirror, MirrorConfig, WholeImage};
    use serving::metrics::exposition;

    use super::*;
    use crate::admin::{Feed, FeedStatus};

    #[derive(Debug)]
    struct NoFeed;

    impl Feed for NoFeed {
        fn want(&self, _image: WholeImage) -> std::io::Result<()> {
            Ok(())
        }

        fn fed(&self) -> FeedStatus {
            FeedStatus::default()
        }
    }

    fn operated(dir: &std::path::Path) -> Operated {
        let config = MirrorConfig {
            tag_ttl: std::time::Duration::from_secs(1),
            absent_ttl: std::time::Duration::from_secs(1),
            blobs: BlobConfig {
                budget: 1 << 20,
                hold_back: 1 << 10,
                policy: PolicyKind::Lru,
            },
            load: Arc::default(),
            fetch_rate: None,
        };
        let mirror = Mirror::open(&dir.join("mirror"), config, Vec::new()).unwrap();
        let sources = Sources::open(dir, StoreConfig::default()).unwrap();
        let sources = Arc::new(sources);
        let store: Arc<dyn ChunkStore> = Arc::clone(sources.store()) as Arc<dyn ChunkStore>;
        let catalog = Arc::clone(sources.catalog());
        let service = Service::new(store, catalog, Access::open(), Limits::default()).unwrap();
        Operated {
            mirror,
            blocks: Some(BlockSide::new(sources, service, Arc::new(NoFeed))),
        }
    }

    /// Returns `NAME KIND` of each metric of an exposition, as its lines are named.
    fn exposed(page: &str) -> BTreeSet<String> {
        let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        let named = types.map(|line| match line.strip_suffix(" counter") {
            Some(name) => format!("{name}_total counter"),
            None => line.to_owned(),
        });
        named.collect()
    }

    /// Returns the same of the table in the document.
    fn documented(text: &str) -> BTreeSet<String> {
        let rows = text.lines().filter(|line| line.starts_with("| `nicfetch_"));
        let rows = rows.map(|row| {
            let mut cells = row.split('|').map(str::trim).skip(1);
            (cells.next().unwrap(), cells.next().unwrap())
        });
        let named = rows.flat_map(|(names, kind)| {
            let names = names.split(',').map(|name| name.trim().trim_matches('`'));
            let names = names.filter(|name| name.starts_with("nicfetch_"));
            names.map(move |name| format!("{} {kind}", name.split('{').next().unwrap()))
        });
        named.collect()
    }

    /// The table is older than the library that writes the metrics: neither names nor types changed.
    #[test]
    fn what_is_exposed_is_what_the_document_says() {
        let dir = tempfile::tempdir().unwrap();
        let operated = operated(dir.path());
        let page = exposition(&operated.metrics());
        let documented = documented(include_str!("../../../../docs/nicfetch.md"));
        assert_eq!(exposed(&page), documented);
        assert!(page.ends_with("# EOF\n"));
    }

    #[test]
    fn each_sample_has_a_line_before_anything_happened() {
        let dir = tempfile::tempdir().unwrap();
        let page = exposition(&operated(dir.path()).metrics());
        for line in [
            r#"nicfetch_mirror_requests_total{kind="blob",source="hit"} 0"#,
            "nicfetch_mirror_budget_bytes 1048576",
            r#"nicfetch_blocks_answers_total{priority="demand",answer="busy"} 0"#,
            r#"nicfetch_blocks_wait_seconds_count{priority="readahead"} 0"#,
            r#"nicfetch_blocks_machine_chunks_total{machine="(others)"} 0"#,
            "nicfetch_blocks_feed_done_total 0",
        ] {
            assert!(page.lines().any(|found| found == line), "{line}\n{page}");
        }
    }
}
