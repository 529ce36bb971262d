use std::ops::ControlFlow;

use blocks::testing::{MemSource, Node, tree};
use proptest::prelude::*;

use super::*;
use crate::testing::MemStore;
use crate::{ChunkStore as _, Class};

const SIZES: [u64; 4] = [0, 5, 2 * CHUNK_BYTES, 2 * CHUNK_BYTES + 1];

/// Four files of the sizes above, the third of them zeros but for its first chunk.
fn sample() -> (Arc<Tree>, MemSource) {
    let mut nodes = vec![Node::dir(&[("a", 1), ("b", 2), ("c", 3), ("d", 4)])];
    nodes.extend(SIZES.iter().map(|size| Node::file(*size)));
    let tree = Arc::new(tree(&nodes).unwrap());
    let mut source = MemSource::default();
    for (n, size) in (1_u8..).zip(SIZES) {
        let mut data = vec![n; usize::try_from(size).unwrap()];
        if n == 3 {
            data[CHUNK_MAX..].fill(0);
        }
        source.insert(tree.key(FileId(u32::from(n))).unwrap(), data);
    }
    (tree, source)
}

fn built(store: &MemStore) -> Built {
    let (tree, source) = sample();
    build(b"name", &tree, &source, store, &mut |_| {
        ControlFlow::Continue(())
    })
    .unwrap()
}

#[test]
fn every_file_is_cut_where_it_begins_and_equal_chunks_are_kept_once() {
    let store = MemStore::default();
    let Built {
        index,
        bytes,
        new_bytes,
    } = built(&store);
    assert_eq!(index.chunks().len(), 1 + 2 + 3);
    assert_eq!(bytes, SIZES.iter().sum::<u64>());
    assert_eq!(
        new_bytes,
        5 + CHUNK_BYTES + CHUNK_BYTES + 1,
        "zeros and equals take nothing"
    );
    assert_eq!(index.chunk(2), Some(ZEROS));
    assert_eq!(index.chunk(3), index.chunk(4));
    for number in [0, 1, 3, 5] {
        let id = index.chunk(number).unwrap();
        let raw = store.get(&id, Class::Demand).unwrap().open(&id).unwrap();
        let place = index.place(number).unwrap();
        assert_eq!(raw.len(), place.len as usize, "{number}");
    }
    let again = built(&store);
    assert_eq!((again.new_bytes, again.index.id()), (0, index.id()));
}

#[test]
fn chunks_and_places_fit_each_other() {
    let index = built(&MemStore::default()).index;
    for (file, size) in (1..).zip(SIZES) {
        let file = FileId(file);
        let all = index.covering(file, 0, u64::MAX);
        assert_eq!(u64::from(all.end - all.start), size.div_ceil(CHUNK_BYTES));
        let mut offset = 0;
        for number in all {
            let place = index.place(number).unwrap();
            assert_eq!((place.file, place.offset), (file, offset));
            assert_eq!(
                index.covering(file, offset, u64::from(place.len)),
                number..number + 1
            );
            offset += u64::from(place.len);
        }
        assert_eq!(offset, size);
        assert!(index.covering(file, size, 1).is_empty());
    }
    assert_eq!(index.place(6), None);
    assert!(index.covering(FileId::ROOT, 0, 9).is_empty());
}

#[test]
fn what_is_written_is_read() {
    let index = built(&MemStore::default()).index;
    let read = Index::decode(index.bytes()).unwrap();
    assert_eq!(
        (read.id(), read.label(), read.tree()),
        (index.id(), index.label(), index.tree())
    );
    assert_eq!(read.chunks(), index.chunks());
}

#[test]
fn a_tree_and_chunks_that_do_not_fit_are_refused() {
    let (tree, _) = sample();
    let too_few = Index::new(b"", Arc::clone(&tree), vec![ZEROS; 5]);
    assert!(matches!(too_few, Err(IndexError::Broken(_))));
    let label = Index::new(&[0; 256], tree, vec![ZEROS; 6]);
    assert!(matches!(label, Err(IndexError::Broken(_))));
}

#[test]
fn every_byte_counts() {
    let bytes = built(&MemStore::default()).index.bytes().to_vec();
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 0x10;
        assert!(Index::decode(&changed).is_err(), "byte {at}");
        assert!(Index::decode(&bytes[..at]).is_err(), "cut at {at}");
    }
}

proptest! {
    /// A forger makes the seal right: then every other rule has to hold.
    #[test]
    fn forged_indexes_are_refused_or_read(
        changes in prop::collection::vec((0_usize..1000, any::<u8>()), 1..6),
    ) {
        let mut bytes = built(&MemStore::default()).index.bytes().to_vec();
        let body = bytes.len() - ID_BYTES;
        for (at, byte) in changes {
            bytes[at % body] = byte;
        }
        let seal = ContentId::of(&bytes[..body]);
        bytes[body..].copy_from_slice(&seal.0);
        if let Ok(index) = Index::decode(&bytes) {
            let again = Index::new(index.label(), Arc::clone(index.tree()), index.chunks().to_vec());
            prop_assert_eq!(again.unwrap().bytes().to_vec(), bytes);
        }
    }
}
