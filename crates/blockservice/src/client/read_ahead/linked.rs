//! The files that a program is linked with, directly or by others, as its service says it.

use std::collections::{HashSet, VecDeque};

use blocks::FileId;
use chunks::index::{CHUNK_BYTES, Index};
use chunks::links::Links;

/// Files that are returned for one program.
const FILES_MAX: usize = 512;
/// Chunks of a file that count: its beginning and its end.
const CHUNKS_OF_ONE: u64 = 2;

/// Which files were returned before.
#[derive(Debug, Default)]
pub(super) struct Linked {
    known: HashSet<FileId>,
}

impl Linked {
    /// Returns the files that `opened` is linked with and that were not returned before: first those that it is linked with
    /// itself, then those that these are linked with, as long as their ends have no more than `most` bytes.
    ///
    /// Links are hints of a service: they may go in circles.
    pub(super) fn with(
        &mut self,
        index: &Index,
        links: &Links,
        opened: FileId,
        most: u64,
    ) -> Vec<FileId> {
        self.known.insert(opened);
        let (mut found, mut left) = (Vec::new(), most);
        let mut next = VecDeque::from([opened]);
        while let Some(file) = next.pop_front() {
            for target in links.of(file) {
                if self.known.contains(&target) {
                    continue;
                }
                let size = index
                    .tree()
                    .inode(target)
                    .map_or(0, |inode| inode.attr.size);
                let bytes = size.min(CHUNKS_OF_ONE * CHUNK_BYTES);
                if bytes > left || found.len() >= FILES_MAX {
                    return found;
                }
                left -= bytes;
                self.known.insert(target);
                found.push(target);
                next.push_back(target);
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use blocks::testing::{Node, tree};
    use chunks::index::ZEROS;

    use super::*;

    /// A source of files of so many chunks.
    fn index(files: u32, chunks: u32) -> Index {
        let names: Vec<_> = (1..=files).map(|n| (format!("f{n:04}"), n)).collect();
        let names: Vec<_> = names.iter().map(|(name, n)| (name.as_str(), *n)).collect();
        let mut nodes = vec![Node::dir(&names)];
        nodes.extend((0..files).map(|_| Node::file(u64::from(chunks) * CHUNK_BYTES)));
        let all = vec![ZEROS; (files * chunks) as usize];
        Index::new(b"x", Arc::new(tree(&nodes).unwrap()), all).unwrap()
    }

    fn links(found: impl IntoIterator<Item = (u32, Vec<u32>)>) -> Links {
        let found = found.into_iter().map(|(file, targets)| {
            let targets = targets.into_iter().map(FileId);
            (FileId(file), targets.collect())
        });
        Links::new(&found.collect::<BTreeMap<_, _>>())
    }

    fn numbers(files: Vec<FileId>) -> Vec<u32> {
        files.into_iter().map(|file| file.0).collect()
    }

    #[test]
    fn all_that_a_program_is_linked_with_is_returned_once() {
        let index = index(9, 1);
        let links = links([
            (1, vec![2, 3]),
            (2, vec![4]),
            (3, vec![4, 5]),
            (9, vec![5, 6, 1]),
        ]);
        let mut linked = Linked::default();
        let none: [u32; 0] = [];
        assert_eq!(
            numbers(linked.with(&index, &links, FileId(7), 1 << 30)),
            none
        );
        let with = numbers(linked.with(&index, &links, FileId(1), 1 << 30));
        assert_eq!(with, [2, 3, 4, 5]);
        assert_eq!(
            numbers(linked.with(&index, &links, FileId(1), 1 << 30)),
            none
        );
        assert_eq!(
            numbers(linked.with(&index, &links, FileId(9), 1 << 30)),
            [6]
        );
    }

    #[test]
    fn circles_end() {
        let index = index(300, 1);
        let all: Vec<_> = (1..=255).collect();
        let links = links((1..=255).map(|file| (file, all.clone())));
        let mut with = numbers(Linked::default().with(&index, &links, FileId(9), 1 << 30));
        with.sort_unstable();
        let others: Vec<_> = (1..=255).filter(|file| *file != 9).collect();
        assert_eq!(with, others);
    }

    #[test]
    fn files_and_bytes_have_limits() {
        let index = index(600, 3);
        let chain = links((1..600).map(|file| (file, vec![file + 1])));
        let count = |most| {
            Linked::default()
                .with(&index, &chain, FileId(1), most)
                .len()
        };
        assert_eq!(count(1 << 30), FILES_MAX);
        // Of a file of three chunks two count.
        assert_eq!(
            (count(20 * CHUNK_BYTES), count(CHUNK_BYTES), count(0)),
            (10, 0, 0)
        );
        // What had no room is returned when it is reached again.
        let mut linked = Linked::default();
        assert_eq!(
            linked
                .with(&index, &chain, FileId(1), 2 * CHUNK_BYTES)
                .len(),
            1
        );
        let again = numbers(linked.with(&index, &chain, FileId(2), 4 * CHUNK_BYTES));
        assert_eq!(again, [3, 4]);
    }
}
