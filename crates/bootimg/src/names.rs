//! The names of a mount, stored while it is mounted.
//!
//! The kernel knows the files of a mount by their numbers in a tree. A process that serves it in
//! place of one that died must have exactly that tree, whatever became of the source and of
//! the boot image since. This is no durable format: it is read by the same release on the same
//! machine, or refused.

use blocks::Tree;

use crate::header::SectionKind;
use crate::layout::{HASH, hash, len_usize, len64};
use crate::{FormatError, squeeze};

const WHAT: &str = "names of a mount";
const MAGIC: [u8; 8] = *b"yolonm01";
/// Longer than any path that the kernel takes.
const LABEL_MAX: usize = 8 << 10;
/// Magic, hash, length of the label, length of the tree.
const HEAD: usize = 8 + HASH + 4 + 8;
/// Speed matters more than size: it is written once for each mount, and lies in memory.
const LEVEL: i32 = 1;

/// Returns a tree and the label of its source as bytes.
///
/// # Errors
/// If it is larger than the limit for reading.
pub fn encode_names(tree: &Tree, label: &[u8]) -> Result<Vec<u8>, FormatError> {
    let section = tree.encode();
    if len64(section.len()) > tree_max() || label.len() > LABEL_MAX {
        return Err(FormatError::TooLarge {
            what: WHAT,
            bytes: len64(section.len()),
            limit: tree_max(),
        });
    }
    let packed =
        zstd::bulk::compress(&section, LEVEL).map_err(|_| broken("it does not compress"))?;
    let label_len = u32::try_from(label.len()).unwrap_or(u32::MAX);
    let mut out = Vec::with_capacity(HEAD + label.len() + packed.len());
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&[0; HASH]);
    out.extend_from_slice(&label_len.to_le_bytes());
    out.extend_from_slice(&len64(section.len()).to_le_bytes());
    out.extend_from_slice(label);
    out.extend_from_slice(&packed);
    let sum = hash(&out[8 + HASH..]);
    out[8..8 + HASH].copy_from_slice(&sum);
    Ok(out)
}

/// Returns the tree and the label that [`encode_names`] was given.
///
/// # Errors
/// If these are other bytes, or not all of them.
pub fn decode_names(bytes: &[u8]) -> Result<(Tree, Vec<u8>), FormatError> {
    let (magic, rest) = bytes.split_first_chunk().ok_or(FormatError::TooShort {
        len: len64(bytes.len()),
    })?;
    if *magic != MAGIC {
        return Err(FormatError::Magic);
    }
    let (sum, rest) = rest
        .split_first_chunk::<HASH>()
        .ok_or_else(|| broken("it is cut off"))?;
    if hash(rest) != *sum {
        return Err(FormatError::Hash { what: WHAT });
    }
    let (label_len, rest) = rest
        .split_first_chunk()
        .ok_or_else(|| broken("it is cut off"))?;
    let (tree_len, rest) = rest
        .split_first_chunk()
        .ok_or_else(|| broken("it is cut off"))?;
    let (label_len, tree_len) = (
        u32::from_le_bytes(*label_len),
        u64::from_le_bytes(*tree_len),
    );
    let label_len = usize::try_from(label_len).map_err(|_| broken("its label is too long"))?;
    if tree_len > tree_max() || label_len > LABEL_MAX.min(rest.len()) {
        return Err(broken("its lengths are wrong"));
    }
    let (label, packed) = rest.split_at(label_len);
    let section = squeeze::unpack(packed, len_usize(tree_len))
        .map_err(|_| broken("it does not decompress to its length"))?;
    Ok((Tree::decode(&section)?, label.to_vec()))
}

const fn tree_max() -> u64 {
    SectionKind::Tree.limit()
}

const fn broken(rule: &'static str) -> FormatError {
    FormatError::Rule { what: WHAT, rule }
}

#[cfg(test)]
mod tests {
    use blocks::testing::{Node, tree};

    use super::*;

    fn names() -> (Tree, Vec<u8>) {
        let nodes = [
            Node::dir(&[("a", 1), ("b", 2)]),
            Node::file(7),
            Node::dir(&[]),
        ];
        let tree = tree(&nodes).unwrap();
        let bytes = encode_names(&tree, b"dir:/srv").unwrap();
        (tree, bytes)
    }

    #[test]
    fn what_is_written_is_read() {
        let (tree, bytes) = names();
        let (read, label) = decode_names(&bytes).unwrap();
        assert_eq!(read.parts(), tree.parts());
        assert_eq!(label, b"dir:/srv");
    }

    #[test]
    fn what_is_cut_off_or_changed_is_refused() {
        let (_, bytes) = names();
        for len in 0..bytes.len() {
            assert!(decode_names(&bytes[..len]).is_err(), "{len} bytes");
        }
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert!(decode_names(&changed).is_err(), "byte {at}");
        }
    }
}
