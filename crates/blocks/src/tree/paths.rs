//! Paths for people, in bounded memory.

use super::Tree;
use crate::FileId;

/// The mark that replaces the omitted part of a path.
const LEFT_OUT: &[u8] = b".../";

/// Returns the paths of files, until its budget is used up: then their last names. See
/// [`Tree::paths_within`].
#[derive(Clone, Debug)]
pub struct Paths<'a> {
    pub(super) tree: &'a Tree,
    pub(super) budget: usize,
}

impl Paths<'_> {
    /// Returns one path of a file without a leading `/`, or `.../` and its last name if the budget
    /// has no room for all of it. Empty for the root and for a file that no directory names.
    #[must_use]
    pub fn next(&mut self, file: FileId) -> Vec<u8> {
        let mut names = Vec::new();
        let mut len = 0;
        let mut at = file;
        while at != FileId::ROOT {
            let Some((name, dir)) = self.tree.named(at) else {
                return Vec::new();
            };
            len += name.len() + 1;
            if len > self.budget {
                self.budget = 0;
                let last = names.first().copied().unwrap_or(name);
                return [LEFT_OUT, last].concat();
            }
            names.push(name);
            at = dir;
        }
        self.budget -= len;
        names.reverse();
        names.join(&b'/')
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Node, tree};

    #[test]
    fn the_budget_is_for_all_paths_together() {
        let nodes = [
            Node::dir(&[("one", 1)]),
            Node::dir(&[("file", 3), ("two", 2)]),
            Node::dir(&[("deep", 4)]),
            Node::file(1),
            Node::file(1),
            Node::file(1),
        ];
        let tree = tree(&nodes).unwrap();
        let deep = b"one/two/deep".to_vec();
        let mut paths = tree.paths_within(2 * (deep.len() + 1) + 1);
        assert_eq!(paths.next(FileId::ROOT), b"");
        assert_eq!(paths.next(FileId(5)), b"", "it has no name");
        assert_eq!(paths.next(FileId(4)), deep);
        assert_eq!(paths.next(FileId(4)), deep);
        assert_eq!(paths.next(FileId(4)), b".../deep");
        // Once it is used up it stays so, or short paths would come and go.
        assert_eq!(paths.next(FileId(3)), b".../file");
        assert_eq!(paths.next(FileId::ROOT), b"");
    }
}
