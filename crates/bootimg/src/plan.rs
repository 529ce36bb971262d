//! A plan without content: docs/bootimg-format.md, "Plan document".
//!
//! A client with the chunks of a source, but no boot image of it, replays a boot with this.

use blocks::{
    BlockIndex, BlockRange, ContentId, Extent, FileId, NodeKind, ReplayPlan, Touch, Tree,
};

use crate::FormatError;
use crate::extents::{any_overlap, file_blocks};
use crate::header::count32;
use crate::layout::{HASH, Input, hash, len64};
use crate::touches::fits;

/// The longest plan.
pub const PLAN_MAX: u64 = 4 << 20;
/// The most extents of a plan, and the most uses of metadata.
pub const PLAN_ENTRIES_MAX: usize = 1 << 20;

const WHAT: &str = "plan";
const MAGIC: [u8; 8] = *b"\x89NFPLN\r\n";
const VERSION: u32 = 1;
const HEAD_BYTES: usize = 56;
const LOOKUP: u8 = 1;
const LIST: u8 = 2;
const READ_LINK: u8 = 3;

/// Returns a plan as bytes. Its files are those of the tree of the index `index`. A plan longer than
/// [`PLAN_MAX`] is truncated: the end of the boot is left out.
#[must_use]
pub fn encode_plan(index: &ContentId, plan: &ReplayPlan) -> Vec<u8> {
    let mut out = vec![0; HEAD_BYTES];
    let extents = put_some(&mut out, &plan.extents, put_extent);
    let touches = put_some(&mut out, &plan.touches, put_touch);
    out[..8].copy_from_slice(&MAGIC);
    out[8..12].copy_from_slice(&VERSION.to_le_bytes());
    out[16..20].copy_from_slice(&count32(extents).to_le_bytes());
    out[20..24].copy_from_slice(&count32(touches).to_le_bytes());
    out[24..HEAD_BYTES].copy_from_slice(&index.0);
    let seal = hash(&out);
    out.extend_from_slice(&seal);
    out
}

/// Returns the plan that [`encode_plan`] was given, for the index `index` with the tree `tree`. It
/// does not contain when and in how many runs blocks were needed: all are of one run and one moment.
///
/// # Errors
/// If it is damaged, breaks a rule, or is of another index. Hostile bytes cost time and memory in
/// proportion to their number.
pub fn decode_plan(
    bytes: &[u8],
    index: &ContentId,
    tree: &Tree,
) -> Result<ReplayPlan, FormatError> {
    if len64(bytes.len()) > PLAN_MAX {
        return Err(FormatError::TooLarge {
            what: WHAT,
            bytes: len64(bytes.len()),
            limit: PLAN_MAX,
        });
    }
    let mut input = Input::new(WHAT, bytes);
    if input.array()? != MAGIC {
        return Err(FormatError::Magic);
    }
    let found = input.u32()?;
    if found != VERSION {
        return Err(FormatError::Version { found });
    }
    let features = input.u32()?;
    if features != 0 {
        let bits = u64::from(features);
        return Err(FormatError::Incompatible { bits });
    }
    let (body, seal) = bytes
        .split_last_chunk::<HASH>()
        .ok_or(input.broken("it ends early"))?;
    if hash(body) != *seal {
        return Err(FormatError::Hash { what: WHAT });
    }
    let (extents, touches) = (input.count()?, input.count()?);
    if extents > PLAN_ENTRIES_MAX || touches > PLAN_ENTRIES_MAX {
        return Err(input.broken("it has too many entries").into());
    }
    if input.array()? != index.0 {
        return Err(input.broken("it is of another index").into());
    }
    let extents = take_some(&mut input, extents, |input| take_extent(input, tree))?;
    let touches = take_some(&mut input, touches, |input| take_touch(input, tree))?;
    input.take(HASH)?;
    input.end()?;
    let ranges = extents.iter().map(|extent| (extent.file, extent.range));
    if any_overlap(ranges) {
        return Err(input.broken("two extents share a block").into());
    }
    Ok(ReplayPlan {
        runs: 1,
        bin_ms: 1,
        extents,
        touches,
    })
}

/// Appends as many entries as there is room for, and returns how many these are.
fn put_some<T>(out: &mut Vec<u8>, entries: &[T], put: impl Fn(&mut Vec<u8>, &T)) -> usize {
    for (number, entry) in entries.iter().take(PLAN_ENTRIES_MAX).enumerate() {
        let before = out.len();
        put(out, entry);
        if len64(out.len() + HASH) > PLAN_MAX {
            out.truncate(before);
            return number;
        }
    }
    entries.len().min(PLAN_ENTRIES_MAX)
}

