//! The status of a mount, from what serves it.

use blocks::{CacheCounts, Miss, Tree};
use bootimg::Attached;
use localfs::{SourceRoot, Timekeeping};
use yolofs::Counters;

use host::size::Size;
use node_api::mount_state::PrewarmState;
use node_api::status::{BootStatus, FirstMiss, ServedStatus};

/// How many changed files are named; the others are counted.
const CHANGED_NAMED: usize = 8;

/// Returns the status of a boot image in use.
#[must_use]
pub fn boot_status(
    name: &str,
    image: &Attached,
    counters: &Counters,
    prewarm: PrewarmState,
) -> BootStatus {
    let (report, counts) = (image.report(), image.counts());
    let changed = report.dropped.iter().take(CHANGED_NAMED).map(|file| {
        let path = String::from_utf8_lossy(&file.path);
        format!("{path}: {}", file.reason)
    });
    BootStatus {
        image: name.to_owned(),
        content: image.image().info().id.to_string(),
        source: image.image().info().source.label.clone(),
        files: report.files_kept,
        blocks: image.plan().block_count(),
        stale_blocks: report.blocks_dropped,
        stale_files: report.dropped.len(),
        changed: changed.collect(),
        names_added: report.names_added,
        names_removed: report.names_removed,
        damaged: counts.damaged_reads + counts.failed_reads,
        tier: image.image().tier().map(str::to_owned),
        copy_failures: counts.copy_failures,
        injected_pages: counters.injected_pages,
        evicted_pages: counters.evicted_pages,
        sampled_blocks: counters.sampled_blocks,
        sampled_asked: counters.sampled_asked,
        wasted_bytes: wasted_bytes(counters),
        prewarm,
    }
}

/// Returns how much of what was pushed nobody needed, if there is a sample to tell.
fn wasted_bytes(counters: &Counters) -> Option<u64> {
    let unneeded = counters
        .sampled_blocks
        .checked_sub(counters.sampled_asked)?;
    let pushed = counters.injected_pages.saturating_mul(4096);
    pushed
        .saturating_mul(unneeded)
        .checked_div(counters.sampled_blocks)
}

/// Returns where a boot left its recording, in the words of the tree it read.
#[must_use]
pub fn first_miss(miss: &Miss, tree: &Tree) -> FirstMiss {
    let path = tree.path(miss.file).unwrap_or_default();
    FirstMiss {
        path: String::from_utf8_lossy(&path).into_owned(),
        offset: miss.offset,
    }
}

/// Returns what was served: `cached` tells what came from where, of a mount that has a boot
/// image with so many blocks.
#[must_use]
pub fn served_status(
    counters: &Counters,
    cached: Option<CacheCounts>,
    boot_blocks: u64,
    source: Timekeeping,
    first_miss: Option<FirstMiss>,
) -> ServedStatus {
    // Without a boot image every byte read comes from the source.
    let fallthrough_bytes = cached.map_or(counters.bytes_read, |cached| cached.fallthrough_bytes);
    let cached = cached.unwrap_or_default();
    let boot_bytes = boot_blocks.saturating_mul(4096);
    ServedStatus {
        hits: cached.hits,
        misses: cached.misses,
        hit_bytes: cached.hit_bytes,
        fallthrough_bytes,
        divergence_permille: (fallthrough_bytes * 1000)
            .checked_div(boot_bytes)
            .unwrap_or(0),
        first_miss,
        diverted_files: counters.diverted_files,
        copy_opens: counters.copy_opens,
        copies_failed: counters.copies_failed,
        late_answers: source.late,
        hung_threads: source.hung as u64,
        requests: counters
            .by_kind()
            .map(|(kind, count)| (kind.name().to_owned(), count))
            .collect(),
    }
}

/// Returns what the owner of a mount should know of its source and of its boot image.
#[must_use]
pub fn warnings(source: Option<&SourceRoot>, boot: Option<(&str, &Attached)>) -> Vec<String> {
    let source = source.into_iter().flat_map(SourceRoot::warnings).cloned();
    source
        .chain(boot.and_then(|(name, image)| stale(name, image)))
        .collect()
}

/// Returns what a boot image does not give because its files changed, if there is something.
#[must_use]
pub fn stale(name: &str, image: &Attached) -> Option<String> {
    let report = image.report();
    let first = report.dropped.first()?;
    let first = String::from_utf8_lossy(&first.path);
    let (kept, gone) = (report.files_kept, report.dropped.len());
    let all = kept + gone;
    let from = &image.image().info().source.label;
    Some(if kept == 0 {
        format!(
            "boot image {name}, recorded from {from}, gives nothing: none of its {all} files is in \
             the source as it was recorded, {first} for one; record the source"
        )
    } else {
        let bytes = Size(report.blocks_dropped.saturating_mul(4096));
        format!(
            "boot image {name}, recorded from {from}: {gone} of its {all} files ({bytes}) changed \
             since it was recorded and are read from the source, {first} among them; record again \
             to make them fast"
        )
    })
}
