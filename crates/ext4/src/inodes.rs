//! Inodes: their numbers, and their bytes.

use blocks::{Attr, FileId, NodeKind, Timestamp};

use crate::error::Ext4Error;
use crate::extents::ROOT_BYTES;
use crate::geometry::INODE_BYTES;

pub(crate) const ROOT: u32 = 2;
pub(crate) const LOST_AND_FOUND: u32 = 11;
/// The second file of a tree has the next number; the first one is the root.
const BEFORE_FILES: u32 = 11;
/// Where the fields end.
const FIELDS_END: usize = 160;
/// Bytes of attributes that are in an inode.
pub(crate) const ATTRIBUTES_ROOM: usize = INODE_BYTES - FIELDS_END;
/// Bytes of the fields that the first version did not have.
const EXTRA_BYTES: u16 = 32;
/// The content is in extents.
const HAS_EXTENTS: u32 = 0x8_0000;
const LINKS_MAX: u32 = 65_000;
/// Sectors of a block, in which an inode counts its blocks.
const BLOCK_SECTORS: u64 = 8;
/// The seconds that 34 bits have: from 1901 to 2446.
const SECONDS: std::ops::RangeInclusive<i64> = -(1 << 31)..=(3 << 32) + (1 << 31) - 1;

/// Returns the number of a tree's file.
pub(crate) const fn number_of(file: FileId) -> u32 {
    match file.0 {
        0 => ROOT,
        at => BEFORE_FILES + at,
    }
}

/// Returns how many numbers there are up to the last of so many files.
pub(crate) const fn numbers(files: u64) -> u64 {
    // The root has one before.
    (BEFORE_FILES - 1) as u64 + files
}

/// What an inode has in place of the numbers of its blocks.
#[derive(Debug)]
pub(crate) enum Content {
    /// Extents.
    Extents(Vec<u8>),
    /// The target of a link, or nothing.
    Bytes(Vec<u8>),
    /// A device.
    Device(u32),
}

/// An inode that is to be encoded.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) attr: Attr,
    pub(crate) size: u64,
    pub(crate) content: Content,
    /// All blocks that belong to it.
    pub(crate) blocks: u64,
    /// Attributes that are in the inode.
    pub(crate) attributes: Vec<u8>,
    /// The block of attributes, or 0.
    pub(crate) attribute_block: u32,
}

impl Node {
    pub(crate) fn encode(&self) -> Result<Vec<u8>, Ext4Error> {
        let attr = &self.attr;
        let (flags, root) = match &self.content {
            Content::Extents(root) => (HAS_EXTENTS, root.clone()),
            Content::Bytes(bytes) => (0, bytes.clone()),
            Content::Device(number) => (0, device(*number)),
        };
        let mut bytes = vec![0; INODE_BYTES];
        let mut put = |at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
        put(0, &(attr.kind.mode() | attr.perm).to_le_bytes());
        let (uid, gid) = (attr.uid.to_le_bytes(), attr.gid.to_le_bytes());
        put(2, &uid[..2]);
        put(24, &gid[..2]);
        put(120, &uid[2..]);
        put(122, &gid[2..]);
        let size = self.size.to_le_bytes();
        put(4, &size[..4]);
        put(108, &size[4..]);
        // A layer has no other time than that of the content.
        let (seconds, extra) = time(attr.mtime);
        for (at, more) in [(8, 140), (12, 132), (16, 136), (144, 148)] {
            put(at, &seconds);
            put(more, &extra);
        }
        put(26, &links(attr)?.to_le_bytes());
        let sectors = (self.blocks * BLOCK_SECTORS).to_le_bytes();
        put(28, &sectors[..4]);
        put(116, &sectors[4..6]);
        put(32, &flags.to_le_bytes());
        put(40, &root[..root.len().min(ROOT_BYTES)]);
        put(104, &self.attribute_block.to_le_bytes());
        put(128, &EXTRA_BYTES.to_le_bytes());
        put(FIELDS_END, &self.attributes);
        Ok(bytes)
    }
}

/// Returns the number of names; 1 for a directory that has more directories than can be counted.
fn links(attr: &Attr) -> Result<u16, Ext4Error> {
    let links = attr.nlink;
    match u16::try_from(links) {
        Ok(short) if links <= LINKS_MAX => Ok(short),
        _ if attr.kind == NodeKind::Dir => Ok(1),
        _ => Err(Ext4Error::TooManyLinks { links }),
    }
}

/// A device's number: in the first word in its old form if it has one, otherwise in the second one.
fn device(number: u32) -> Vec<u8> {
    match u16::try_from(number) {
        Ok(old) => u32::from(old).to_le_bytes().to_vec(),
        Err(_) => [[0; 4], number.to_le_bytes()].concat(),
    }
}

/// Returns the two fields of a time: seconds, and nanoseconds with the two highest bits of the seconds below.
fn time(time: Timestamp) -> ([u8; 4], [u8; 4]) {
    let (seconds, nanos) = match SECONDS.contains(&time.secs) {
        true => (time.secs, time.nanos),
        false => (time.secs.clamp(*SECONDS.start(), *SECONDS.end()), 0),
    };
    let [a, b, c, d, ..] = seconds.to_le_bytes();
    let low = i32::from_le_bytes([a, b, c, d]);
    let epoch = u32::try_from((seconds - i64::from(low)) >> 32).unwrap_or(0);
    (low.to_le_bytes(), (nanos << 2 | epoch).to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_five_centuries_are_kept_and_others_moved_to_the_nearest() {
        let of = |secs, nanos| {
            let (low, extra) = time(Timestamp { secs, nanos });
            let extra = u32::from_le_bytes(extra);
            // As Linux decodes them.
            let seconds = i64::from(i32::from_le_bytes(low)) + (i64::from(extra & 3) << 32);
            (seconds, extra >> 2)
        };
        for secs in [0, -1, -(1 << 31), i64::from(i32::MAX), 1 << 31, 1 << 33] {
            assert_eq!(of(secs, 999_999_999), (secs, 999_999_999));
        }
        assert_eq!(of(i64::MAX, 5), (*SECONDS.end(), 0));
        assert_eq!(of(i64::MIN, 5), (*SECONDS.start(), 0));
    }
}
