//! EXTENTS: docs/bootimg-format.md, section 6.

use blocks::{BLOCK_SHIFT, BLOCK_SIZE, BlockIndex, BlockRange, Extent, FileId, NodeKind, Tree};

use crate::FormatError;
use crate::layout::{HASH, Input, is_zero};

const WHAT: &str = "table of extents";
const BYTES: usize = 64;
const FLAG_ZERO: u16 = 1;

/// The maximum number of blocks of an extent with data: 64 KiB, all of which have to be read and hashed to serve
/// one block of it. BLAKE3 takes about 15 us for that.
pub(crate) const EXTENT_BLOCKS_MAX: u64 = 16;
/// The same in bytes.
pub(crate) const EXTENT_BYTES_MAX: usize = 16 * BLOCK_SIZE;
/// Most blocks of a zero extent.
pub(crate) const ZERO_BLOCKS_MAX: u64 = 1 << 24;

/// What an extent's blocks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// All zero.
    Zero,
    /// A run of the data space.
    Data {
        /// Its first block in the data space.
        place: u64,
        /// The hash of its blocks.
        hash: [u8; HASH],
    },
}

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) extent: Extent,
    pub(crate) content: Content,
}

pub(crate) fn encode(rows: &[Row]) -> Vec<u8> {
    let mut out = Vec::with_capacity(rows.len() * BYTES);
    for Row { extent, content } in rows {
        let (place, flags, hash) = match content {
            Content::Zero => (0, FLAG_ZERO, [0; HASH]),
            Content::Data { place, hash } => (*place, 0, *hash),
        };
        let count = u32::try_from(extent.range.len()).unwrap_or(u32::MAX); // bounded by the writer
        out.extend_from_slice(&extent.file.0.to_le_bytes());
        out.extend_from_slice(&count.to_le_bytes());
        out.extend_from_slice(&extent.range.start().0.to_le_bytes());
        out.extend_from_slice(&place.to_le_bytes());
        out.extend_from_slice(&extent.bin.to_le_bytes());
        out.extend_from_slice(&extent.seen.to_le_bytes());
        out.extend_from_slice(&flags.to_le_bytes());
        out.extend_from_slice(&hash);
    }
    out
}

/// What the rows have to fit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds<'a> {
    pub(crate) tree: &'a Tree,
    pub(crate) runs: u16,
    pub(crate) data_blocks: u64,
}

pub(crate) fn parse(bytes: &[u8], bounds: &Bounds<'_>) -> Result<Vec<Row>, FormatError> {
    let mut input = Input::new(WHAT, bytes);
    let records = input.records::<BYTES>(bytes.len() / BYTES)?;
    input.end()?;
    let rows = records
        .iter()
        .map(|record| parse_row(record, bounds))
        .collect::<Result<Vec<_>, _>>()?;
    check_overlap(&rows)?;
    check_cover(&rows, bounds.data_blocks)?;
    Ok(rows)
}

fn parse_row(record: &[u8; BYTES], bounds: &Bounds<'_>) -> Result<Row, FormatError> {
    let mut input = Input::new(WHAT, record);
    let file = FileId(input.u32()?);
    let count = u64::from(input.u32()?);
    let first = input.u64()?;
    let place = input.u64()?;
    let bin = input.u32()?;
    let seen = input.u16()?;
    let flags = input.u16()?;
    let hash = input.array::<HASH>()?;
    let content = match flags {
        0 => Content::Data { place, hash },
        FLAG_ZERO if place == 0 && is_zero(&hash) => Content::Zero,
        _ => {
            return Err(input
                .broken("an extent has flags that it cannot have")
                .into());
        }
    };
    let most = match content {
        Content::Zero => ZERO_BLOCKS_MAX,
        Content::Data { .. } => EXTENT_BLOCKS_MAX,
    };
    if count == 0 || count > most || seen == 0 || seen > bounds.runs {
        return Err(input
            .broken("an extent has a number out of its range")
            .into());
    }
    let in_data = place
        .checked_add(count)
        .is_some_and(|end| end <= bounds.data_blocks);
    if content != Content::Zero && !in_data {
        return Err(input.broken("an extent lies outside of the data").into());
    }
    let size = match bounds.tree.inode(file) {
        Some(inode) if inode.attr.kind == NodeKind::File => inode.attr.size,
        _ => return Err(input.broken("an extent is of no regular file").into()),
    };
    let in_file = first
        .checked_add(count)
        .is_some_and(|end| end <= file_blocks(size));
    if !in_file {
        return Err(input.broken("an extent lies outside of its file").into());
    }
    let range = BlockRange::with_len(BlockIndex(first), count);
    Ok(Row {
        extent: Extent {
            file,
            range,
            bin,
            seen,
        },
        content,
    })
}

/// Returns how many blocks a file of `size` bytes has, the last of which may be cut.
pub(crate) const fn file_blocks(size: u64) -> u64 {
    (size >> BLOCK_SHIFT) + (size & ((1 << BLOCK_SHIFT) - 1) != 0) as u64
}

fn check_overlap(rows: &[Row]) -> Result<(), FormatError> {
    if any_overlap(rows.iter().map(|row| (row.extent.file, row.extent.range))) {
        return Err(FormatError::Rule {
            what: WHAT,
            rule: "two extents share a block",
        });
    }
    Ok(())
}

/// Returns whether two of these ranges share a block.
pub(crate) fn any_overlap(ranges: impl Iterator<Item = (FileId, BlockRange)>) -> bool {
    let mut ranges: Vec<_> = ranges.collect();
    ranges.sort_unstable();
    ranges
        .windows(2)
        .any(|pair| matches!(pair, [(f, a), (g, b)] if f == g && b.start() < a.end()))
}

fn check_cover(rows: &[Row], data_blocks: u64) -> Result<(), FormatError> {
    let mut covered = 0;
    for (place, index) in by_place(rows) {
        if place > covered {
            break;
        }
        covered = covered.max(place + rows[index].extent.range.len());
    }
    if covered == data_blocks {
        return Ok(());
    }
    Err(FormatError::Rule {
        what: WHAT,
        rule: "some data belongs to no extent",
    })
}

/// Returns the extents that have data, with their places, in the order of places.
pub(crate) fn by_place(rows: &[Row]) -> Vec<(u64, usize)> {
    let mut places: Vec<_> = rows
        .iter()
        .enumerate()
        .filter_map(|(index, row)| match row.content {
            Content::Zero => None,
            Content::Data { place, .. } => Some((place, index)),
        })
        .collect();
    places.sort_unstable();
    places
}
