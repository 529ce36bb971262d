//! The files that programs of a source are linked with.

use std::collections::{HashMap, HashSet};

use super::Lookup;
use super::elf::{Unread, needed};
use blocks::{FileId, NodeKind, Tree};
use chunks::index::{CHUNK_BYTES, Index};

/// A library's name contains this.
const IN_NAMES: &[u8] = b".so";
/// Symbolic links that are followed from a name to its file.
const LINKS_MAX: usize = 8;
/// Files of one name in different directories that are taken: which one is loaded is not looked up.
const SAME_NAME_MAX: usize = 2;

/// Which files are known, and which are waited for.
#[derive(Debug, Default)]
pub(super) struct Libraries {
    /// By name; made at the first program.
    by_name: Option<HashMap<Vec<u8>, Vec<FileId>>>,
    known: HashSet<FileId>,
    /// By chunk: the files whose libraries it is needed for.
    waiting: HashMap<u32, Vec<FileId>>,
}

impl Libraries {
    /// Returns whether a file was not examined before, and marks it.
    pub(super) fn is_new(&mut self, file: FileId) -> bool {
        self.known.insert(file)
    }

    /// Removes and returns the files that wait for a chunk.
    pub(super) fn waited_for(&mut self, number: u32) -> Vec<FileId> {
        self.waiting.remove(&number).unwrap_or_default()
    }

    /// Returns the files that a program is linked with; none if the file is no program.
    ///
    /// # Errors
    /// The number of a missing chunk that is needed: the file waits for it now.
    pub(super) fn of(
        &mut self,
        index: &Index,
        file: FileId,
        content: &Lookup<'_>,
    ) -> Result<Vec<FileId>, u32> {
        let read = |offset: u64, len: usize| {
            let mut bytes = Vec::new();
            for number in index.covering(file, offset, len as u64) {
                let missing = Unread::Missing(u64::from(number));
                let chunk = content(number).ok_or(missing)?;
                let at = offset.saturating_add(bytes.len() as u64) % CHUNK_BYTES;
                let at = usize::try_from(at).map_err(|_| Unread::Other)?;
                let rest = chunk.get(at..).unwrap_or_default();
                bytes.extend_from_slice(&rest[..rest.len().min(len - bytes.len())]);
            }
            Ok(bytes)
        };
        let names = match needed(&read) {
            Ok(names) => names,
            Err(Unread::Other) => return Ok(Vec::new()),
            Err(Unread::Missing(number)) => {
                let number = u32::try_from(number).unwrap_or(u32::MAX);
                self.waiting.entry(number).or_default().push(file);
                return Err(number);
            }
        };
        let tree = index.tree();
        let by_name = self.by_name.get_or_insert_with(|| by_name(tree));
        let files = names.iter().filter_map(|name| by_name.get(name));
        Ok(files.flatten().copied().collect())
    }
}

/// Returns the files of a source that programs may be linked with, by name.
fn by_name(tree: &Tree) -> HashMap<Vec<u8>, Vec<FileId>> {
    let mut by_name: HashMap<Vec<u8>, Vec<FileId>> = HashMap::new();
    let dirs = tree
        .files()
        .filter(|(_, inode)| inode.attr.kind == NodeKind::Dir);
    for (dir, _) in dirs {
        for (name, file) in tree.entries(dir) {
            if !name.windows(IN_NAMES.len()).any(|part| part == IN_NAMES) {
                continue;
            }
            let Some(file) = file_behind(tree, dir, file) else {
                continue;
            };
            let files = by_name.entry(name.to_vec()).or_default();
            if files.len() < SAME_NAME_MAX && !files.contains(&file) {
                files.push(file);
            }
        }
    }
    by_name
}

/// Follows symbolic links from a name in a directory to a file.
fn file_behind(tree: &Tree, mut dir: FileId, mut file: FileId) -> Option<FileId> {
    for _ in 0..LINKS_MAX {
        let Some(target) = tree.link_target(file) else {
            let kind = tree.inode(file)?.attr.kind;
            return (kind == NodeKind::File).then_some(file);
        };
        let (above, base) = match target.iter().rposition(|byte| *byte == b'/') {
            Some(at) => (Some(&target[..at]), &target[at + 1..]),
            None => (None, target),
        };
        if let Some(above) = above {
            // Paths are from the root of the source, or seldom from the directory of the link.
            dir = tree.resolve(above.strip_prefix(b"/").unwrap_or(above))?;
        }
        file = tree.child(dir, base)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use blocks::testing::{Node, tree};

    #[test]
    fn names_lead_to_files_through_links() {
        let nodes = [
            Node::dir(&[("lib", 1), ("bin", 5)]),
            Node::dir(&[("libz.so.1", 2), ("libz.so.1.2", 3), ("loop.so", 4)]),
            Node::symlink("libz.so.1.2"),
            Node::file(10),
            Node::symlink("loop.so"),
            Node::dir(&[("libq.so", 6), ("readme", 3), ("gone.so", 7)]),
            Node::symlink("/lib/libz.so.1"),
            Node::symlink("nowhere/else"),
        ];
        let names = by_name(&tree(&nodes).unwrap());
        for name in [&b"libz.so.1"[..], b"libz.so.1.2", b"libq.so"] {
            assert_eq!(names[name], [FileId(3)], "{}", name.escape_ascii());
        }
        assert_eq!(names.len(), 3);
    }
}
