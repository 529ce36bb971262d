//! Making a boot image of a plan, and keeping it: the end of `record` and of `from-trace`.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use blocks::ReplayPlan;
use bootimg::{DroppedFile, FirstOf, SourceInfo, Variant, WriteRequest, write_image};
use serde::Serialize;
use tracer::Merged;

use bootstore::store::{StoreSettings, add_written, watch};
use host::interrupt::Interrupt;
use host::progress;
use mounting::source::Source;

/// Where a boot image is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeepPlace {
    /// In the store, under this name or one that is made of the source's path.
    Store {
        /// The name.
        name: Option<String>,
    },
    /// In this file.
    File(PathBuf),
}

impl KeepPlace {
    fn file(&self) -> Option<&PathBuf> {
        match self {
            Self::Store { .. } => None,
            Self::File(path) => Some(path),
        }
    }
}

/// A recording, apart from what its runs did: what goes into the boot image's description.
#[derive(Clone, Debug)]
pub struct Recording {
    /// The merged recordings of all runs.
    pub merged: Merged,
    /// The command that was recorded.
    pub command: Vec<OsString>,
    /// Milliseconds to readiness, of each run.
    pub ready_ms: Vec<u64>,
    /// Files that changed while they were recorded, with what became of them.
    pub left_out: BTreeSet<String>,
}

/// The stored boot image.
#[derive(Debug, Serialize)]
pub struct Kept {
    /// Its name in the store, if it is there.
    pub name: Option<String>,
    /// Its file, if it is not in the store.
    pub file: Option<PathBuf>,
    /// Its ID.
    pub id: String,
    /// Files with content in the boot image.
    pub files: u64,
    /// Blocks of 4 KiB.
    pub blocks: u64,
    /// Bytes of these blocks.
    pub bytes: u64,
    /// Bytes of all files of the source.
    pub source_bytes: u64,
    /// Uses of metadata to repeat before a boot.
    pub touches: u64,
    /// Files that changed while they were recorded, and are not in the boot image.
    pub dropped: BTreeSet<String>,
    /// How alike the runs were.
    pub similarity: Similarity,
}

/// How alike the runs were: 1 is the same, 0 is nothing in common.
#[derive(Debug, Serialize)]
pub struct Similarity {
    /// The least share of blocks that two runs have in common.
    pub jaccard_min: f64,
    /// The mean share of blocks that two runs have in common.
    pub jaccard_mean: f64,
    /// The mean share of them that two runs read in the same order.
    pub order_mean: f64,
    /// The share of blocks that all runs read.
    pub core_share: f64,
}

/// Writes the boot image of a recording, and keeps it.
///
/// # Errors
/// If nothing was read, or the boot image cannot be written or kept.
pub fn keep(
    place: &KeepPlace,
    store: &StoreSettings,
    source: &Source,
    recording: &Recording,
    interrupt: &Interrupt,
) -> anyhow::Result<Kept> {
    let plan = &recording.merged.plan;
    ensure!(
        !plan.extents.is_empty() || !plan.touches.is_empty(),
        "the command read nothing from the source: is it the right source?"
    );
    let info = info(source, recording);
    let reader = source.reader();
    let request = WriteRequest {
        tree: &source.tree,
        info: &info,
        plan,
        blocks: &*reader,
        // Beside the store it is read once and gone; elsewhere it travels.
        variant: match place {
            KeepPlace::File(_) => Variant::Packed,
            KeepPlace::Store { .. } => Variant::Mapped,
        },
    };
    let bar = progress::bytes(
        "writing the boot image",
        plan.block_count().saturating_mul(4096),
    );
    let written = match place {
        KeepPlace::File(path) => write_image(path, &request, &mut watch(&bar, interrupt))
            .map(|report| (None, report))
            .map_err(anyhow::Error::from),
        KeepPlace::Store { name } => {
            let name = name.as_deref();
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
        file: place.file().cloned(),
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
        command: recording
            .command
            .iter()
            .map(|word| word.to_string_lossy().into_owned())
            .collect(),
        ready_ms: recording.ready_ms.clone(),
        similarity_ppm: (recording.merged.plan.runs > 1).then_some(similarity_ppm),
        ..source.info()
    }
}

fn files_of(plan: &ReplayPlan) -> u64 {
    let mut files: Vec<_> = plan.extents.iter().map(|extent| extent.file).collect();
    files.sort_unstable();
    files.dedup();
    files.len() as u64
}

/// Returns a line for each item of a truncated list, and one for the rest.
pub fn lines<T>(list: &FirstOf<T>, line: impl Fn(&T) -> String) -> Vec<String> {
    let more = (list.more() > 0).then(|| format!("and {} more", list.more()));
    list.iter().map(line).chain(more).collect()
}

/// Returns the line about a file that was left out.
pub fn describe(file: &DroppedFile) -> String {
    format!("{}: {}", String::from_utf8_lossy(&file.path), file.reason)
}
