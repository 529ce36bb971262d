//! Several recordings of one source become one image.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use blocks::{
    BlockCache, BlockIndex, BlockRange, BlockSource, CachedSource, Extent, FileId, FileKey, Lookup,
    ReplayPlan, SourceError, SourceErrorKind, Touch, Tree,
};

use crate::{AttachReport, Attached, Image, SourceInfo, WriteError};

/// What several images are together: a plan, and the content for it. Hand it to
/// [`write_image`](crate::write_image).
#[derive(Debug)]
pub struct Merged {
    tree: Arc<Tree>,
    info: SourceInfo,
    plan: ReplayPlan,
    content: CachedSource<AnyOf, Nowhere>,
}

/// Merges images of one source. The tree, and with it the valid versions, is that of the
/// newest; files of the others that do not match it are left out. Runs, and how many of them needed a
/// block, add up, and the earliest first use counts.
///
/// # Errors
/// If there is no image, or one is of another source than the rest.
pub fn merge(images: &[Arc<Image>]) -> Result<Merged, WriteError> {
    let mut images = images.to_vec();
    images.sort_by_key(|image| std::cmp::Reverse(image.info().source.recorded_at));
    let newest = images.first().ok_or(WriteError::Nothing)?;
    let source = newest.info().source.id;
    if images.iter().any(|image| image.info().source.id != source) {
        return Err(WriteError::OtherSource);
    }
    let tree = Arc::clone(newest.tree());
    let info = SourceInfo {
        ready_ms: images
            .iter()
            .flat_map(|image| image.info().source.ready_ms.iter().copied())
            .collect(),
        // What it was in each does not say what it is in all.
        similarity_ppm: match images.as_slice() {
            [only] => only.info().source.similarity_ppm,
            _ => None,
        },
        ..newest.info().source.clone()
    };
    let attached: Vec<_> = images
        .into_iter()
        .map(|image| image.attach(&tree))
        .collect();
    let plan = merge_plans(attached.iter().map(Attached::plan), Combine::Runs);
    Ok(Merged {
        tree,
        info,
        plan,
        content: CachedSource::new(AnyOf(attached), Nowhere),
    })
}

impl Merged {
    /// Returns the metadata of the source.
    #[must_use]
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Returns the description of the recordings.
    #[must_use]
    pub const fn info(&self) -> &SourceInfo {
        &self.info
    }

    /// Returns the merged plan.
    #[must_use]
    pub const fn plan(&self) -> &ReplayPlan {
        &self.plan
    }

    /// Returns what of each image, from the newest to the oldest, matched the newest.
    pub fn reports(&self) -> impl Iterator<Item = &AttachReport> {
        self.content.cache().0.iter().map(Attached::report)
    }
}

impl BlockSource for Merged {
    fn read_at(&self, file: &FileKey, offset: u64, buf: &mut [u8]) -> Result<usize, SourceError> {
        self.content.read_at(file, offset, buf)
    }
}

/// Has what any of the images has.
#[derive(Debug)]
struct AnyOf(Vec<Attached>);

impl BlockCache for AnyOf {
    fn get(&self, file: &FileKey, range: BlockRange, out: &mut [u8]) -> Lookup {
        let mut missing = range.len();
        for attached in &self.0 {
            match attached.get(file, range, out) {
                Lookup::Miss { blocks } => missing = missing.min(blocks),
                found => return found,
            }
        }
        Lookup::Miss { blocks: missing }
    }
}

/// Unites what different workloads need of one source, such as two programs that share a layer:
/// all of both. A block is as stable as it was in the workload that needs it most, and the
/// earliest first use counts. The plans are in the file ids of one tree.
#[must_use]
pub fn unite<'a>(plans: impl IntoIterator<Item = &'a ReplayPlan>) -> ReplayPlan {
    merge_plans(plans.into_iter(), Combine::Workloads)
}

/// How plans are merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Combine {
    /// Runs of one workload: how many needed a block adds up.
    Runs,
    /// Different workloads: the absence of a block in one means nothing for the other.
    Workloads,
}

