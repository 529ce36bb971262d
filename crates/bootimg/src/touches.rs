//! TOUCHES: docs/bootimg-format.md, section 7.

use blocks::{FileId, NodeKind, Touch, Tree};

use crate::FormatError;
use crate::header::count32;
use crate::layout::Input;

const WHAT: &str = "list of metadata uses";
const BYTES: usize = 16;
const LOOKUP: u32 = 1;
const LIST: u32 = 2;
const READ_LINK: u32 = 3;
/// Linux's NAME_MAX.
const NAME_MAX: usize = 255;

pub(crate) fn encode(touches: &[Touch]) -> Vec<u8> {
    let mut names: Vec<u8> = Vec::new();
    let mut records = Vec::with_capacity(touches.len() * BYTES);
    for touch in touches {
        let (kind, file, name): (_, _, &[u8]) = match touch {
            Touch::Lookup { dir, name } => (LOOKUP, dir, name),
            Touch::List { dir } => (LIST, dir, &[]),
            Touch::ReadLink { link } => (READ_LINK, link, &[]),
        };
        let start = if name.is_empty() { 0 } else { names.len() };
        for number in [kind, file.0, count32(start), count32(name.len())] {
            records.extend_from_slice(&number.to_le_bytes());
        }
        names.extend_from_slice(name);
    }
    let mut out = Vec::with_capacity(8 + records.len() + names.len());
    out.extend_from_slice(&count32(touches.len()).to_le_bytes());
    out.extend_from_slice(&count32(names.len()).to_le_bytes());
    out.extend_from_slice(&records);
    out.extend_from_slice(&names);
    out
}

pub(crate) fn parse(bytes: &[u8], tree: &Tree) -> Result<Vec<Touch>, FormatError> {
    let mut input = Input::new(WHAT, bytes);
    let count = input.count()?;
    let names = input.count()?;
    let records = input.records::<BYTES>(count)?;
    let names = input.take(names)?;
    input.end()?;
    records
        .iter()
        .map(|record| parse_touch(record, names, tree))
        .collect()
}

fn parse_touch(record: &[u8; BYTES], names: &[u8], tree: &Tree) -> Result<Touch, FormatError> {
    let mut input = Input::new(WHAT, record);
    let kind = input.u32()?;
    let file = FileId(input.u32()?);
    let start = input.count()?;
    let len = input.count()?;
    let name = start
        .checked_add(len)
        .and_then(|end| names.get(start..end))
        .ok_or(input.broken("a name lies outside of the names"))?;
    let touch = match kind {
        LOOKUP => Touch::Lookup {
            dir: file,
            name: name.to_vec(),
        },
        LIST => Touch::List { dir: file },
        READ_LINK => Touch::ReadLink { link: file },
        _ => return Err(input.broken("there is no such use").into()),
    };
    if kind != LOOKUP && (start, len) != (0, 0) {
        return Err(input.broken("a reserved field is in use").into());
    }
    if !fits(&touch, tree) {
        return Err(input.broken("it does not fit the tree").into());
    }
    Ok(touch)
}

/// Returns whether `touch` is one that can be made in `tree`.
pub(crate) fn fits(touch: &Touch, tree: &Tree) -> bool {
    let is = |file: FileId, kind| tree.inode(file).is_some_and(|i| i.attr.kind == kind);
    match touch {
        Touch::Lookup { dir, name } => is(*dir, NodeKind::Dir) && is_name(name),
        Touch::List { dir } => is(*dir, NodeKind::Dir),
        Touch::ReadLink { link } => is(*link, NodeKind::Symlink),
    }
}

fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && name.len() <= NAME_MAX && !name.iter().any(|b| matches!(b, 0 | b'/'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Sample;

    #[test]
    fn every_byte_counts() {
        let Sample { tree, plan, .. } = Sample::new();
        let bytes = encode(&plan.touches);
        assert_eq!(parse(&bytes, &tree).unwrap(), plan.touches);
        for at in 0..bytes.len() {
            assert!(parse(&bytes[..at], &tree).is_err(), "cut at {at}");
            for flip in [1, 0x80] {
                let mut changed = bytes.clone();
                changed[at] ^= flip;
                let read = parse(&changed, &tree);
                assert!(read.is_err() || read.unwrap() != plan.touches, "byte {at}");
            }
        }
    }
}
