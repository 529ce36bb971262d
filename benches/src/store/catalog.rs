//! A made-up catalog of disk images: families, and versions of each, which differ in some of what a boot reads.

use blocks::testing::Node;
use blocks::{
    BLOCK_SIZE, BlockIndex, BlockRange, BlockSource, Extent, FileId, FileKey, ReplayPlan,
    SourceError, SourceId, Tree,
};
use bootimg::SourceInfo;

use crate::report::count;
use crate::rounds::Shuffle;

/// Blocks that change together, as those of a file do: 64 KiB.
const GROUP: u64 = 16;
/// What a boot reads lies on so many times as much disk.
const SPREAD: u64 = 20;
/// The average of what a boot of a Linux image reads, in MiB: 900 images have 40 GB in the paper.
const AVERAGE_MIB: f64 = 45.0;

/// The catalog.
#[derive(Clone, Copy, Debug)]
pub struct Catalog {
    /// How many images.
    pub images: u32,
    /// How many are versions of the same.
    pub versions: u32,
    /// In how many of a hundred groups of blocks a version differs from the one before.
    pub changes: u64,
    /// The share of the paper's sizes.
    pub scale: f64,
}

/// An image of the catalog: what a boot reads of a disk.
#[derive(Debug)]
pub struct Made {
    /// What it is called.
    pub name: String,
    /// A directory with the disk.
    pub tree: Tree,
    /// What boots read.
    pub plan: ReplayPlan,
    /// Where it comes from.
    pub info: SourceInfo,
    family: u64,
    version: u64,
    changes: u64,
}

/// A number that looks like chance and is the same for the same numbers.
fn mixed(numbers: [u64; 4]) -> u64 {
    let seed = numbers.into_iter().fold(7, |seed: u64, number| {
        (seed ^ number)
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .rotate_left(29)
    });
    Shuffle::from_seed(seed).below(u64::MAX)
}

impl Catalog {
    /// Makes an image: the same number makes the same.
    #[must_use]
    pub fn make(&self, number: u32) -> Made {
        let family = u64::from(number / self.versions.max(1));
        let version = u64::from(number % self.versions.max(1));
        let groups = self.groups(family);
        let size = groups * SPREAD * GROUP * BLOCK_SIZE as u64;
        let node = Node::file(size);
        let root = Node::dir(&[("disk.raw", 1)]);
        let tree = blocks::testing::tree(&[root, node]);
        #[expect(clippy::expect_used, reason = "a root with one file is a tree")]
        let tree = tree.expect("a tree");
        let place = |group: u64| {
            // One in each stretch of the disk, and in an order of its own: the stride is a prime number that is larger
            // than their number.
            let group = (group * 7919) % groups;
            let within = mixed([family, group, 1, 1]) % (SPREAD - 1);
            BlockIndex((group * SPREAD + within) * GROUP)
        };
        let extents = (0..groups).map(|group| Extent {
            file: FileId(1),
            range: BlockRange::with_len(place(group), GROUP),
            bin: u32::try_from(group * 30 / groups).unwrap_or(0),
            seen: 1,
        });
        let mut extents: Vec<Extent> = extents.collect();
        extents.sort_by_key(|extent| (extent.bin, extent.range.start()));
        let label = format!("disk:/images/{family}/{version}.raw");
        Made {
            name: format!("image-{family:03}-{version:02}"),
            tree,
            plan: ReplayPlan {
                runs: 1,
                bin_ms: 100,
                extents,
                touches: Vec::new(),
            },
            info: SourceInfo {
                id: SourceId::of_label(label.as_bytes()),
                label,
                ..SourceInfo::default()
            },
            family,
            version,
            changes: self.changes,
        }
    }

    /// Returns how many groups of blocks a boot of a family reads: from half of the average to twice that.
    fn groups(&self, family: u64) -> u64 {
        let share = count(mixed([family, 0, 0, 0]) % 1000) / 1000.0;
        let mib = AVERAGE_MIB * self.scale * 2.0_f64.powf(share * 2.0 - 1.0);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a small positive number"
        )]
        let groups = (mib * 16.0) as u64;
        groups.max(2)
    }
}

impl Made {
    /// Returns the version in which a group of blocks was changed last.
    fn changed_in(&self, group: u64) -> u64 {
        let changed = |version: &u64| mixed([self.family, *version, group, 2]) % 100 < self.changes;
        (1..=self.version).rev().find(changed).unwrap_or(0)
    }
}

impl BlockSource for Made {
    fn read_at(&self, _: &FileKey, offset: u64, buf: &mut [u8]) -> Result<usize, SourceError> {
        let first = offset / BLOCK_SIZE as u64;
        for (block, bytes) in (first..).zip(buf.chunks_mut(BLOCK_SIZE)) {
            let version = self.changed_in(block / GROUP);
            let mut noise = mixed([self.family, version, block, 3]) | 1;
            for word in bytes.chunks_mut(8) {
                noise ^= noise << 13;
                noise ^= noise >> 7;
                noise ^= noise << 17;
                word.copy_from_slice(&noise.to_le_bytes()[..word.len()]);
            }
        }
        Ok(buf.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_differs_from_the_one_before_in_about_as_much_as_it_should() {
        let catalog = Catalog {
            images: 10,
            versions: 5,
            changes: 30,
            scale: 0.1,
        };
        let block = |made: &Made, extent: &Extent| {
            let mut bytes = vec![0; BLOCK_SIZE];
            let key = made.tree.key(extent.file).unwrap();
            let at = extent.range.start().byte_offset();
            made.read_at(&key, at, &mut bytes).unwrap();
            bytes
        };
        let (old, new, other) = (catalog.make(5), catalog.make(6), catalog.make(0));
        assert_eq!(old.plan, new.plan);
        let extents = &old.plan.extents;
        let changed = extents
            .iter()
            .filter(|extent| block(&old, extent) != block(&new, extent));
        let percent = changed.count() * 100 / extents.len();
        assert!((20..40).contains(&percent), "{percent}");
        assert_ne!(
            block(&old, &extents[0]),
            block(&other, &other.plan.extents[0])
        );
        assert_eq!(catalog.make(6).name, new.name);
    }
}
