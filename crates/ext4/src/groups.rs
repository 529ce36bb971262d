//! Groups: the bitmaps of their blocks and inodes, and their descriptors.

use crate::error::BLOCK_BYTES;
use crate::geometry::{DESCRIPTOR_BYTES, GROUP_BLOCKS, GROUP_INODES, Geometry};
use crate::run::Run;

/// Bits of a descriptor's flags: no inode is used and the bitmap is not written; the same of blocks; and
/// inodes that were not written are zero.
const NO_INODES: u16 = 1;
const NO_BLOCKS: u16 = 2;
const ZEROED: u16 = 4;

/// Which numbers are used.
#[derive(Debug)]
pub(crate) struct Bits(Vec<u8>);

impl Bits {
    /// Makes bits for so many groups of `of` numbers.
    pub(crate) fn new(groups: u32, of: u32) -> Self {
        Self(vec![0; groups as usize * (of / 8) as usize])
    }

    pub(crate) fn set(&mut self, range: std::ops::Range<u32>) {
        for at in range {
            self.0[(at / 8) as usize] |= 1 << (at % 8);
        }
    }

    /// Returns the bits of a group; `None` if there are none.
    fn group(&self, group: u32, of: u32) -> Option<&[u8]> {
        let bytes = (of / 8) as usize;
        let start = group as usize * bytes;
        self.0.get(start..start + bytes)
    }
}

fn count(bits: &[u8]) -> u32 {
    bits.iter().map(|byte| byte.count_ones()).sum()
}

/// What is used of a file system.
#[derive(Debug)]
pub(crate) struct Usage<'a> {
    pub(crate) geometry: Geometry,
    pub(crate) uuid: [u8; 16],
    /// The blocks of the first groups.
    pub(crate) blocks: Bits,
    /// The inodes of the first groups; the first one has the number 1.
    pub(crate) inodes: Bits,
    /// The numbers of directories' inodes.
    pub(crate) dirs: &'a [u32],
    /// The last inode that is used.
    pub(crate) last_inode: u32,
}

/// All groups, encoded.
#[derive(Debug)]
pub(crate) struct Groups {
    pub(crate) runs: Vec<Run>,
    pub(crate) free_blocks: u32,
    pub(crate) free_inodes: u32,
}

impl Usage<'_> {
    pub(crate) fn encode(&self) -> Groups {
        let geometry = self.geometry;
        let mut dirs = vec![0_u16; geometry.groups() as usize];
        for number in self.dirs {
            dirs[((number - 1) / GROUP_INODES) as usize] += 1;
        }
        let mut groups = Groups {
            runs: Vec::new(),
            free_blocks: 0,
            free_inodes: 0,
        };
        let mut descriptors = Vec::new();
        for (group, dirs) in (0..).zip(dirs) {
            let mut flags = ZEROED;
            let blocks = self.group_blocks(group);
            let room = geometry.group(group).len();
            let mut free_blocks = u32::try_from(room).unwrap_or(0);
            match blocks {
                None => flags |= NO_BLOCKS,
                Some(mut bits) => {
                    free_blocks -= count(&bits);
                    set_from(&mut bits, room);
                    groups.put(geometry.block_bitmap(group), bits);
                }
            }
            let mut free_inodes = GROUP_INODES;
            match self.inodes.group(group, GROUP_INODES) {
                None => flags |= NO_INODES,
                Some(bits) => {
                    free_inodes -= count(bits);
                    let mut bits = bits.to_vec();
                    bits.resize(BLOCK_BYTES, 0xff);
                    groups.put(geometry.inode_bitmap(group), bits);
                }
            }
            let behind = self.last_inode.saturating_sub(group * GROUP_INODES);
            let descriptor = Descriptor {
                group,
                free_blocks,
                free_inodes,
                dirs,
                flags,
                unused_inodes: GROUP_INODES - behind.min(GROUP_INODES),
            };
            descriptors.extend(descriptor.encode(geometry, self.uuid));
            groups.free_blocks += free_blocks;
            groups.free_inodes += free_inodes;
        }
        descriptors.resize(descriptors.len().next_multiple_of(BLOCK_BYTES), 0);
        groups.put(1, descriptors);
        groups
    }

    /// Returns the bits of a group's blocks, if they have to be written: the last group's always, since it may
    /// be shorter.
    fn group_blocks(&self, group: u32) -> Option<Vec<u8>> {
        let bits = self.blocks.group(group, GROUP_BLOCKS).map(<[u8]>::to_vec);
        match group + 1 == self.geometry.groups() {
            true => Some(bits.unwrap_or_else(|| vec![0; BLOCK_BYTES])),
            false => bits,
        }
    }
}

impl Groups {
    fn put(&mut self, block: u32, bytes: Vec<u8>) {
        self.runs.push(Run { block, bytes });
    }
}

/// Sets all bits from one on: what does not exist counts as used.
fn set_from(bits: &mut [u8], from: usize) {
    for at in from..bits.len() * 8 {
        bits[at / 8] |= 1 << (at % 8);
    }
}

struct Descriptor {
    group: u32,
    free_blocks: u32,
    free_inodes: u32,
    dirs: u16,
    flags: u16,
    unused_inodes: u32,
}

impl Descriptor {
    fn encode(&self, geometry: Geometry, uuid: [u8; 16]) -> [u8; DESCRIPTOR_BYTES] {
        let group = self.group;
        // A group has at most 32 768 of anything.
        let short = |number: u32| u16::try_from(number).unwrap_or(u16::MAX);
        let mut bytes = [0; DESCRIPTOR_BYTES];
        let places = [
            geometry.block_bitmap(group),
            geometry.inode_bitmap(group),
            geometry.table(group),
        ];
        for (at, place) in (0..).step_by(4).zip(places) {
            bytes[at..at + 4].copy_from_slice(&place.to_le_bytes());
        }
        let counts = [
            (12, short(self.free_blocks)),
            (14, short(self.free_inodes)),
            (16, self.dirs),
            (18, self.flags),
            (28, short(self.unused_inodes)),
        ];
        for (at, number) in counts {
            bytes[at..at + 2].copy_from_slice(&number.to_le_bytes());
        }
        let sum = crc16(crc16(crc16(!0, &uuid), &group.to_le_bytes()), &bytes[..30]);
        bytes[30..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }
}

/// The checksum of descriptors: CRC-16, polynomial 0x8005 in reverse.
fn crc16(start: u16, bytes: &[u8]) -> u16 {
    bytes.iter().fold(start, |sum, byte| {
        (0..8).fold(sum ^ u16::from(*byte), |sum, _| match sum & 1 {
            0 => sum >> 1,
            _ => sum >> 1 ^ 0xa001,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_the_catalogue() {
        // CRC-16/ARC and CRC-16/MODBUS of "123456789".
        assert_eq!(crc16(0, b"123456789"), 0xbb3d);
        assert_eq!(crc16(!0, b"123456789"), 0x4b37);
    }

    #[test]
    fn bits_behind_the_end_count_as_used() {
        let mut bits = vec![0; 4];
        set_from(&mut bits, 11);
        assert_eq!(bits, [0, 0b1111_1000, 0xff, 0xff]);
    }
}
