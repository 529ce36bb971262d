//! What is written is read, and what is hostile is refused.

use std::sync::Arc;

use blocks::testing::{Node, tree};
use proptest::prelude::*;

use super::*;
use crate::index::ZEROS;

const FILES: u32 = 300;

/// An index of a directory with files 1 to [`FILES`], and a link behind them.
fn index() -> Index {
    let names: Vec<_> = (1..=FILES + 1).map(|n| (format!("f{n:04}"), n)).collect();
    let names: Vec<_> = names.iter().map(|(name, n)| (name.as_str(), *n)).collect();
    let mut nodes = vec![Node::dir(&names)];
    nodes.extend((0..FILES).map(|_| Node::file(9)));
    nodes.push(Node::symlink("f0001"));
    let chunks = vec![ZEROS; FILES as usize];
    Index::new(b"x", Arc::new(tree(&nodes).unwrap()), chunks).unwrap()
}

fn links(found: &[(u32, &[u32])]) -> Links {
    let found = found.iter().map(|(file, targets)| {
        let targets = targets.iter().copied().map(FileId);
        (FileId(*file), targets.collect())
    });
    Links::new(&found.collect())
}

/// A document with this table, as a liar would make it: head and seal are right.
fn document(index: &Index, files: u32, links: u32, table: &[u8]) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend([1, 0, 0, 0, 0, 0, 0, 0]);
    out.extend(index.id().0);
    let len = u32::try_from(table.len()).unwrap();
    for number in [files, links, len] {
        out.extend(number.to_le_bytes());
    }
    out.extend([0; 4]);
    out.extend(table);
    sealed(out)
}

fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let seal = ContentId::of(&bytes);
    bytes.extend(seal.0);
    bytes
}

fn rule(bytes: &[u8], index: &Index) -> &'static str {
    match Links::decode(bytes, index) {
        Err(LinksError::Broken(broken)) => broken.rule,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_written_is_read() {
    let index = index();
    let links = links(&[(1, &[300, 2, 7]), (2, &[1]), (300, &[299])]);
    let bytes = links.encode(&index.id());
    assert_eq!(Links::decode(&bytes, &index), Ok(links.clone()));
    assert_eq!(links.len(), 5);
    let of = |file| {
        links
            .of(FileId(file))
            .map(|file| file.0)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        (of(1), of(2), of(300)),
        (vec![300, 2, 7], vec![1], vec![299])
    );
    assert_eq!(of(3), []);
    let none = Links::default();
    assert_eq!(Links::decode(&none.encode(&index.id()), &index), Ok(none));
}

/// The bytes of version 1 stay what they are: who talks to an older peer depends on them.
#[test]
fn documents_stay_what_they_are() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/links-v1.txt");
    let index = ContentId([7; 32]);
    let bytes = links(&[(1, &[300, 2, 7]), (2, &[1]), (300, &[299])]).encode(&index);
    let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
    let now = digits.collect::<String>() + "\n";
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(path, &now).unwrap();
    }
    assert_eq!(std::fs::read_to_string(path).unwrap(), now);
}

#[test]
fn what_is_beyond_the_limits_is_left_out() {
    let index = index();
    let many: Vec<_> = (1..=FILES).collect();
    let links = links(&[(1, &many), (2, &[2]), (3, &[4])]);
    assert_eq!(links.of(FileId(1)).count(), LINKS_OF_ONE_MAX);
    // Links of a file with itself are none.
    assert_eq!(
        (links.of(FileId(2)).count(), links.of(FileId(3)).count()),
        (0, 1)
    );
    assert_eq!(Links::decode(&links.encode(&index.id()), &index), Ok(links));
    // A source with too many for a document: links of a million files that do not compress well.
    let file = |n: u32| n.wrapping_mul(0x9E37_79B9) >> 4;
    let found = (0..400_000).map(|n| (FileId(n), vec![FileId(file(n))]));
    let large = Links::new(&found.collect());
    let bytes = large.encode(&index.id());
    assert!(bytes.len() as u64 <= LINKS_BYTES_MAX && bytes.len() > 1 << 17);
}

