//! Links of programs: which files of a source are read together with which others
//! (`docs/nicfetch-protocol.md`, "Links of programs").
//!
//! ```
//! use std::collections::BTreeMap;
//! use blocks::FileId;
//! use chunks::links::Links;
//!
//! // A program is linked with two libraries.
//! let found = BTreeMap::from([(FileId(7), vec![FileId(9), FileId(3)])]);
//! let links = Links::new(&found);
//! assert_eq!(links.of(FileId(7)).collect::<Vec<_>>(), [FileId(9), FileId(3)]);
//! assert_eq!(links.of(FileId(8)).count(), 0);
//! ```

use std::collections::BTreeMap;

use blocks::{Broken, ContentId, FileId, Input, NodeKind, Tree};

use crate::Codec;
use crate::index::{Index, pack, unpack};

/// The longest document.
pub const LINKS_BYTES_MAX: u64 = 1 << 20;
/// The most links of all files of a source.
pub const LINKS_MAX: usize = 1 << 20;
/// The most links of one file.
pub const LINKS_OF_ONE_MAX: usize = 255;

/// The longest table, before compression.
const TABLE_MAX: usize = 4 << 20;
const WHAT: &str = "table of links";
const MAGIC: [u8; 8] = *b"\x89NFLNK\r\n";
const VERSION: u32 = 1;
const HEAD_BYTES: usize = 64;
const SEAL_BYTES: usize = 32;

/// Why links cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LinksError {
    /// It is something else.
    #[error("not a table of links")]
    Magic,
    /// It was written by another release.
    #[error("version {found} of the table of links is not known")]
    Version {
        /// The version in its head.
        found: u32,
    },
    /// It is larger than allowed.
    #[error("a table of links has {bytes} bytes, at most {limit} are allowed")]
    TooLarge {
        /// How large it is.
        bytes: u64,
        /// How large it may be.
        limit: u64,
    },
    /// It is damaged.
    #[error("the table of links is damaged: its hash differs")]
    Hash,
    /// A part breaks a rule.
    #[error(transparent)]
    Broken(#[from] Broken),
}

/// The links of the files of one source. Immutable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Links {
    /// The files with links, ascending, each with the end of its links in `targets`.
    files: Vec<(FileId, u32)>,
    targets: Vec<FileId>,
}

impl Links {
    /// Returns links. Those of a file to itself and those beyond the limits are left out.
    #[must_use]
    pub fn new(found: &BTreeMap<FileId, Vec<FileId>>) -> Self {
        let mut links = Self::default();
        for (file, targets) in found {
            let of = targets.iter().copied().filter(|target| target != file);
            let of: Vec<_> = of.take(LINKS_OF_ONE_MAX).collect();
            if links.targets.len() + of.len() > LINKS_MAX {
                break;
            }
            if !of.is_empty() {
                links.targets.extend(of);
                links.end(*file);
            }
        }
        links
    }

    /// Ends the links of a file.
    fn end(&mut self, file: FileId) {
        // It fits: there is a limit.
        let end = u32::try_from(self.targets.len()).unwrap_or(u32::MAX);
        self.files.push((file, end));
    }

