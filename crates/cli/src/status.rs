//! What `yolofs status` shows of a mount.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use blocks::{CacheCounts, Miss, Tree};
use bootimg::Attached;
use localfs::{SourceRoot, Timekeeping};
use serde::{Deserialize, Serialize};
use yolofs::Counters;

use crate::mount_daemon::{Answer, Request};
use crate::nic::NicStatus;
use crate::output::{count, percent, table};
use host::control::call;
use host::run_dir::{MountRecord, RunDir};
use host::size::Size;

/// A daemon answers from counters; one that takes longer is stuck, and is shown as such.
const DEADLINE: Duration = Duration::from_secs(2);

/// How many changed files are named; the others are counted.
const CHANGED_NAMED: usize = 8;

/// One mount at one moment. Byte counts and request counts are since it was mounted.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct MountStatus {
    /// Name in the run directory.
    pub(crate) id: String,
    /// Where it is mounted.
    pub(crate) mountpoint: PathBuf,
    /// What is mounted.
    pub(crate) source: PathBuf,
    /// `lower` or `disk`.
    pub(crate) mode: String,
    /// `serving`, or `dead` if its daemon is gone.
    pub(crate) state: String,
    /// The daemon, or the worker; `None` while there is none.
    pub(crate) pid: Option<u32>,
    /// What there is to say of the boot image, if one is in use.
    pub(crate) boot: Option<BootStatus>,
    /// What the daemon was asked and what it answered; absent if it is dead.
    pub(crate) served: Option<ServedStatus>,
    /// What there is to say of the block service, if one is asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) nic: Option<NicStatus>,
    /// What its owner should know: what the boot image has nothing of, and what is read past the
    /// mount.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) warnings: Vec<String>,
}

/// The boot image of a mount.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct BootStatus {
    /// Its name.
    pub(crate) image: String,
    /// Its content id.
    pub(crate) content: String,
    /// What it was recorded from.
    #[serde(default)]
    pub(crate) source: String,
    /// Files that it has something of, and that are as they were recorded.
    #[serde(default)]
    pub(crate) files: u64,
    /// Blocks of 4 KiB that are still valid.
    pub(crate) blocks: u64,
    /// Blocks dropped because their file changed since the recording.
    pub(crate) stale_blocks: u64,
    /// Files dropped for that reason.
    pub(crate) stale_files: u64,
    /// Some of them, each with what changed.
    #[serde(default)]
    pub(crate) changed: Vec<String>,
    /// Names in the source that the recording does not know.
    #[serde(default)]
    pub(crate) names_added: u64,
    /// Names that the recording knows and the source no longer has.
    #[serde(default)]
    pub(crate) names_removed: u64,
    /// Reads that met damaged data and went to the source instead.
    pub(crate) damaged: u64,
    /// The tier that it is read from; absent if that is the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tier: Option<String>,
    /// Reads that the copy on that tier failed, and that went to the store instead.
    #[serde(default)]
    pub(crate) copy_failures: u64,
    /// Pages brought into the page cache.
    pub(crate) injected_pages: u64,
    /// Of these, pages that were asked for again because the kernel had dropped them.
    pub(crate) evicted_pages: u64,
    /// Blocks that were held back from the page cache, as a sample of what boots need (`--auto`).
    #[serde(default)]
    pub(crate) sampled_blocks: u64,
    /// Of these, blocks that were asked for.
    #[serde(default)]
    pub(crate) sampled_asked: u64,
    /// Bytes that were pushed and not needed, estimated from the sample; absent without one.
    #[serde(default)]
    pub(crate) wasted_bytes: Option<u64>,
    /// Where the prewarm stands: `off`, `running`, `done`, `cancelled` or `failed`.
    pub(crate) prewarm: String,
}

/// What a daemon did.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ServedStatus {
    /// Runs of blocks answered from the boot image.
    pub(crate) hits: u64,
    /// Runs of blocks that were not in it.
    pub(crate) misses: u64,
    /// Bytes answered from the boot image.
    pub(crate) hit_bytes: u64,
    /// Bytes read from the source.
    pub(crate) fallthrough_bytes: u64,
    /// How far this boot went beyond the recording: fallthrough bytes in thousandths of the boot
    /// image's bytes. 0 is a boot like the recorded one; above 200 it is worth recording anew.
    pub(crate) divergence_permille: u64,
    /// The first read that the boot image had no answer for.
    #[serde(default)]
    pub(crate) first_miss: Option<FirstMiss>,
    /// Files that changed while they were mounted.
    pub(crate) diverted_files: u64,
    /// Times that a file was opened on its whole copy on a tier: reads of it are not seen here.
    #[serde(default)]
    pub(crate) copy_opens: u64,
    /// Times that such a copy could not be used, and the file was served as if there were none.
    #[serde(default)]
    pub(crate) copies_failed: u64,
    /// Questions that the source did not answer within the deadline.
    #[serde(default)]
    pub(crate) late_answers: u64,
    /// Threads that wait for such an answer still.
    #[serde(default)]
    pub(crate) hung_threads: u64,
    /// Requests of the kernel, by kind.
    pub(crate) requests: BTreeMap<String, u64>,
}

