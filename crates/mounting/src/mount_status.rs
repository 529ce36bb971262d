//! The status of a mount, from what serves it.

use std::collections::HashSet;

use blocks::{Miss, Tree};
use yolofs::Counters;

use crate::assembly::Parts;
use node_api::mount_state::PrewarmState;
use node_api::status::{BootStatus, FirstMiss, ServedStatus};

/// How many changed files are named; the others are counted.
const CHANGED_NAMED: usize = 8;

impl Parts {
    /// Returns the status of the boot image in use, if there is one.
    #[must_use]
    pub fn boot_status(&self, counters: &Counters, prewarm: PrewarmState) -> Option<BootStatus> {
        let boot = self.boot.current()?;
        let common = BootStatus {
            image: boot.name.clone(),
            content: boot.recorded.id(),
            blocks: boot.recorded.plan().block_count(),
            injected_pages: counters.injected_pages,
            evicted_pages: counters.evicted_pages,
            sampled_blocks: counters.sampled_blocks,
            sampled_asked: counters.sampled_asked,
            wasted_bytes: wasted_bytes(counters),
            prewarm,
            ..BootStatus::default()
        };
        let Some(image) = boot.image() else {
            let extents = boot.recorded.plan().extents.iter();
            let files: HashSet<_> = extents.map(|extent| extent.file).collect();
            return Some(BootStatus {
                source: String::from_utf8_lossy(&self.source_label()).into_owned(),
                files: files.len() as u64,
                ..common
            });
        };
        let (report, counts) = (image.report(), image.counts());
        let changed = report.dropped.iter().take(CHANGED_NAMED).map(|file| {
            let path = String::from_utf8_lossy(&file.path);
            format!("{path}: {}", file.reason)
        });
        Some(BootStatus {
            source: image.image().info().source.label.clone(),
            files: report.files_kept,
            stale_blocks: report.blocks_dropped,
            stale_files: report.dropped.len(),
            changed: changed.collect(),
            names_added: report.names_added,
            names_removed: report.names_removed,
            damaged: counts.damaged_reads + counts.failed_reads,
            tier: image.image().tier().map(str::to_owned),
            copy_failures: counts.copy_failures,
            ..common
        })
    }

    /// Returns what the service calls the source.
    fn source_label(&self) -> Vec<u8> {
        let label = self.nic.as_ref().map(|nic| nic.index().label().to_vec());
        label.unwrap_or_default()
    }

    /// Returns how much was served, and from which source.
    #[must_use]
    pub fn served_status(&self, counters: &Counters) -> ServedStatus {
        let (cached, time) = (self.source.counts(), self.timekeeping());
        let boot = self.boot.current();
        let boot_blocks = boot.map(|boot| boot.recorded.plan().block_count());
        let boot_bytes = boot_blocks.map_or(0, |blocks| blocks.saturating_mul(4096));
        // Without a boot image every read misses.
        let first_miss = boot_blocks.and_then(|_| self.source.first_miss());
        ServedStatus {
            hits: cached.hits,
            misses: cached.misses,
            hit_bytes: cached.hit_bytes,
            fallthrough_bytes: cached.fallthrough_bytes,
            divergence_permille: (cached.fallthrough_bytes.saturating_mul(1000))
                .checked_div(boot_bytes)
                .unwrap_or(0),
            first_miss: first_miss.map(|miss| shown(&miss, &self.tree)),
            diverted_files: counters.diverted_files,
            copy_opens: counters.copy_opens,
            copies_failed: counters.copies_failed,
            late_answers: time.late,
            hung_threads: time.hung as u64,
            in_hand: counters.in_hand,
            requests: counters
                .by_kind()
                .map(|(kind, count)| (kind.name().to_owned(), count))
                .collect(),
        }
    }

    /// Returns warnings for the owner of the mount about its source and its boot image.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let disk = self.disk.iter();
        let source = disk.flat_map(|disk| disk.root.warnings()).cloned();
        let boot = self.boot.current().and_then(|boot| boot.stale());
        source.chain(boot).collect()
    }
}

/// Returns how much of the pushed data was not needed, if there is a sample.
fn wasted_bytes(counters: &Counters) -> Option<u64> {
    let unneeded = counters
        .sampled_blocks
        .checked_sub(counters.sampled_asked)?;
    let pushed = counters.injected_pages.saturating_mul(4096);
    pushed
        .saturating_mul(unneeded)
        .checked_div(counters.sampled_blocks)
}

/// Returns a miss with the path that its file has in the tree.
fn shown(miss: &Miss, tree: &Tree) -> FirstMiss {
    let path = tree.path(miss.file).unwrap_or_default();
    FirstMiss {
        path: String::from_utf8_lossy(&path).into_owned(),
        offset: miss.offset,
    }
}