#[test]
fn damage_and_other_indexes_are_refused() {
    let index = index();
    let bytes = links(&[(1, &[300, 2, 7]), (2, &[1])]).encode(&index.id());
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        assert!(Links::decode(&damaged, &index).is_err(), "{at}");
        assert!(Links::decode(&bytes[..at], &index).is_err(), "{at}");
    }
    let other = links(&[(1, &[2])]).encode(&ContentId([9; 32]));
    assert_eq!(rule(&other, &index), "it is of another index");
    let long = vec![0; 1 << 21];
    let refused = Links::decode(&long, &index);
    assert!(matches!(refused, Err(LinksError::TooLarge { .. })));
}

#[test]
fn a_lying_table_is_refused() {
    let index = index();
    // One file, number 1, with one link two files on.
    assert!(Links::decode(&document(&index, 1, 1, &[1, 1, 4]), &index).is_ok());
    let rules = [
        // Files and targets behind the last, before the first, of another kind.
        (
            1,
            1,
            &[0xff, 0xff, 0x7f, 1, 4][..],
            "a link is of no regular file",
        ),
        (
            1,
            1,
            &[1, 1, 0xff, 0xff, 0xff, 0xff, 0x7f],
            "a link is of no regular file",
        ),
        (1, 1, &[1, 1, 5], "a link is of no regular file"),
        (1, 1, &[1, 1, 0xd8, 4], "a link is of no regular file"),
        (1, 1, &[0, 1, 4], "a link is of no regular file"),
        (1, 1, &[1, 1, 0], "a file is linked with itself"),
        (2, 2, &[1, 1, 4, 0, 1, 4], "a file has two records"),
        // Counts that are not so.
        (1, 1, &[1, 0], "a file has 1 to 255 links"),
        (1, 1, &[1, 0x80, 2], "a file has 1 to 255 links"),
        (
            1,
            1,
            &[1, 0xff, 0xff, 0xff, 0xff, 0x7f],
            "a file has 1 to 255 links",
        ),
        (1, 1, &[1, 2, 4, 2], "it has more links than its head says"),
        (1, 2, &[1, 1, 4], "it has fewer links than its head says"),
        (2, 2, &[1, 1, 4], "it ends early"),
        (2, 1, &[1, 1, 4], "it has too many links"),
        (u32::MAX, u32::MAX, &[1, 1, 4], "it has too many links"),
        (1 << 20, 1 << 20, &[1, 1, 4], "it ends early"),
        // Numbers.
        (1, 1, &[0x81, 0, 1, 4], "a number is longer than it need be"),
        (
            1,
            1,
            &[0x80, 0x80, 0x80, 0x80, 0x80, 1],
            "a number is too large",
        ),
    ];
    for (files, links, table, expected) in rules {
        let bytes = document(&index, files, links, table);
        assert_eq!(rule(&bytes, &index), expected, "{table:?}");
    }
    let trailing = document(&index, 1, 1, &[1, 1, 4, 0]);
    assert!(Links::decode(&trailing, &index).is_err());
}

#[test]
fn a_table_that_grows_when_it_is_decompressed_is_refused() {
    let index = index();
    let (codec, packed) = pack(&vec![0; 64 << 20]);
    assert_eq!(codec, Codec::Zstd);
    for len in [64_u32 << 20, 4 << 20, 100] {
        let mut out = document(&index, 1, 1, &packed);
        out.truncate(out.len() - SEAL_BYTES);
        out[56..60].copy_from_slice(&len.to_le_bytes());
        out[60] = codec as u8;
        assert!(Links::decode(&sealed(out), &index).is_err(), "{len}");
    }
}

proptest! {
    #[test]
    fn any_table_is_refused_or_is_written_as_it_was_read(
        files in 0_u32..4,
        count in 0_u32..8,
        table in prop::collection::vec(prop_oneof![0_u8..9, any::<u8>()], 0..24),
    ) {
        let index = index();
        let bytes = document(&index, files, count, &table);
        if let Ok(links) = Links::decode(&bytes, &index) {
            prop_assert_eq!(Links::decode(&links.encode(&index.id()), &index), Ok(links));
        }
    }

    #[test]
    fn distances_of_either_sign_come_back(distance in -(1_i64 << 33)..1 << 33) {
        prop_assert_eq!(unfolded(folded(distance)), distance);
    }
}
