//! How to get to a file: the directory it is in and its name there.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::ControlFlow;

use blocks::{FileId, Namespace, NodeKind, ReplayPlan, Touch};

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
        if wanted.iter().any(|file| !self.leads_to(*file)) {
            self.search(namespace, &wanted);
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

    fn leads_to(&self, file: FileId) -> bool {
        self.way_to(file).is_some()
    }

    /// Goes through the whole namespace, for plans whose look-ups do not lead to all their files:
    /// imported ones, which know only files and ranges.
    fn search(&mut self, namespace: &dyn Namespace, wanted: &HashSet<FileId>) {
        let mut missing: HashSet<FileId> = wanted
            .iter()
            .copied()
            .filter(|file| !self.leads_to(*file))
            .collect();
        let mut waiting = VecDeque::from([FileId::ROOT]);
        let mut seen = HashSet::from([FileId::ROOT]);
        while let Some(dir) = waiting.pop_front() {
            // A directory that cannot be listed hides what is below it; that is all.
            let _unreadable = namespace.list(dir, 0, &mut |entry| {
                let is_dir = entry.kind == NodeKind::Dir;
                if is_dir && seen.insert(entry.file) {
                    waiting.push_back(entry.file);
                }
                if is_dir || wanted.contains(&entry.file) {
                    self.add(entry.file, dir, entry.name);
                    missing.remove(&entry.file);
                }
                ControlFlow::Continue(())
            });
            if missing.is_empty() {
                break;
            }
        }
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
    fn a_plan_without_lookups_is_searched_for() {
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
    fn recorded_lookups_need_no_search() {
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
