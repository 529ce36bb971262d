//! Parts of a content that are verified by the hash of all of it: BLAKE3 is a tree, of which the missing branches are
//! given by their hashes.

use std::ops::Range;

use blake3::Hasher;
use blake3::hazmat::{
    ChainingValue, HasherExt as _, Mode, left_subtree_len, merge_subtrees_non_root,
    merge_subtrees_root,
};

use super::{BLOCK_BYTES, StartDataError};
use crate::ContentRoot;

/// What the bytes of a piece have to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verifier {
    /// Nothing is known of it: it is not used.
    Unknown,
    /// This hash in the tree, at this byte of the content.
    Node(ChainingValue, u64),
    /// The hash of the whole content.
    Root(ContentRoot),
}

impl Verifier {
    /// Returns whether these are the bytes of the piece.
    pub(super) fn accepts(&self, bytes: &[u8]) -> bool {
        match self {
            Self::Unknown => false,
            Self::Node(expected, at) => {
                let mut hasher = node_at(*at);
                !bytes.is_empty() && hasher.update(bytes).finalize_non_root() == *expected
            }
            Self::Root(root) => blake3::hash(bytes).as_bytes() == &root.0,
        }
    }
}

/// Returns the hasher of a node that begins at this byte of the content.
fn node_at(byte: u64) -> Hasher {
    let mut hasher = Hasher::new();
    hasher.set_input_offset(byte);
    hasher
}

/// Computes the root of a content with these pieces, which are nodes of its tree, in ascending order. `hashes` are those of
/// the pieces and of all branches without one, from left to right. Returns what each piece has to have; `None` if the root
/// is another.
///
/// # Errors
/// If there are too few hashes, or a piece is no node of the tree.
pub(super) fn prove(
    pieces: &[Range<u64>],
    len: u64,
    root: ContentRoot,
    hashes: &mut impl Iterator<Item = ChainingValue>,
) -> Result<Option<Vec<Verifier>>, StartDataError> {
    if is_whole(pieces, len) {
        return Ok(Some(vec![Verifier::Root(root)]));
    }
    let mut verifiers = Vec::with_capacity(pieces.len());
    let computed = root_of(pieces, len, &mut |node| {
        let few = StartDataError::Rule("it has too few hashes");
        let hash = hashes.next().ok_or(few)?;
        if pieces.get(verifiers.len()) == Some(&node) {
            verifiers.push(Verifier::Node(hash, node.start));
        }
        Ok(hash)
    })?;
    Ok((computed == root).then_some(verifiers))
}

/// Adds a range of the content to a hasher.
pub(super) type HashedRead<'a> =
    dyn FnMut(&mut Hasher, Range<u64>) -> Result<(), StartDataError> + 'a;

/// Returns the hashes that [`prove`] takes, and the root. `read` hashes a range of the content, and is asked in ascending order
/// for all of it.
///
/// # Errors
/// As `read`, and if a piece is no node of the tree.
pub(super) fn disclose(
    pieces: &[Range<u64>],
    len: u64,
    read: &mut HashedRead<'_>,
) -> Result<(Vec<ChainingValue>, ContentRoot), StartDataError> {
    let mut hashes = Vec::new();
    if is_whole(pieces, len) {
        let mut hasher = Hasher::new();
        read(&mut hasher, 0..len)?;
        return Ok((hashes, ContentRoot(*hasher.finalize().as_bytes())));
    }
    let root = root_of(pieces, len, &mut |node| {
        let mut hasher = node_at(node.start);
        read(&mut hasher, node)?;
        hashes.push(hasher.finalize_non_root());
        Ok(hashes[hashes.len() - 1])
    })?;
    Ok((hashes, root))
}

fn is_whole(pieces: &[Range<u64>], len: u64) -> bool {
    matches!(pieces, [all] if *all == (0..len))
}

/// Hashes one node of the tree.
type NodeHash<'a> = dyn FnMut(Range<u64>) -> Result<ChainingValue, StartDataError> + 'a;

/// Returns the root, given the hashes of the pieces and of all branches without one.
fn root_of(
    pieces: &[Range<u64>],
    len: u64,
    node: &mut NodeHash<'_>,
) -> Result<ContentRoot, StartDataError> {
    if pieces.is_empty() || len <= BLOCK_BYTES {
        return Err(NO_NODE);
    }
    let [left, right] = children(pieces, 0..len, node)?;
    let root = merge_subtrees_root(&left, &right, Mode::Hash);
    Ok(ContentRoot(*root.as_bytes()))
}

const NO_NODE: StartDataError = StartDataError::Rule("a piece is no node of its layer's tree");

fn children(
    pieces: &[Range<u64>],
    of: Range<u64>,
    node: &mut NodeHash<'_>,
) -> Result<[ChainingValue; 2], StartDataError> {
    let middle = of.start + left_subtree_len(of.end - of.start);
    let split = pieces.partition_point(|piece| piece.start < middle);
    let (left, right) = pieces.split_at(split);
    Ok([
        branch(left, of.start..middle, node)?,
        branch(right, middle..of.end, node)?,
    ])
}

