//! How to get to a file: the directory it is in and its name there.

use std::collections::{HashMap, HashSet};

use blocks::{FileId, Namespace, ReplayPlan, Touch};

/// For each file of some plans, and each directory above it, one directory and the name in it.
#[derive(Debug, Default)]
pub(super) struct Names {
    links: HashMap<FileId, (FileId, Vec<u8>)>,
}

impl Names {
    /// Finds names for all files of a plan. A file that has none (it is gone) is left out.
    pub(super) fn learn(&mut self, namespace: &dyn Namespace, plan: &ReplayPlan) {
        let mut wanted: HashSet<FileId> = plan.extents.iter().map(|extent| extent.file).collect();
        for touch in &plan.touches {
            match touch {
                Touch::Lookup { dir, name } => {
                    wanted.insert(*dir);
                    if let Ok(Some(file)) = namespace.lookup(*dir, name) {
                        self.add(file, *dir, name);
                    }
                }
                Touch::List { dir } => {
                    wanted.insert(*dir);
                }
                Touch::ReadLink { link } => {
                    wanted.insert(*link);
                }
            }
        }
        for file in wanted {
            if self.way_to(file).is_none() {
                self.find(namespace, file);
            }
        }
    }

    /// Finds the names on a way to a file, for who does not know it from a look-up. A file that
    /// has none is left out.
    pub(super) fn find(&mut self, namespace: &dyn Namespace, file: FileId) {
        let path = namespace.path(file).unwrap_or_default();
        let mut dir = FileId::ROOT;
        for name in path.split(|byte| *byte == b'/') {
            let Ok(Some(found)) = namespace.lookup(dir, name) else {
                return;
            };
            self.links.insert(found, (dir, name.to_vec()));
            dir = found;
        }
    }

    /// Returns the directories from the root down to a file, the file itself last, each with its
    /// name in the one before; `None` if no name leads to it.
    pub(super) fn way_to(&self, file: FileId) -> Option<Vec<(FileId, &[u8])>> {
        let mut way = Vec::new();
        let mut at = file;
        while at != FileId::ROOT {
            let (dir, name) = self.links.get(&at)?;
            way.push((at, name.as_slice()));
            // Directories form a tree, but the namespace may be another one by now.
            if way.len() > self.links.len() {
                return None;
            }
            at = *dir;
        }
        way.reverse();
        Some(way)
    }

    fn add(&mut self, file: FileId, dir: FileId, name: &[u8]) {
        self.links
            .entry(file)
            .or_insert_with(|| (dir, name.to_vec()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blocks::testing::{Node, tree};
    use blocks::{BlockIndex, BlockRange, Extent, Tree};

    fn nested() -> Tree {
        tree(&[
            Node::dir(&[("a", 1), ("top", 4)]),
            Node::dir(&[("b", 2)]),
            Node::dir(&[("file", 3)]),
            Node::file(1),
            Node::file(1),
        ])
        .unwrap()
    }

    fn extent(file: u32) -> Extent {
        Extent {
            file: FileId(file),
            range: BlockRange::with_len(BlockIndex(0), 1),
            bin: 0,
            seen: 1,
        }
    }

    fn path(names: &Names, file: u32) -> Option<Vec<u8>> {
        let way = names.way_to(FileId(file))?;
        let parts: Vec<&[u8]> = way.into_iter().map(|(_, name)| name).collect();
        Some(parts.join(&b'/'))
    }

    #[test]
    fn files_that_no_lookup_leads_to_are_found() {
        let plan = ReplayPlan {
            extents: vec![extent(3), extent(9)],
            ..ReplayPlan::default()
        };
        let mut names = Names::default();
        names.learn(&nested(), &plan);
        assert_eq!(path(&names, 3).unwrap(), b"a/b/file");
        assert_eq!(path(&names, 9), None);
        assert_eq!(path(&names, 0).unwrap(), b"");
    }

    #[test]
    fn recorded_lookups_are_enough() {
        let lookup = |dir, name: &str| Touch::Lookup {
            dir: FileId(dir),
            name: name.as_bytes().to_vec(),
        };
        let plan = ReplayPlan {
            extents: vec![extent(3)],
            touches: vec![
                lookup(0, "a"),
                lookup(1, "b"),
                lookup(2, "file"),
                lookup(2, "no"),
            ],
            ..ReplayPlan::default()
        };
        let mut names = Names::default();
        names.learn(&nested(), &plan);
        assert_eq!(path(&names, 3).unwrap(), b"a/b/file");
        assert_eq!(names.links.len(), 3, "only what the plan names");
    }
}
