//! Writing a boot image: what a plan names, read from a source in the version that a tree says.

use std::collections::BTreeMap;
use std::path::Path;

use blocks::{BlockSource, FileId, NodeKind, ReplayPlan, Tree};

use rawio::destination::destination;

use crate::durable::{Durability, Steps};
use crate::extents::{self, Row};
use crate::first_of::PATHS_BUDGET;
use crate::header::{SectionKind, Variant};
use crate::meta::{self, Meta, SourceInfo};
use crate::{FirstOf, ImageId, Watch, WriteError, touches};

pub(crate) mod assemble;
mod collect;
pub(crate) mod copied;
mod recheck;

use assemble::Assembler;
use collect::{Collected, Collector};

/// What to write.
#[derive(Clone, Copy)]
pub struct WriteRequest<'a> {
    /// The metadata of the source.
    pub tree: &'a Tree,
    /// What to tell about the recording.
    pub info: &'a SourceInfo,
    /// What boots touched; its files are those of `tree`.
    pub plan: &'a ReplayPlan,
    /// Where the content comes from.
    pub blocks: &'a dyn BlockSource,
    /// How to keep it: mapped or packed.
    pub variant: Variant,
}

impl std::fmt::Debug for WriteRequest<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WriteRequest")
            .field("info", self.info)
            .field("variant", &self.variant)
            .finish_non_exhaustive()
    }
}

/// Why an image has or serves nothing of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// It is no longer there.
    Gone,
    /// It is in another version.
    Changed,
    /// Its name is now that of another kind of file.
    OtherKind,
    /// It could not be read.
    Unreadable,
}

impl std::fmt::Display for DropReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Gone => "gone",
            Self::Changed => "changed",
            Self::OtherKind => "another kind of file",
            Self::Unreadable => "unreadable",
        })
    }
}

/// A file whose content is not in the image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DroppedFile {
    /// One of its paths, without a leading `/`.
    pub path: Vec<u8>,
    /// Why.
    pub reason: DropReason,
    /// How many blocks boots wanted of it.
    pub blocks: u64,
}

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteReport {
    /// The id of the image.
    pub id: ImageId,
    /// Blocks of content that are in the image.
    pub blocks: u64,
    /// Those of them that took space.
    pub data_blocks: u64,
    /// Files that changed or went away meanwhile; the image has nothing of them.
    pub dropped: FirstOf<DroppedFile>,
}

/// Writes a boot image to `path`, which it replaces if it is there.
///
/// The file appears under its name when it is whole and on the disk. A file of the source that
/// is not in the version that the tree says, before or while it is read, is left out and
/// reported.
///
/// # Errors
/// If there is no room, the file cannot be written, the plan does not fit the tree, or the watch
/// cancels. Nothing is left behind then.
pub fn write_image(
    path: impl AsRef<Path>,
    request: &WriteRequest<'_>,
    watch: Watch<'_>,
) -> Result<WriteReport, WriteError> {
    let path = destination(path.as_ref())
        .map_err(|error| WriteError::io(path.as_ref(), "finding its place", error))?;
    write_image_in(&path, request, &Steps::default(), watch)
}

/// Does what [`write_image`] does for a file that is read at once and then removed: it is not made durable.
///
/// # Errors
/// As [`write_image`].
pub fn write_passing_image(
    path: impl AsRef<Path>,
    request: &WriteRequest<'_>,
    watch: Watch<'_>,
) -> Result<WriteReport, WriteError> {
    let steps = Steps::default().with(Durability::Later);
    write_image_in(path.as_ref(), request, &steps, watch)
}

pub(crate) fn write_image_in(
    path: &Path,
    request: &WriteRequest<'_>,
    steps: &Steps,
    watch: Watch<'_>,
) -> Result<WriteReport, WriteError> {
    if request.variant == Variant::Thin {
        return Err(crate::FormatError::Rule {
            what: "header",
            rule: "only a store writes thin images",
        }
        .into());
    }
    check_plan(request)?;
    let mut dropped = recheck::stale_files(request);
    loop {
        let mut out = Assembler::create(path, None, request.variant, steps)?;
        let collector = Collector::new(request, &dropped, &mut out);
        // Every turn drops a file more, so there is an end to it.
        match collector.run(&mut *watch)? {
            Collected::Dropped(file, reason) => {
                dropped.insert(file, reason);
            }
            Collected::All(rows) => {
                let data_blocks = out.end_data()?;
                put_sections(&mut out, request, &rows)?;
                let id = out.finish(path)?;
                return Ok(WriteReport {
                    id,
                    blocks: rows.iter().map(|row| row.extent.range.len()).sum(),
                    data_blocks,
                    dropped: report(request, &dropped),
                });
            }
        }
    }
}

pub(crate) fn put_sections(
    out: &mut Assembler<'_>,
    request: &WriteRequest<'_>,
    rows: &[Row],
) -> Result<(), WriteError> {
    let meta = Meta {
        source: request.info.clone(),
        runs: request.plan.runs,
        bin_ms: request.plan.bin_ms,
    };
    let fitting = request.plan.touches.iter();
    let touched: Vec<_> = fitting
        // A program may ask for names that cannot be; there is nothing to prepare for them.
        .filter(|touch| touches::fits(touch, request.tree))
        .cloned()
        .collect();
    out.pack(SectionKind::Tree, request.tree.encode())?;
    out.section(SectionKind::Meta, &meta::encode(&meta)?)?;
    out.section(SectionKind::Extents, &extents::encode(rows))?;
    out.pack(SectionKind::Touches, touches::encode(&touched))
}

fn report(
    request: &WriteRequest<'_>,
    dropped: &BTreeMap<FileId, DropReason>,
) -> FirstOf<DroppedFile> {
    let mut blocks: BTreeMap<FileId, u64> = BTreeMap::new();
    for extent in &request.plan.extents {
        *blocks.entry(extent.file).or_default() += extent.range.len();
    }
    let mut paths = request.tree.paths_within(PATHS_BUDGET);
    let mut report = FirstOf::default();
    for (file, reason) in dropped {
        report.add(|| DroppedFile {
            path: paths.next(*file),
            reason: *reason,
            blocks: blocks.get(file).copied().unwrap_or_default(),
        });
    }
    report
}

fn check_plan(request: &WriteRequest<'_>) -> Result<(), WriteError> {
    let plan = request.plan;
    for (extent, wanted) in plan.extents.iter().enumerate() {
        let problem = match request.tree.inode(wanted.file) {
            Some(inode) if inode.attr.kind == NodeKind::File => {
                if wanted.range.is_empty() {
                    "it has no block"
                } else if wanted.seen == 0 || wanted.seen > plan.runs {
                    "it was seen by more runs than there are, or by none"
                } else {
                    continue;
                }
            }
            _ => "it is of no regular file",
        };
        return Err(WriteError::Plan { extent, problem });
    }
    let mut ranges: Vec<_> = plan
        .extents
        .iter()
        .enumerate()
        .map(|(index, extent)| (extent.file, extent.range, index))
        .collect();
    ranges.sort_unstable();
    for pair in ranges.windows(2) {
        if let [(file, a, _), (other, b, extent)] = pair
            && file == other
            && b.start() < a.end()
        {
            return Err(WriteError::Plan {
                extent: *extent,
                problem: "it shares a block with another",
            });
        }
    }
    Ok(())
}