/// Returns the hash of a branch; it is as deep as the content has powers of two.
fn branch(
    pieces: &[Range<u64>],
    of: Range<u64>,
    node: &mut NodeHash<'_>,
) -> Result<ChainingValue, StartDataError> {
    if pieces.is_empty() || pieces == std::slice::from_ref(&of) {
        return node(of);
    }
    if of.end - of.start <= BLOCK_BYTES {
        return Err(NO_NODE);
    }
    let [left, right] = children(pieces, of, node)?;
    Ok(merge_subtrees_non_root(&left, &right, Mode::Hash))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        blake3::Hasher::new().finalize_xof().fill(&mut bytes);
        bytes
    }

    fn disclosed(content: &[u8], pieces: &[Range<u64>]) -> (Vec<ChainingValue>, ContentRoot) {
        let mut at = 0;
        let mut read = |hasher: &mut Hasher, range: Range<u64>| {
            assert_eq!(range.start, at, "not in order");
            at = range.end;
            let [start, end] = [range.start, range.end].map(|at| usize::try_from(at).unwrap());
            hasher.update(&content[start..end]);
            Ok(())
        };
        let disclosed = disclose(pieces, content.len() as u64, &mut read).unwrap();
        assert_eq!(at, content.len() as u64);
        disclosed
    }

    #[test]
    fn pieces_of_contents_of_all_lengths_are_verified_by_the_hash_of_all() {
        for len in [
            1,
            1024,
            4095,
            4096,
            4097,
            5000,
            65_536,
            65_537,
            300_000,
            1 << 20,
        ] {
            let content = content(len);
            let root = ContentRoot(*blake3::hash(&content).as_bytes());
            let blocks = (len as u64).div_ceil(4096);
            let piece =
                |block: u64, blocks: u64| block * 4096..((block + blocks) * 4096).min(len as u64);
            let mut choices = vec![vec![piece(0, 1)], vec![piece(blocks - 1, 1)]];
            if blocks > 16 {
                choices.push(vec![piece(0, 16), piece(16, 1)]);
                choices.push(vec![
                    piece(2, 2),
                    piece(5, 1),
                    piece(8, 8),
                    piece(blocks - 1, 1),
                ]);
            }
            for pieces in choices {
                let pieces: Vec<_> = pieces
                    .into_iter()
                    .filter(|piece| !piece.is_empty())
                    .collect();
                if len <= 4096 && !is_whole(&pieces, len as u64) {
                    continue;
                }
                let (hashes, computed) = disclosed(&content, &pieces);
                assert_eq!(computed, root, "{len} {pieces:?}");
                let mut given = hashes.iter().copied();
                let proven = prove(&pieces, len as u64, root, &mut given)
                    .unwrap()
                    .unwrap();
                assert_eq!((proven.len(), given.next()), (pieces.len(), None));
                for (piece, verifier) in pieces.iter().zip(&proven) {
                    let [start, end] =
                        [piece.start, piece.end].map(|at| usize::try_from(at).unwrap());
                    let mut bytes = content[start..end].to_vec();
                    assert!(verifier.accepts(&bytes), "{len} {piece:?}");
                    bytes[0] ^= 1;
                    assert!(!verifier.accepts(&bytes), "{len} {piece:?}");
                    assert!(!verifier.accepts(&[]));
                }
                let other = ContentRoot([7; 32]);
                let mut given = hashes.iter().copied();
                if !is_whole(&pieces, len as u64) {
                    assert_eq!(prove(&pieces, len as u64, other, &mut given).unwrap(), None);
                }
                for number in 0..hashes.len() {
                    let mut forged = hashes.clone();
                    forged[number][5] ^= 1;
                    let mut given = forged.into_iter();
                    assert_eq!(prove(&pieces, len as u64, root, &mut given).unwrap(), None);
                    let mut few = hashes[..number].iter().copied();
                    prove(&pieces, len as u64, root, &mut few).unwrap_err();
                }
            }
        }
    }

    #[test]
    fn what_is_no_node_is_refused() {
        let root = ContentRoot([0; 32]);
        let mut hashes = std::iter::repeat([0; 32]);
        let one = |start: u64, end: u64| vec![Range { start, end }];
        for pieces in [
            vec![],
            one(4096, 12_288),
            vec![0..8192, 4096..8192],
            one(0, 20_480),
            one(65_536, 70_000),
            one(1 << 40, 1 << 41),
        ] {
            prove(&pieces, 65_536, root, &mut hashes).unwrap_err();
        }
        prove(&[], 0, root, &mut hashes).unwrap_err();
        prove(&one(0, 4096), 100, root, &mut hashes).unwrap_err();
    }
}