/// Takes `count` entries. Memory grows with what is there.
fn take_some<T>(
    input: &mut Input<'_>,
    count: usize,
    mut take: impl FnMut(&mut Input<'_>) -> Result<T, FormatError>,
) -> Result<Vec<T>, FormatError> {
    let mut entries = Vec::new();
    for _ in 0..count {
        entries.push(take(input)?);
    }
    Ok(entries)
}

fn put_extent(out: &mut Vec<u8>, extent: &Extent) {
    put_number(out, u64::from(extent.file.0));
    put_number(out, extent.range.start().0);
    put_number(out, extent.range.len());
}

fn take_extent(input: &mut Input<'_>, tree: &Tree) -> Result<Extent, FormatError> {
    let file = take_file(input)?;
    let (first, count) = (take_number(input)?, take_number(input)?);
    let blocks = match tree.inode(file) {
        Some(inode) if inode.attr.kind == NodeKind::File => file_blocks(inode.attr.size),
        _ => return Err(input.broken("an extent is of no regular file").into()),
    };
    let end = first.checked_add(count).filter(|end| *end <= blocks);
    if count == 0 || end.is_none() {
        return Err(input.broken("an extent lies outside of its file").into());
    }
    Ok(Extent {
        file,
        range: BlockRange::with_len(BlockIndex(first), count),
        bin: 0,
        seen: 1,
    })
}

fn put_touch(out: &mut Vec<u8>, touch: &Touch) {
    let (kind, file) = match touch {
        Touch::Lookup { dir, .. } => (LOOKUP, dir),
        Touch::List { dir } => (LIST, dir),
        Touch::ReadLink { link } => (READ_LINK, link),
    };
    out.push(kind);
    put_number(out, u64::from(file.0));
    if let Touch::Lookup { name, .. } = touch {
        put_number(out, len64(name.len()));
        out.extend_from_slice(name);
    }
}

fn take_touch(input: &mut Input<'_>, tree: &Tree) -> Result<Touch, FormatError> {
    let (kind, file) = (input.u8()?, take_file(input)?);
    let touch = match kind {
        LOOKUP => {
            let len = take_number(input)?;
            let len = usize::try_from(len).unwrap_or(usize::MAX);
            let name = input.take(len)?.to_vec();
            Touch::Lookup { dir: file, name }
        }
        LIST => Touch::List { dir: file },
        READ_LINK => Touch::ReadLink { link: file },
        _ => return Err(input.broken("there is no such use").into()),
    };
    if !fits(&touch, tree) {
        return Err(input.broken("a use does not fit the tree").into());
    }
    Ok(touch)
}

/// Appends a number, seven bits in each byte, the lowest first; the last byte has no high bit.
fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number > 0x7f {
        out.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    out.push(number.to_le_bytes()[0]);
}

fn take_number(input: &mut Input<'_>) -> Result<u64, FormatError> {
    let mut number = 0;
    for shift in (0..63).step_by(7) {
        let byte = input.u8()?;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            if byte == 0 && shift > 0 {
                return Err(input.broken("a number is longer than it need be").into());
            }
            return Ok(number);
        }
    }
    Err(input.broken("a number is too large").into())
}

