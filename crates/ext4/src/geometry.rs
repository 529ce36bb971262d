//! Where everything is that has a fixed place.

use std::ops::Range;

use crate::error::{BLOCK_BYTES, Ext4Error};

/// Blocks of a group: one bitmap's bits.
pub(crate) const GROUP_BLOCKS: u32 = 32_768;
/// Inodes of a group: one for each 16 KiB, as `mke2fs` makes them.
pub(crate) const GROUP_INODES: u32 = 8192;
pub(crate) const INODE_BYTES: usize = 256;
/// Inodes of a block.
pub(crate) const BLOCK_INODES: u32 = 16;
/// Bytes of a group's descriptor.
pub(crate) const DESCRIPTOR_BYTES: usize = 32;
/// Descriptors of a block.
const BLOCK_DESCRIPTORS: u32 = 128;
/// Blocks of a group's inodes.
const TABLE_BLOCKS: u32 = GROUP_INODES / BLOCK_INODES;

/// How a device is divided. All that has a fixed place is at its beginning:
///
/// | blocks | what |
/// | --- | --- |
/// | 1 | superblock |
/// | 1 for 128 groups | descriptors of groups |
/// | 1 for each group | bitmaps of blocks |
/// | 1 for each group | bitmaps of inodes |
/// | 512 for each group | inodes |
///
/// A group has 32 768 blocks and 8192 inodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    blocks: u32,
    groups: u32,
}

impl Geometry {
    /// Divides a device of so many bytes; what is no whole block at its end is not used.
    ///
    /// # Errors
    /// If it is too large for block numbers of 32 bits, or has no room for data.
    pub fn new(bytes: u64) -> Result<Self, Ext4Error> {
        let blocks = bytes / BLOCK_BYTES as u64;
        let blocks = u32::try_from(blocks).map_err(|_| Ext4Error::TooLarge)?;
        let groups = blocks.div_ceil(GROUP_BLOCKS);
        let this = Self { blocks, groups };
        // 514 blocks of metadata to a group of 32 768 do not exceed 32 bits.
        match this.data_start() < blocks {
            true => Ok(this),
            false => Err(Ext4Error::TooSmall { bytes }),
        }
    }

    /// Returns the first block that data can have.
    #[must_use]
    pub const fn data_start(&self) -> u32 {
        self.table_start() + self.groups * TABLE_BLOCKS
    }

    pub(crate) const fn blocks(&self) -> u32 {
        self.blocks
    }

    pub(crate) const fn bytes(&self) -> u64 {
        self.blocks as u64 * BLOCK_BYTES as u64
    }

    pub(crate) const fn groups(&self) -> u32 {
        self.groups
    }

    pub(crate) fn inodes(&self) -> u32 {
        // The largest device has 2^30 of them.
        self.groups * GROUP_INODES
    }

    const fn descriptor_blocks(&self) -> u32 {
        self.groups.div_ceil(BLOCK_DESCRIPTORS)
    }

    /// Returns the block with the bitmap of a group's blocks.
    pub(crate) const fn block_bitmap(&self, group: u32) -> u32 {
        1 + self.descriptor_blocks() + group
    }

    /// Returns the block with the bitmap of a group's inodes.
    pub(crate) const fn inode_bitmap(&self, group: u32) -> u32 {
        self.block_bitmap(self.groups) + group
    }

    /// Returns the first block of a group's inodes.
    pub(crate) const fn table(&self, group: u32) -> u32 {
        self.table_start() + group * TABLE_BLOCKS
    }

    pub(crate) const fn table_start(&self) -> u32 {
        self.inode_bitmap(self.groups)
    }

    /// Returns the blocks of a group.
    pub(crate) fn group(&self, group: u32) -> Range<u32> {
        let start = group * GROUP_BLOCKS;
        start..self.blocks.min(start.saturating_add(GROUP_BLOCKS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_each_other_without_a_gap() {
        let geometry = Geometry::new(64 << 30).unwrap();
        assert_eq!((geometry.blocks(), geometry.groups()), (16 << 20, 512));
        assert_eq!(geometry.block_bitmap(0), 5);
        assert_eq!(geometry.inode_bitmap(0), 5 + 512);
        assert_eq!(geometry.table(0), 5 + 1024);
        assert_eq!(geometry.data_start(), 5 + 1024 + 512 * 512);
        assert_eq!(geometry.group(511).end, 16 << 20);
        let short = Geometry::new((128 << 20) + (10 << 12) + 5).unwrap();
        assert_eq!(short.group(1), 32_768..32_778);
    }

    #[test]
    fn devices_without_room_or_numbers_are_refused() {
        assert_eq!(
            Geometry::new(64 << 10),
            Err(Ext4Error::TooSmall { bytes: 64 << 10 })
        );
        assert_eq!(Geometry::new(16 << 40), Err(Ext4Error::TooLarge));
        Geometry::new((16 << 40) - 4096).unwrap();
        Geometry::new(3 << 20).unwrap();
    }
}