impl Combine {
    /// Returns how many runs two plans are of together, or how many of these needed a block.
    fn runs(self, a: u16, b: u16) -> u16 {
        match self {
            Self::Runs => a.saturating_add(b),
            Self::Workloads => a.max(b),
        }
    }
}

/// Where the content is that no image has.
#[derive(Debug)]
struct Nowhere;

impl BlockSource for Nowhere {
    fn read_at(&self, file: &FileKey, _: u64, _: &mut [u8]) -> Result<usize, SourceError> {
        Err(SourceError::new(SourceErrorKind::Io, "reading from boot images").about(file.file))
    }
}

/// What is known of a block. The order of fields is that of replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Use {
    bin: u32,
    /// Which plan has it in that bin, and where in the plan it is.
    plan: usize,
    extent: usize,
    seen: u16,
}

fn merge_plans<'a>(plans: impl Iterator<Item = &'a ReplayPlan>, combine: Combine) -> ReplayPlan {
    let plans: Vec<_> = plans.collect();
    let bin_ms = plans.first().map_or(0, |newest| newest.bin_ms);
    let runs = plans.iter().map(|plan| plan.runs);
    let runs = runs.reduce(|a, b| combine.runs(a, b)).unwrap_or_default();
    let mut uses: BTreeMap<(FileId, u64), Use> = BTreeMap::new();
    let mut touched: HashSet<&Touch> = HashSet::new();
    let mut touches = Vec::new();
    for (plan_index, plan) in plans.iter().enumerate() {
        for (index, extent) in plan.extents.iter().enumerate() {
            let here = Use {
                bin: rescaled(extent.bin, plan.bin_ms, bin_ms),
                plan: plan_index,
                extent: index,
                seen: match combine {
                    Combine::Runs => extent.seen,
                    Combine::Workloads => of_runs(extent.seen, plan.runs, runs),
                },
            };
            for block in extent.range.iter() {
                uses.entry((extent.file, block.0))
                    .and_modify(|known| {
                        let seen = combine.runs(known.seen, here.seen);
                        *known = Use {
                            seen,
                            ..if here.bin < known.bin { here } else { *known }
                        };
                    })
                    .or_insert(here);
            }
        }
        let new = plan.touches.iter().filter(|touch| touched.insert(touch));
        touches.extend(new.cloned());
    }
    ReplayPlan {
        runs,
        bin_ms,
        extents: join_blocks(&uses),
        touches,
    }
}

/// Returns what `seen` of `from` runs are of `to` runs, rounded up: never none, and never more
/// than all.
fn of_runs(seen: u16, from: u16, to: u16) -> u16 {
    let scaled = (u32::from(seen) * u32::from(to)).div_ceil(u32::from(from.max(1)));
    u16::try_from(scaled).unwrap_or(to).clamp(1, to.max(1))
}

/// Joins neighbouring blocks that have everything in common, and puts the runs in order.
fn join_blocks(uses: &BTreeMap<(FileId, u64), Use>) -> Vec<Extent> {
    let mut runs: Vec<(Use, FileId, BlockRange)> = Vec::new();
    for ((file, block), used) in uses {
        let one = BlockRange::with_len(BlockIndex(*block), 1);
        match runs.last_mut() {
            Some((before, same, range))
                if before == used && same == file && range.end() == one.start() =>
            {
                *range = BlockRange::new(range.start(), one.end());
            }
            _ => runs.push((*used, *file, one)),
        }
    }
    runs.sort_unstable();
    runs.into_iter()
        .map(|(used, file, range)| Extent {
            file,
            range,
            bin: used.bin,
            seen: used.seen,
        })
        .collect()
}