/// Where a boot left its recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FirstMiss {
    /// The file, relative to the source's root.
    pub(crate) path: String,
    /// From which byte on.
    pub(crate) offset: u64,
}

impl BootStatus {
    /// Returns the status of a boot image in use.
    #[must_use]
    pub(crate) fn of(name: &str, image: &Attached, counters: &Counters, prewarm: &str) -> Self {
        let (report, counts) = (image.report(), image.counts());
        let changed = report.dropped.iter().take(CHANGED_NAMED).map(|file| {
            let path = String::from_utf8_lossy(&file.path);
            format!("{path}: {}", file.reason)
        });
        Self {
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
            prewarm: prewarm.to_owned(),
        }
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

impl FirstMiss {
    /// Returns where a boot left its recording, in the words of the tree it read.
    #[must_use]
    pub(crate) fn of(miss: &Miss, tree: &Tree) -> Self {
        let path = tree.path(miss.file).unwrap_or_default();
        Self {
            path: String::from_utf8_lossy(&path).into_owned(),
            offset: miss.offset,
        }
    }
}

impl ServedStatus {
    /// Returns what was served: `cached` tells what came from where, of a mount that has a boot
    /// image with so many blocks.
    #[must_use]
    pub(crate) fn of(
        counters: &Counters,
        cached: Option<CacheCounts>,
        boot_blocks: u64,
        source: Timekeeping,
        first_miss: Option<FirstMiss>,
    ) -> Self {
        // Without a boot image every byte read comes from the source.
        let fallthrough_bytes =
            cached.map_or(counters.bytes_read, |cached| cached.fallthrough_bytes);
        let cached = cached.unwrap_or_default();
        let boot_bytes = boot_blocks.saturating_mul(4096);
        Self {
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
}

/// Returns what the owner of a mount should know of its source and of its boot image.
#[must_use]
pub(crate) fn warnings(
    source: Option<&SourceRoot>,
    boot: Option<(&str, &Attached)>,
) -> Vec<String> {
    let source = source.into_iter().flat_map(SourceRoot::warnings).cloned();
    source
        .chain(boot.and_then(|(name, image)| stale(name, image)))
        .collect()
}

/// Returns what a boot image does not give because its files changed, if there is something.
#[must_use]
pub(crate) fn stale(name: &str, image: &Attached) -> Option<String> {
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

impl MountStatus {
    /// Asks the daemon of a mount. One that does not answer is shown as such.
    #[must_use]
    pub(crate) fn ask(run_dir: &RunDir, record: &MountRecord) -> Self {
        let state = if record.is_alive() {
            match call(&run_dir.socket(&record.id), &Request::Status, DEADLINE) {
                Ok(Answer::Status(status)) => return *status,
                Ok(_) => "confused",
                Err(error) => {
                    log::warn!("{}: {error:#}", record.mountpoint.display());
                    "not answering"
                }
            }
        } else {
            "dead"
        };
        Self {
            id: record.id.clone(),
            mountpoint: record.mountpoint.clone(),
            source: record.source.clone(),
            mode: "unknown".to_owned(),
            state: state.to_owned(),
            pid: Some(record.pid),
            boot: None,
            served: None,
            nic: None,
            warnings: Vec::new(),
        }
    }
}

/// Writes the status of all mounts for people.
#[must_use]
pub(crate) fn text(mounts: &[MountStatus]) -> String {
    if mounts.is_empty() {
        return "nothing is mounted".to_owned();
    }
    mounts.iter().map(one).collect::<Vec<_>>().join("\n")
}

fn one(mount: &MountStatus) -> String {
    let head = format!(
        "{} on {} ({}, {}, {})\n",
        mount.source.display(),
        mount.mountpoint.display(),
        mount.mode,
        mount.state,
        mount
            .pid
            .map_or_else(|| "no process".to_owned(), |pid| format!("pid {pid}"))
    );
    let mut rows = Rows::default();
    match &mount.boot {
        Some(boot) => rows.boot(boot),
        None => rows.add("boot image", "none"),
    }
    if let Some(nic) = &mount.nic {
        rows.add("from service", nic.text());
    }
    if let Some(served) = &mount.served {
        match &mount.boot {
            Some(_) => rows.compared(served),
            None => rows.add("from source", Size(served.fallthrough_bytes).to_string()),
        }
        rows.served(served);
    }
    for warning in &mount.warnings {
        rows.add("warning", warning);
    }
    head + &table(&rows.0)
}

/// What is told of a mount, line by line.
#[derive(Default)]
struct Rows(Vec<Vec<String>>);

impl Rows {
    fn add(&mut self, name: &str, value: impl Into<String>) {
        self.0.push(vec![format!("  {name}"), value.into()]);
    }

    fn boot(&mut self, boot: &BootStatus) {
        let id: String = boot.content.chars().take(12).collect();
        let bytes = Size(boot.blocks * 4096);
        let files = count(boot.files, "file");
        self.add(
            "boot image",
            format!("{} ({id}), {bytes} of {files}", boot.image),
        );
        if boot.stale_files > 0 {
            let stale = Size(boot.stale_blocks * 4096);
            let files = boot.stale_files;
            self.add("stale", format!("{files} files, {stale}: record again"));
        }
        if boot.damaged > 0 {
            let reads = boot.damaged;
            self.add("damaged", format!("{reads} reads: see bootimg verify"));
        }
        match (&boot.tier, boot.copy_failures) {
            (None, _) => {}
            (Some(tier), 0) => self.add("tier", tier),
            (Some(tier), failures) => self.add(
                "tier",
                format!("{tier}, {failures} reads failed and went to the store: prewarm it again"),
            ),
        }
        let (injected, evicted) = (boot.injected_pages, boot.evicted_pages);
        self.add(
            "injected",
            format!(
                "{injected} pages, {evicted} evicted (prewarm {})",
                boot.prewarm
            ),
        );
        if let Some(wasted) = boot.wasted_bytes {
            let asked = format!("{} of {}", boot.sampled_asked, boot.sampled_blocks);
            let wasted = Size(wasted);
            self.add(
                "not needed",
                format!("about {wasted} ({asked} held-back blocks were)"),
            );
        }
    }

    /// What came from the boot image, and what did not.
    fn compared(&mut self, served: &ServedStatus) {
        let all = served.hit_bytes + served.fallthrough_bytes;
        let (hit, fell) = (Size(served.hit_bytes), Size(served.fallthrough_bytes));
        self.add("from boot image", format!("{hit} in {} hits", served.hits));
        let share = percent(served.fallthrough_bytes, all);
        self.add(
            "from source",
            format!("{fell} in {} misses ({share})", served.misses),
        );
        let (whole, tenth) = (
            served.divergence_permille / 10,
            served.divergence_permille % 10,
        );
        let first = match &served.first_miss {
            Some(miss) => format!(", first in {} at {}", miss.path, miss.offset),
            None => String::new(),
        };
        self.add("divergence", format!("{whole}.{tenth} %{first}"));
    }

    fn served(&mut self, served: &ServedStatus) {
        if served.diverted_files > 0 {
            self.add(
                "changed files",
                format!("{} while mounted", served.diverted_files),
            );
        }
        let (opens, failed) = (served.copy_opens, served.copies_failed);
        if opens + failed > 0 {
            self.add("whole copies", format!("{opens} opens, {failed} failed"));
        }
        let (late, hung) = (served.late_answers, served.hung_threads);
        if late > 0 {
            self.add(
                "late answers",
                format!("{late} of the source, {hung} threads wait"),
            );
        }
        let counts = served.requests.iter().filter(|(_, count)| **count > 0);
        let counts: Vec<_> = counts
            .map(|(kind, count)| format!("{kind} {count}"))
            .collect();
        self.add("requests", counts.join(", "));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(boot: Option<BootStatus>) -> MountStatus {
        MountStatus {
            id: "1ab2".to_owned(),
            mountpoint: "/mnt".into(),
            source: "/srv".into(),
            mode: "lower".to_owned(),
            state: "serving".to_owned(),
            pid: Some(7),
            boot,
            served: Some(ServedStatus {
                fallthrough_bytes: 8192,
                misses: 2,
                divergence_permille: 205,
                ..ServedStatus::default()
            }),
            nic: None,
            warnings: Vec::new(),
        }
    }

    #[test]
    fn people_read_of_hits_and_misses_where_there_is_a_boot_image() {
        let told = text(&[mount(Some(BootStatus::default()))]);
        assert!(told.starts_with("/srv on /mnt (lower, serving, pid 7)\n"));
        for expected in ["0 B in 0 hits", "8.0 KiB in 2 misses (100.0 %)", "20.5 %"] {
            assert!(told.contains(expected), "{expected}: {told}");
        }
        let told = text(&[mount(None)]);
        assert!(told.contains("8.0 KiB\n"), "{told}");
        for other in ["hits", "misses", "divergence"] {
            assert!(!told.contains(other), "{other}: {told}");
        }
    }
}