    /// Returns whether no file has any.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Returns how many there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.targets.len()
    }

    /// Returns the files that a file is linked with, in the order in which they are read.
    pub fn of(&self, file: FileId) -> impl Iterator<Item = FileId> {
        let found = self.files.binary_search_by_key(&file, |(file, _)| *file);
        let of = found.map_or(&[][..], |at| self.targets_at(at));
        of.iter().copied()
    }

    fn targets_at(&self, at: usize) -> &[FileId] {
        let start = at.checked_sub(1).map_or(0, |before| self.files[before].1);
        &self.targets[start as usize..self.files[at].1 as usize]
    }

    /// Returns them as bytes, for the index with this id. What the limits of a document leave no room for is left out.
    #[must_use]
    pub fn encode(&self, index: &ContentId) -> Vec<u8> {
        let mut count = self.files.len();
        loop {
            let bytes = self.encode_first(count, index);
            if count == 0 || bytes.is_some() {
                return bytes.unwrap_or_default();
            }
            count /= 2;
        }
    }

    /// Returns the links of the first files as bytes, if they are not too long.
    fn encode_first(&self, files: usize, index: &ContentId) -> Option<Vec<u8>> {
        let mut table = Vec::new();
        let mut before = 0;
        for (at, (file, _)) in self.files[..files].iter().enumerate() {
            put_number(&mut table, u64::from(file.0 - before));
            before = file.0;
            let targets = self.targets_at(at);
            put_number(&mut table, targets.len() as u64);
            let mut last = file.0;
            for target in targets {
                let distance = i64::from(target.0) - i64::from(last);
                put_number(&mut table, folded(distance));
                last = target.0;
            }
        }
        if table.len() > TABLE_MAX {
            return None;
        }
        let links = files.checked_sub(1).map_or(0, |last| self.files[last].1);
        let (codec, packed) = pack(&table);
        let mut out = Vec::with_capacity(HEAD_BYTES + packed.len() + SEAL_BYTES);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&index.0);
        for number in [files, links as usize, table.len()] {
            let number = u32::try_from(number).unwrap_or(u32::MAX);
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&[codec as u8, 0, 0, 0]);
        out.extend_from_slice(&packed);
        let seal = ContentId::of(&out);
        out.extend_from_slice(&seal.0);
        (out.len() as u64 <= LINKS_BYTES_MAX).then_some(out)
    }

    /// Reads the links of an index.
    ///
    /// # Errors
    /// If they are damaged, break a rule, or are of another index. Hostile bytes cost time and memory within the limits
    /// of a document.
    pub fn decode(bytes: &[u8], index: &Index) -> Result<Self, LinksError> {
        if bytes.len() as u64 > LINKS_BYTES_MAX {
            let (bytes, limit) = (bytes.len() as u64, LINKS_BYTES_MAX);
            return Err(LinksError::TooLarge { bytes, limit });
        }
        let mut input = Input::new(WHAT, bytes);
        if input.array()? != MAGIC {
            return Err(LinksError::Magic);
        }
        let found = input.u32()?;
        if found != VERSION || input.u32()? != 0 {
            return Err(LinksError::Version { found });
        }
        let (body, seal) = bytes
            .split_last_chunk::<SEAL_BYTES>()
            .ok_or(input.broken("it ends early"))?;
        if ContentId::of(body).0 != *seal {
            return Err(LinksError::Hash);
        }
        if input.array()? != index.id().0 {
            return Err(input.broken("it is of another index").into());
        }
        let (files, links, len) = (input.count()?, input.count()?, input.count()?);
        let codec = Codec::from_number(input.u8()?);
        let codec = codec.ok_or(input.broken("its codec is not known"))?;
        if input.array()? != [0; 3] {
            return Err(input.broken("a reserved field is in use").into());
        }
        if len > TABLE_MAX {
            let (bytes, limit) = (len as u64, TABLE_MAX as u64);
            return Err(LinksError::TooLarge { bytes, limit });
        }
        // Each file takes three bytes, and each link one: more are not in the table.
        if links > LINKS_MAX || files > links {
            return Err(input.broken("it has too many links").into());
        }
        let packed = body.get(HEAD_BYTES..).unwrap_or_default();
        let table = unpack(codec, packed, len as u64);
        let table = table.map_err(|_| input.broken("its table does not decompress"))?;
        take_table(&table, files, links, index.tree())
    }
}

/// Reads a table of so many files and links.
fn take_table(table: &[u8], files: usize, links: usize, tree: &Tree) -> Result<Links, LinksError> {
    let mut input = Input::new(WHAT, table);
    let mut taken = Links::default();
    let mut before = None;
    for _ in 0..files {
        let step = take_number(&mut input)?;
        if step == 0 && before.is_some() {
            return Err(input.broken("a file has two records").into());
        }
        let file = u64::from(before.unwrap_or(0)) + step;
        let file = regular(&input, tree, i64::try_from(file).unwrap_or(i64::MAX))?;
        before = Some(file.0);
        let count = take_number(&mut input)?;
        if count == 0 || count > LINKS_OF_ONE_MAX as u64 {
            return Err(input.broken("a file has 1 to 255 links").into());
        }
        let mut last = i64::from(file.0);
        for _ in 0..count {
            let distance = unfolded(take_number(&mut input)?);
            let target = regular(&input, tree, last.saturating_add(distance))?;
            if target == file {
                return Err(input.broken("a file is linked with itself").into());
            }
            if taken.targets.len() >= links {
                return Err(input.broken("it has more links than its head says").into());
            }
            last = i64::from(target.0);
            taken.targets.push(target);
        }
        taken.end(file);
    }
    input.end()?;
    if taken.targets.len() != links {
        return Err(input.broken("it has fewer links than its head says").into());
    }
    Ok(taken)
}

/// Returns the regular file with a number.
fn regular(input: &Input<'_>, tree: &Tree, number: i64) -> Result<FileId, Broken> {
    let file = u32::try_from(number).ok().map(FileId);
    let is_regular = |file: &FileId| {
        let inode = tree.inode(*file);
        inode.is_some_and(|inode| inode.attr.kind == NodeKind::File)
    };
    file.filter(is_regular)
        .ok_or(input.broken("a link is of no regular file"))
}

/// Returns a number of either sign as one without: near zero stays small.
const fn folded(distance: i64) -> u64 {
    ((distance << 1) ^ (distance >> 63)).cast_unsigned()
}

const fn unfolded(number: u64) -> i64 {
    (number >> 1).cast_signed() ^ -((number & 1).cast_signed())
}

/// Appends a number, seven bits in each byte, the lowest first; the last byte has no high bit.
fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number > 0x7f {
        out.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    out.push(number.to_le_bytes()[0]);
}

/// Takes a number of at most 35 bits.
fn take_number(input: &mut Input<'_>) -> Result<u64, Broken> {
    let mut number = 0;
    for shift in (0..35).step_by(7) {
        let byte = input.u8()?;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            if byte == 0 && shift > 0 {
                return Err(input.broken("a number is longer than it need be"));
            }
            return Ok(number);
        }
    }
    Err(input.broken("a number is too large"))
}

#[cfg(test)]
mod tests;