/// Returns the bin of another length in which a bin begins.
fn rescaled(bin: u32, from_ms: u32, to_ms: u32) -> u32 {
    let at_ms = u64::from(bin) * u64::from(from_ms);
    u32::try_from(at_ms / u64::from(to_ms.max(1))).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn plans() -> impl Strategy<Value = Vec<ReplayPlan>> {
        let extent = (0u32..3, 0u64..20, 1u64..6, 0u32..9, 1u16..3);
        let plan = prop::collection::vec(extent, 0..12).prop_map(|extents| {
            let mut taken = HashSet::new();
            let mut kept = Vec::new();
            for (file, start, len, bin, seen) in extents {
                let extent = Extent {
                    file: FileId(file),
                    range: BlockRange::with_len(BlockIndex(start), len),
                    bin,
                    seen,
                };
                let blocks: Vec<_> = extent.range.iter().map(|b| (extent.file, b)).collect();
                if blocks.iter().all(|block| !taken.contains(block)) {
                    taken.extend(blocks);
                    kept.push(extent);
                }
            }
            ReplayPlan {
                runs: 2,
                bin_ms: 100,
                extents: kept,
                touches: Vec::new(),
            }
        });
        prop::collection::vec(plan, 1..4)
    }

    proptest! {
        #[test]
        fn every_block_is_there_once_with_the_sum_and_the_minimum(plans in plans()) {
            let merged = merge_plans(plans.iter(), Combine::Runs);
            prop_assert_eq!(usize::from(merged.runs), 2 * plans.len());
            let mut got = BTreeMap::new();
            for extent in &merged.extents {
                for block in extent.range.iter() {
                    let before = got.insert((extent.file, block.0), (extent.bin, extent.seen));
                    prop_assert_eq!(before, None);
                }
            }
            let mut want: BTreeMap<(FileId, u64), (u32, u16)> = BTreeMap::new();
            for extent in plans.iter().flat_map(|plan| &plan.extents) {
                for block in extent.range.iter() {
                    let entry = want.entry((extent.file, block.0)).or_insert((u32::MAX, 0));
                    *entry = (entry.0.min(extent.bin), entry.1 + extent.seen);
                }
            }
            prop_assert_eq!(got, want);
            let in_order = merged.extents.windows(2).all(|pair| pair[0].bin <= pair[1].bin);
            prop_assert!(in_order);
        }
    }

    proptest! {
        #[test]
        fn united_workloads_need_all_that_any_needs_as_stably(mut plans in plans(), runs in 1u16..5) {
            plans[0].runs = runs.max(2); // of another number of runs than the rest
            let united = unite(&plans);
            let most = plans.iter().map(|plan| plan.runs).max();
            prop_assert_eq!(Some(united.runs), most);
            let mut want: BTreeMap<(FileId, u64), u32> = BTreeMap::new();
            for plan in &plans {
                for extent in &plan.extents {
                    for block in extent.range.iter() {
                        let ppm = u32::from(extent.seen) * 1_000_000 / u32::from(plan.runs);
                        let entry = want.entry((extent.file, block.0)).or_default();
                        *entry = ppm.max(*entry);
                    }
                }
            }
            let mut got = BTreeMap::new();
            for extent in &united.extents {
                prop_assert!((1..=united.runs).contains(&extent.seen));
                for block in extent.range.iter() {
                    let ppm = u32::from(extent.seen) * 1_000_000 / u32::from(united.runs);
                    prop_assert_eq!(got.insert((extent.file, block.0), ppm), None);
                }
            }
            prop_assert_eq!(got.len(), want.len());
            for (block, want) in want {
                // Rounded up to a whole run, never down.
                prop_assert!(got.get(&block).is_some_and(|got| *got + 1 >= want));
            }
        }
    }

    #[test]
    fn a_workload_recorded_alone_keeps_its_stability_beside_another() {
        let plan = |runs, seen, block| ReplayPlan {
            runs,
            bin_ms: 100,
            extents: vec![Extent {
                file: FileId(1),
                range: BlockRange::with_len(BlockIndex(block), 1),
                bin: 0,
                seen,
            }],
            touches: Vec::new(),
        };
        let united = unite([&plan(3, 2, 0), &plan(1, 1, 9)]);
        let seen: Vec<_> = united.extents.iter().map(|extent| extent.seen).collect();
        assert_eq!((united.runs, seen), (3, vec![2, 3]));
    }

    #[test]
    fn bins_of_other_lengths_are_converted() {
        assert_eq!(rescaled(10, 50, 100), 5);
        assert_eq!(rescaled(10, 100, 50), 20);
        assert_eq!(rescaled(u32::MAX, u32::MAX, 1), u32::MAX);
        assert_eq!(rescaled(7, 100, 0), 700);
    }
}
