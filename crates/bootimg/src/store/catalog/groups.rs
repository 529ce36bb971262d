//! Which blocks of the segments the same images have.

use std::collections::{BTreeMap, HashMap};

use blocks::ContentId;

use super::{Held, span};
use crate::layout::{PAGE_BYTES, len64};
use crate::store::SharedGroup;

/// Returns for each image which groups of blocks it shares with others. `lengths` are the blocks of
/// each segment.
///
/// All blocks of a segment begin in one group. Each image splits those groups that it has a part
/// of: so in the end two blocks are in the same group if the same images have them. Blocks of one group mostly lie
/// together, and are split together.
pub(super) fn groups(
    images: &[Held],
    lengths: &BTreeMap<ContentId, Option<u64>>,
) -> Vec<Vec<SharedGroup>> {
    let mut group_of: BTreeMap<ContentId, Vec<usize>> = BTreeMap::new();
    // By group: how many images have it, and which segment it is of.
    let mut users: Vec<(u32, ContentId)> = Vec::new();
    for (segment, blocks) in lengths {
        if let Some(len) = blocks.and_then(|blocks| usize::try_from(blocks).ok()) {
            group_of.insert(*segment, vec![users.len(); len]);
            users.push((0, *segment));
        }
    }
    for held in images {
        let mut split: HashMap<usize, usize> = HashMap::new();
        for run in &held.runs {
            let blocks = held.segments.get(run.segment);
            let blocks = blocks.and_then(|segment| group_of.get_mut(segment));
            let blocks = blocks.and_then(|blocks| blocks.get_mut(span(run)));
            let stretches = blocks.unwrap_or_default().chunk_by_mut(|a, b| a == b);
            for stretch in stretches {
                let old = stretch[0];
                let new = *split.entry(old).or_insert_with(|| {
                    let (images, segment) = users[old];
                    users.push((images + 1, segment));
                    users.len() - 1
                });
                stretch.fill(new);
            }
        }
    }
    let of = |held: &Held| {
        let mut blocks: BTreeMap<usize, u64> = BTreeMap::new();
        for run in &held.runs {
            let segment = held.segments.get(run.segment);
            let groups = segment.and_then(|segment| group_of.get(segment));
            let groups = groups.and_then(|all| all.get(span(run)));
            for stretch in groups.unwrap_or_default().chunk_by(|a, b| a == b) {
                *blocks.entry(stretch[0]).or_default() += len64(stretch.len());
            }
        }
        let shared = blocks.into_iter().filter(|(group, _)| users[*group].0 > 1);
        shared
            .map(|(number, blocks)| SharedGroup {
                segment: users[number].1,
                number: len64(number),
                bytes: blocks * PAGE_BYTES,
            })
            .collect()
    };
    images.iter().map(of).collect()
}
