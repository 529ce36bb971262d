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

/// Merges images of one source. The tree, and with it the versions that count, is that of the
/// newest; of the others what does not match it is left out. Runs and how many of them needed a
/// block add up, and the earliest first use counts.
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
    let plan = merge_plans(attached.iter().map(Attached::plan));
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

    /// Returns what to tell about the recordings.
    #[must_use]
    pub const fn info(&self) -> &SourceInfo {
        &self.info
    }

    /// Returns what boots touched.
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

fn merge_plans<'a>(plans: impl Iterator<Item = &'a ReplayPlan>) -> ReplayPlan {
    let mut merged = ReplayPlan::default();
    let mut uses: BTreeMap<(FileId, u64), Use> = BTreeMap::new();
    let mut touched: HashSet<&Touch> = HashSet::new();
    for (plan_index, plan) in plans.enumerate() {
        if merged.bin_ms == 0 {
            merged.bin_ms = plan.bin_ms; // the newest's
        }
        merged.runs = merged.runs.saturating_add(plan.runs);
        for (index, extent) in plan.extents.iter().enumerate() {
            let here = Use {
                bin: rescaled(extent.bin, plan.bin_ms, merged.bin_ms),
                plan: plan_index,
                extent: index,
                seen: extent.seen,
            };
            for block in extent.range.iter() {
                uses.entry((extent.file, block.0))
                    .and_modify(|known| {
                        let seen = known.seen.saturating_add(here.seen);
                        *known = Use {
                            seen,
                            ..if here.bin < known.bin { here } else { *known }
                        };
                    })
                    .or_insert(here);
            }
        }
        let new = plan.touches.iter().filter(|touch| touched.insert(touch));
        merged.touches.extend(new.cloned());
    }
    merged.extents = join_blocks(&uses);
    merged
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
            let merged = merge_plans(plans.iter());
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

    #[test]
    fn bins_of_other_lengths_are_converted() {
        assert_eq!(rescaled(10, 50, 100), 5);
        assert_eq!(rescaled(10, 100, 50), 20);
        assert_eq!(rescaled(u32::MAX, u32::MAX, 1), u32::MAX);
        assert_eq!(rescaled(7, 100, 0), 700);
    }
}
