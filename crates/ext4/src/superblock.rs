//! The superblock.

use crate::error::BLOCK_BYTES;
use crate::geometry::{GROUP_BLOCKS, GROUP_INODES, Geometry, INODE_BYTES};
use crate::inodes::LOST_AND_FOUND;

/// Where the superblock begins in the first block.
const AT: usize = 1024;
const MAGIC: u16 = 0xef53;
/// Attributes, indexes of directories, and copies of the superblock in two groups at most: here in none.
const COMPATIBLE: u32 = 0x8 | 0x20 | 0x200;
/// Names have kinds, extents, and parts of groups anywhere.
const INCOMPATIBLE: u32 = 0x2 | 0x40 | 0x200;
/// Sparse copies, long files, long counts of blocks, checksums of groups, many links of directories, and
/// larger inodes.
const READ_ONLY_COMPATIBLE: u32 = 0x1 | 0x2 | 0x8 | 0x10 | 0x20 | 0x40;
/// The logarithm of groups whose free inodes Linux counts together: what `mke2fs` takes.
const GROUPS_TOGETHER: u8 = 4;

pub(crate) struct Superblock {
    pub(crate) geometry: Geometry,
    pub(crate) uuid: [u8; 16],
    pub(crate) free_blocks: u32,
    pub(crate) free_inodes: u32,
}

impl Superblock {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut block = vec![0; BLOCK_BYTES];
        let fields = &mut block[AT..];
        let mut put = |at: usize, bytes: &[u8]| fields[at..at + bytes.len()].copy_from_slice(bytes);
        let words = [
            (0, self.geometry.inodes()),
            (4, self.geometry.blocks()),
            (12, self.free_blocks),
            (16, self.free_inodes),
            (24, 2), // the logarithm of a block's KiB
            (28, 2),
            (32, GROUP_BLOCKS),
            (36, GROUP_BLOCKS),
            (40, GROUP_INODES),
            (76, 1), // the version that has the fields from 84 on
            (84, LOST_AND_FOUND),
            (92, COMPATIBLE),
            (96, INCOMPATIBLE),
            (100, READ_ONLY_COMPATIBLE),
            (256, 0x4 | 0x8), // attributes of users and lists of access rights
            (352, 1),         // hashes of names take bytes as signed
        ];
        for (at, word) in words {
            put(at, &word.to_le_bytes());
        }
        // Of 256.
        let inode_bytes = u16::try_from(INODE_BYTES).unwrap_or(u16::MAX);
        let shorts = [
            (54, u16::MAX), // it is checked after no number of mounts
            (56, MAGIC),
            (58, 1), // it was unmounted
            (60, 1), // Linux goes on after errors
            (88, inode_bytes),
            (348, 32),
            (350, 32),
        ];
        for (at, short) in shorts {
            put(at, &short.to_le_bytes());
        }
        put(104, &self.uuid);
        // What hashes of names begin with may be anything.
        put(236, &self.uuid);
        put(252, &[1]); // hashes are half of an MD4
        put(372, &[GROUPS_TOGETHER]);
        block
    }
}
