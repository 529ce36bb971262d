//! Making a boot image of a plan, and keeping it: the end of `record` and of `from-trace`.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::SystemTime;

use anyhow::{Context as _, ensure};
use blocks::ReplayPlan;
use bootimg::{DroppedFile, FirstOf, SourceInfo, Variant, WriteRequest, write_image};
use serde::Serialize;
use tracer::Merged;

use crate::output::{count, percent};
use bootstore::store::{StoreSettings, add_written, watch};
use host::interrupt::Interrupt;
use host::progress;
use host::size::Size;
use mounting::source::{Source, timestamp};

/// Where to keep a boot image.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct KeepArgs {
    /// Name in the store [default: made of the source's path]
    #[arg(long)]
    name: Option<String>,
    /// Write the boot image to this file instead of the store
    #[arg(long, value_name = "FILE", conflicts_with = "name")]
    out: Option<PathBuf>,
}

impl KeepArgs {
    /// Returns whether it goes to the store.
    pub(super) const fn is_in_store(&self) -> bool {
        self.out.is_none()
    }

    /// Returns whether a place was chosen.
    pub(super) const fn are_given(&self) -> bool {
        self.name.is_some() || self.out.is_some()
    }
}

/// A recording, apart from what its runs did: what goes into the boot image's description.
#[derive(Clone, Debug)]
pub(super) struct Recording {
    pub(super) merged: Merged,
    pub(super) command: Vec<OsString>,
    pub(super) ready_ms: Vec<u64>,
    /// Files that changed while they were recorded, with what became of them.
    pub(super) left_out: BTreeSet<String>,
}

/// What was kept.
#[derive(Debug, Serialize)]
pub(super) struct Kept {
    /// Its name in the store, if it is there.
    name: Option<String>,
    /// Its file, if it is not in the store.
    file: Option<PathBuf>,
    id: String,
    /// Files with content in the boot image.
    files: u64,
    /// Blocks of 4 KiB.
    blocks: u64,
    /// Bytes of these blocks.
    bytes: u64,
    /// Bytes of all files of the source.
    source_bytes: u64,
    /// Uses of metadata to repeat before a boot.
    touches: u64,
    /// Files that changed while they were recorded, and are not in the boot image.
    dropped: BTreeSet<String>,
    similarity: Similarity,
}

/// How alike the runs were: 1 is the same, 0 is nothing in common.
#[derive(Debug, Serialize)]
struct Similarity {
    jaccard_min: f64,
    jaccard_mean: f64,
    order_mean: f64,
    core_share: f64,
}

pub(super) fn keep(
    args: &KeepArgs,
    store: &StoreSettings,
    source: &Source,
    recording: &Recording,
    interrupt: &Interrupt,
) -> anyhow::Result<Kept> {
    let plan = &recording.merged.plan;
    ensure!(
        !plan.extents.is_empty() || !plan.touches.is_empty(),
        "nothing was read from the source: does the command use it?"
    );
    let info = info(source, recording);
    let reader = source.reader();
    let request = WriteRequest {
        tree: &source.tree,
        info: &info,
        plan,
        blocks: &*reader,
        // Beside the store it is read once and gone; elsewhere it travels.
        variant: if args.out.is_some() {
            Variant::Packed
        } else {
            Variant::Mapped
        },
    };
    let bar = progress::bytes(
        "writing the boot image",
        plan.block_count().saturating_mul(4096),
    );
    let written = match &args.out {
        Some(path) => write_image(path, &request, &mut watch(&bar, interrupt))
            .map(|report| (None, report))
            .map_err(anyhow::Error::from),
        None => {
            let name = args.name.as_deref();
            add_written(&store.open()?, name, &request, &mut watch(&bar, interrupt))
                .map(|(added, report)| (Some(added.name), report))
        }
    };
    bar.finish_and_clear();
    interrupt.check()?;
    let (name, report) = written.context("keeping the boot image")?;
    let similarity = recording.merged.similarity;
    let mut dropped = recording.left_out.clone();
    dropped.extend(lines(&report.dropped, describe));
    Ok(Kept {
        name,
        file: args.out.clone(),
        id: report.id.to_string(),
        files: files_of(plan),
        blocks: report.blocks,
        bytes: report.blocks * 4096,
        source_bytes: info.source_bytes,
        touches: plan.touches.len() as u64,
        dropped,
        similarity: Similarity {
            jaccard_min: similarity.jaccard_min,
            jaccard_mean: similarity.jaccard_mean,
            order_mean: similarity.order_mean,
            core_share: similarity.core_share,
        },
    })
}

fn info(source: &Source, recording: &Recording) -> SourceInfo {
    let jaccard = recording.merged.similarity.jaccard_mean;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "0 to 1 million"
    )]
    let similarity_ppm = (jaccard.clamp(0.0, 1.0) * 1e6) as u32;
    SourceInfo {
        label: source.root.label().to_string_lossy().into_owned(),
        id: source.root.id(),
        recorded_at: timestamp(SystemTime::now()).secs,
        command: recording
            .command
            .iter()
            .map(|word| word.to_string_lossy().into_owned())
            .collect(),
        tool: concat!("yolofs ", env!("CARGO_PKG_VERSION")).to_owned(),
        ready_ms: recording.ready_ms.clone(),
        similarity_ppm: (recording.merged.plan.runs > 1).then_some(similarity_ppm),
        source_bytes: source.bytes(),
    }
}

fn files_of(plan: &ReplayPlan) -> u64 {
    let mut files: Vec<_> = plan.extents.iter().map(|extent| extent.file).collect();
    files.sort_unstable();
    files.dedup();
    files.len() as u64
}

/// Returns a line for each of what is kept of a list, and one for the rest.
pub(super) fn lines<T>(list: &FirstOf<T>, line: impl Fn(&T) -> String) -> Vec<String> {
    let more = (list.more() > 0).then(|| format!("and {} more", list.more()));
    list.iter().map(line).chain(more).collect()
}

pub(super) fn describe(file: &DroppedFile) -> String {
    format!("{}: {}", String::from_utf8_lossy(&file.path), file.reason)
}

impl Kept {
    /// Writes what was kept for people.
    pub(super) fn text(&self) -> String {
        let place = match (&self.name, &self.file) {
            (Some(name), _) => format!("boot image {name}"),
            (None, Some(file)) => file.display().to_string(),
            (None, None) => "boot image".to_owned(),
        };
        let id: String = self.id.chars().take(12).collect();
        let mut text = format!(
            "{place} ({id}): {}, {}, {}, {} of the source's {}, {} of metadata\n",
            count(self.files, "file"),
            count(self.blocks, "block"),
            Size(self.bytes),
            percent(self.bytes, self.source_bytes),
            Size(self.source_bytes),
            count(self.touches, "use")
        );
        for dropped in &self.dropped {
            text.push_str(&format!("left out: {dropped}\n"));
        }
        text
    }

    /// Writes how alike the runs were.
    pub(super) fn similarity_text(&self) -> String {
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        format!(
            "similarity of the runs: {} of the blocks of a pair in common (at least {}), \
             {} of them in the same order, {} read by all runs\n",
            percent(self.similarity.jaccard_mean),
            percent(self.similarity.jaccard_min),
            percent(self.similarity.order_mean),
            percent(self.similarity.core_share)
        )
    }
}