fn take_file(input: &mut Input<'_>) -> Result<FileId, FormatError> {
    let number = take_number(input)?;
    let file = u32::try_from(number).map_err(|_| input.broken("there is no such file"))?;
    Ok(FileId(file))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::sample::Sample;

    const INDEX: ContentId = ContentId([7; 32]);

    /// The sample's plan without what lies outside of files, and what a plan document does not say.
    fn sample() -> (Tree, ReplayPlan) {
        let Sample { tree, mut plan, .. } = Sample::new();
        plan.runs = 1;
        plan.bin_ms = 1;
        for extent in &mut plan.extents {
            (extent.bin, extent.seen) = (0, 1);
        }
        plan.extents.retain(|extent| {
            let inode = tree.inode(extent.file);
            inode.is_some_and(|inode| extent.range.end().0 <= file_blocks(inode.attr.size))
        });
        (tree, plan)
    }

    /// Makes the seal of changed bytes right, as a forger would.
    fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
        let end = bytes.len() - HASH;
        let seal = hash(&bytes[..end]);
        bytes[end..].copy_from_slice(&seal);
        bytes
    }

    #[test]
    fn what_is_written_is_read() {
        let (tree, plan) = sample();
        assert!(plan.extents.len() > 2 && plan.touches.len() > 2);
        let bytes = encode_plan(&INDEX, &plan);
        assert_eq!(decode_plan(&bytes, &INDEX, &tree), Ok(plan));
        let nothing = encode_plan(&INDEX, &ReplayPlan::default());
        assert_eq!(nothing.len(), HEAD_BYTES + HASH);
        assert!(decode_plan(&nothing, &INDEX, &tree).is_ok());
        assert!(decode_plan(&nothing, &ContentId([8; 32]), &tree).is_err());
    }

    #[test]
    fn every_byte_counts() {
        let (tree, plan) = sample();
        let bytes = encode_plan(&INDEX, &plan);
        for at in 0..bytes.len() {
            assert!(
                decode_plan(&bytes[..at], &INDEX, &tree).is_err(),
                "cut at {at}"
            );
            for flip in [1, 0x80] {
                let mut changed = bytes.clone();
                changed[at] ^= flip;
                assert!(decode_plan(&changed, &INDEX, &tree).is_err(), "byte {at}");
                if at < bytes.len() - HASH {
                    let forged = decode_plan(&sealed(changed), &INDEX, &tree);
                    assert!(
                        forged.is_err() || forged.unwrap() != plan,
                        "byte {at}, forged"
                    );
                }
            }
        }
    }

    #[test]
    fn what_breaks_a_rule_is_refused() {
        let (tree, plan) = sample();
        let refused = |change: &dyn Fn(&mut ReplayPlan)| {
            let mut plan = plan.clone();
            change(&mut plan);
            decode_plan(&encode_plan(&INDEX, &plan), &INDEX, &tree).is_err()
        };
        assert!(!refused(&|_| {}));
        assert!(refused(&|plan| plan.extents.push(plan.extents[0])), "twice");
        assert!(refused(&|plan| plan.extents[0].file = FileId::ROOT));
        assert!(refused(&|plan| plan.extents[0].file = FileId(u32::MAX)));
        for (first, count) in [(0, 0), (0, 1 << 40), (1 << 40, 1), (u64::MAX >> 1, 1)] {
            let range = BlockRange::with_len(BlockIndex(first), count);
            assert!(refused(&|plan| plan.extents[0].range = range), "{range:?}");
        }
        let list = |dir| Touch::List { dir };
        assert!(refused(&|plan| plan.touches.push(list(FileId(u32::MAX)))));
    }

    #[test]
    fn numbers_have_one_form() {
        for number in [0, 1, 0x7f, 0x80, 0x3fff, 0x4000, u64::MAX >> 1] {
            let mut bytes = Vec::new();
            put_number(&mut bytes, number);
            let mut input = Input::new(WHAT, &bytes);
            assert_eq!(take_number(&mut input), Ok(number));
            assert!(input.end().is_ok());
        }
        for bytes in [&[0x80, 0][..], &[0xff; 10], &[0x80]] {
            assert!(
                take_number(&mut Input::new(WHAT, bytes)).is_err(),
                "{bytes:?}"
            );
        }
    }

    #[test]
    fn a_plan_that_is_too_long_loses_its_end() {
        let (tree, _) = sample();
        let touches = vec![Touch::List { dir: FileId::ROOT }; PLAN_ENTRIES_MAX + 1];
        let plan = ReplayPlan {
            touches,
            ..ReplayPlan::default()
        };
        let bytes = encode_plan(&INDEX, &plan);
        let read = decode_plan(&bytes, &INDEX, &tree).unwrap();
        assert_eq!(read.touches.len(), PLAN_ENTRIES_MAX);
        let name = vec![b'n'; 200];
        let dir = FileId::ROOT;
        let touches = vec![Touch::Lookup { dir, name }; 40_000];
        let plan = ReplayPlan {
            touches,
            ..ReplayPlan::default()
        };
        let bytes = encode_plan(&INDEX, &plan);
        assert!(len64(bytes.len()) <= PLAN_MAX && len64(bytes.len()) > PLAN_MAX - 300);
        let read = decode_plan(&bytes, &INDEX, &tree).unwrap();
        assert_eq!(read.touches, plan.touches[..read.touches.len()]);
        let long = vec![0; 1 + usize::try_from(PLAN_MAX).unwrap()];
        let long = decode_plan(&long, &INDEX, &tree);
        assert!(matches!(long, Err(FormatError::TooLarge { .. })));
    }

    proptest! {
        /// A forger knows how to seal: what is read is written as the same bytes.
        #[test]
        fn forged_plans_are_refused_or_read(
            counts in (0_u8..6, 0_u8..6),
            rest in prop::collection::vec(0_u8..12, 0..60),
        ) {
            let (tree, _) = sample();
            let mut bytes = encode_plan(&INDEX, &ReplayPlan::default());
            (bytes[16], bytes[20]) = counts;
            bytes.splice(HEAD_BYTES..HEAD_BYTES, rest);
            let bytes = sealed(bytes);
            if let Ok(plan) = decode_plan(&bytes, &INDEX, &tree) {
                prop_assert_eq!(encode_plan(&INDEX, &plan), bytes);
            }
        }
    }
}
