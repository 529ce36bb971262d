//! What the loaders of programs read in a source.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use super::Lookup;
use crate::programs::elf::{Loads, Unread, loads_so_far};
use blocks::{FileId, NodeKind, Tree};
use chunks::index::{CHUNK_BYTES, Index};

/// A library's name contains this.
const IN_NAMES: &[u8] = b".so";
/// What a loader and the C library read of a program beside its libraries: where these are, and what the program's
/// locale is. Only files that are there count, and those of the first locales.
const BESIDE: [&[u8]; 3] = [b"ld.so.cache", b"LC_CTYPE", b"gconv-modules.cache"];
/// What nearly each program is loaded with: its loader, the list of libraries, and the C library. Those that are there are
/// known before the first program is.
const FIRST: [&[u8]; 5] = [
    b"ld-linux-x86-64.so.2",
    b"ld-linux-aarch64.so.1",
    b"ld.so.cache",
    b"libc.so.6",
    b"libm.so.6",
];
/// Symbolic links that are followed from a name to its file.
const LINKS_MAX: usize = 8;
/// Files of one name in different directories that are taken: which one is loaded is not looked up.
const SAME_NAME_MAX: usize = 2;

/// What the loader of a program reads.
#[derive(Debug, Default)]
pub(super) struct Loaded {
    pub(super) files: Vec<FileId>,
    /// Chunks of the program itself that the loader reads.
    pub(super) parts: Vec<Range<u32>>,
    /// Chunks of the program itself that may be read when it runs: the loader's tables, code, and constants of this code.
    pub(super) run: Vec<Range<u32>>,
    /// A missing chunk that is needed to tell more: the file waits for it now.
    pub(super) missing: Option<u32>,
}

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

    /// Returns the files that nearly each program is loaded with.
    pub(super) fn first(&mut self, tree: &Tree) -> Vec<FileId> {
        let by_name = self.by_name.get_or_insert_with(|| by_name(tree));
        let files = FIRST.iter().filter_map(|name| by_name.get(*name));
        let mut files: Vec<_> = files.flatten().copied().collect();
        files.dedup();
        files
    }

    /// Removes and returns the files that wait for a chunk.
    pub(super) fn waited_for(&mut self, number: u32) -> Vec<FileId> {
        self.waiting.remove(&number).unwrap_or_default()
    }

    /// Returns what the loader of a program reads, as far as the content that is here tells; nothing if the file is no
    /// program.
    pub(super) fn of(&mut self, index: &Index, file: FileId, content: &Lookup<'_>) -> Loaded {
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
        let (loads, missing) = match loads_so_far(&read) {
            Ok((loads, missing)) => (loads, missing),
            Err(Unread::Missing(number)) => (Loads::default(), Some(number)),
            Err(Unread::Other) => return Loaded::default(),
        };
        let missing = missing.map(|number| u32::try_from(number).unwrap_or(u32::MAX));
        if let Some(number) = missing {
            self.waiting.entry(number).or_default().push(file);
        }
        let tree = index.tree();
        let by_name = self.by_name.get_or_insert_with(|| by_name(tree));
        let loader = loads.interpreter.iter();
        let loader = loader.filter_map(|path| path.rsplit(|byte| *byte == b'/').next());
        let needed: Vec<_> = loader
            .chain(loads.needed.iter().map(Vec::as_slice))
            .collect();
        let beside = BESIDE.into_iter().filter(|_| !needed.is_empty());
        let names = needed.iter().copied().chain(beside);
        let files = names.filter_map(|name| by_name.get(name));
        let chunks = |part: &Range<u64>| index.covering(file, part.start, part.end - part.start);
        Loaded {
            files: files.flatten().copied().collect(),
            parts: loads.parts.iter().map(chunks).collect(),
            run: parts_of_run(&loads).map(chunks).collect(),
            missing,
        }
    }
}

/// Returns the parts of a file that may be read when it runs, the most probable first. More constants than code are
/// data, of which little is read.
fn parts_of_run(loads: &Loads) -> impl Iterator<Item = &Range<u64>> {
    let len = |ranges: &[Range<u64>]| ranges.iter().map(|part| part.end - part.start).sum::<u64>();
    let (code, constants) = (len(&loads.code), len(&loads.constants));
    let is_code = constants <= code.saturating_mul(2);
    let (tables, others) = loads.constants.split_at(loads.constants.len().min(1));
    let all = tables.iter().chain(&loads.code).chain(others);
    all.filter(move |_| is_code)
}

/// Returns the files of a source that loaders of programs may read, by name.
fn by_name(tree: &Tree) -> HashMap<Vec<u8>, Vec<FileId>> {
    let mut by_name: HashMap<Vec<u8>, Vec<FileId>> = HashMap::new();
    let dirs = tree
        .files()
        .filter(|(_, inode)| inode.attr.kind == NodeKind::Dir);
    for (dir, _) in dirs {
        for (name, file) in tree.entries(dir) {
            if !is_library(name) && !BESIDE.contains(&name) {
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

/// Returns whether a file of this name is a library.
pub(super) fn is_library(name: &[u8]) -> bool {
    name.windows(IN_NAMES.len()).any(|part| part == IN_NAMES)
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
            Node::dir(&[
                ("libq.so", 6),
                ("readme", 3),
                ("gone.so", 7),
                ("LC_CTYPE", 3),
            ]),
            Node::symlink("/lib/libz.so.1"),
            Node::symlink("nowhere/else"),
        ];
        let names = by_name(&tree(&nodes).unwrap());
        for name in [&b"libz.so.1"[..], b"libz.so.1.2", b"libq.so", b"LC_CTYPE"] {
            assert_eq!(names[name], [FileId(3)], "{}", name.escape_ascii());
        }
        assert_eq!(names.len(), 4);
    }
}
