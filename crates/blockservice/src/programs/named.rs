//! Files that a program or its configuration names: absolute paths in its constants, as `/etc/nsswitch.conf` in the C
//! library, and in the text files that these are.
//!
//! A path counts where a regular file of the source is, however it is used: of some programs it is only told.

use std::collections::{HashMap, HashSet};

use blocks::{FileId, NodeKind, Tree};

use super::paths;

/// Bytes of constants that are read of one program.
pub(super) const CONSTANTS_MAX: u64 = 32 << 20;
/// The longest text file that is read.
pub(super) const TEXT_MAX: usize = 64 << 10;
/// The largest file that is taken: a larger one is hardly read whole.
const FILE_MAX: u64 = 1 << 20;
/// Files that one program or text names, at most.
const FILES_MAX: usize = 64;
/// Paths of one program or text that are looked up.
const LOOKUPS_MAX: usize = 4096;
/// Paths of all that are looked up. More has a hostile source.
const ALL_LOOKUPS_MAX: usize = 1 << 22;
/// The shortest and the longest path.
const PATH_BYTES: std::ops::RangeInclusive<usize> = 4..=255;
/// Files that a pattern stands for.
const MATCHES_MAX: usize = 16;
const LIBRARY: &[u8] = b".so";

/// Collects the paths in bytes that come in parts.
#[derive(Debug, Default)]
pub(super) struct Paths {
    /// Those that were not looked up yet, in the order in which they came.
    found: Vec<Vec<u8>>,
    known: HashSet<Vec<u8>>,
    /// What may go on in the next part.
    open: Vec<u8>,
}

impl Paths {
    /// Adds the next part.
    pub(super) fn add(&mut self, part: &[u8]) {
        for &byte in part {
            if is_of_path(byte) {
                // One byte more than a path may have says that it is none.
                if self.open.len() <= *PATH_BYTES.end() {
                    self.open.push(byte);
                }
            } else if !self.open.is_empty() {
                self.end();
            }
        }
    }

    /// Returns the paths, once each.
    pub(super) fn take(mut self) -> Vec<Vec<u8>> {
        self.end();
        self.found
    }

    fn end(&mut self) {
        let word = std::mem::take(&mut self.open);
        let is_path = || {
            let is_below_root = word.first() == Some(&b'/') && word[1..].contains(&b'/');
            // The loader of modules of a server looks for these in a directory of its own.
            is_below_root || (word.contains(&b'/') && word.ends_with(LIBRARY))
        };
        if PATH_BYTES.contains(&word.len())
            && self.found.len() < LOOKUPS_MAX
            && is_path()
            && !self.known.contains(&word)
        {
            self.known.insert(word.clone());
            self.found.push(word);
        }
    }
}

/// Returns whether a byte is one of those that names of files are made of as a rule; `*` is of a pattern.
const fn is_of_path(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'.' | b'_' | b'-' | b'+' | b'@' | b'*')
}

/// Returns the paths of a text file, without its comments; `None` if it is no text.
pub(super) fn paths_of_text(text: &[u8]) -> Option<Vec<Vec<u8>>> {
    if text.contains(&0) {
        return None;
    }
    let mut paths = Paths::default();
    for line in text.split(|byte| *byte == b'\n') {
        if !line.trim_ascii_start().starts_with(b"#") {
            paths.add(line);
        }
        paths.add(b"\n");
    }
    Some(paths.take())
}

/// Finds the files of paths in a source.
#[derive(Debug)]
pub(super) struct Finder<'a> {
    tree: &'a Tree,
    /// Libraries by name; the first of several that have it. Made when it is needed.
    libraries: Option<HashMap<&'a [u8], FileId>>,
    /// Paths that may be looked up yet.
    left: usize,
}

impl<'a> Finder<'a> {
    pub(super) const fn new(tree: &'a Tree) -> Self {
        Self {
            tree,
            libraries: None,
            left: ALL_LOOKUPS_MAX,
        }
    }

    /// Returns the files that some paths name.
    pub(super) fn of(&mut self, paths: &[Vec<u8>]) -> Vec<FileId> {
        let mut found = Vec::new();
        for path in paths {
            let Some(left) = self.left.checked_sub(1) else {
                break;
            };
            self.left = left;
            if found.len() >= FILES_MAX {
                break;
            }
            if !path.starts_with(b"/") {
                found.extend(self.library(path));
            } else if path.contains(&b'*') {
                found.extend(self.matches(path));
            } else {
                found.extend(paths::file(self.tree, FileId::ROOT, path));
            }
        }
        found.retain(|file| self.is_taken(*file));
        found.truncate(FILES_MAX);
        found
    }

    fn is_taken(&self, file: FileId) -> bool {
        let inode = self.tree.inode(file);
        inode.is_some_and(|inode| (1..=FILE_MAX).contains(&inode.attr.size))
    }

    /// Returns the library that has the name of a relative path.
    fn library(&mut self, path: &[u8]) -> Option<FileId> {
        let name = path.rsplit(|byte| *byte == b'/').next()?;
        let tree = self.tree;
        let libraries = self.libraries.get_or_insert_with(|| libraries(tree));
        libraries.get(name).copied()
    }

    /// Returns the files that a pattern stands for whose last name has a `*`.
    fn matches(&self, pattern: &[u8]) -> Vec<FileId> {
        let Some(slash) = pattern.iter().rposition(|byte| *byte == b'/') else {
            return Vec::new();
        };
        let (above, name) = (&pattern[..slash], &pattern[slash + 1..]);
        let mut parts = name.split(|byte| *byte == b'*');
        let (Some(start), Some(end), None) = (parts.next(), parts.next(), parts.next()) else {
            return Vec::new();
        };
        let Some(dir) = paths::directory(self.tree, FileId::ROOT, above) else {
            return Vec::new();
        };
        let fits = |name: &[u8]| {
            name.len() >= start.len() + end.len() && name.starts_with(start) && name.ends_with(end)
        };
        let entries = self.tree.entries(dir).filter(|(name, _)| fits(name));
        let files = entries.filter_map(|(name, _)| paths::file(self.tree, dir, name));
        files.take(MATCHES_MAX).collect()
    }
}

/// Returns the libraries of a source by name.
fn libraries(tree: &Tree) -> HashMap<&[u8], FileId> {
    let dirs = tree
        .files()
        .filter(|(_, inode)| inode.attr.kind == NodeKind::Dir);
    let entries = dirs.flat_map(|(dir, _)| tree.entries(dir));
    let mut libraries = HashMap::new();
    for (name, file) in entries.filter(|(name, _)| name.ends_with(LIBRARY)) {
        if paths::is(tree, file, NodeKind::File) {
            libraries.entry(name).or_insert(file);
        }
    }
    libraries
}

#[cfg(test)]
mod tests {
    use blocks::testing::{Node, tree};

    use super::*;

    fn texts(paths: Vec<Vec<u8>>) -> Vec<String> {
        let texts = paths.into_iter();
        texts.map(|path| String::from_utf8(path).unwrap()).collect()
    }

    #[test]
    fn paths_are_whole_words_below_the_root() {
        let mut paths = Paths::default();
        let bytes = b"\0/etc/passwd\0PATH=/usr/a.js\"%s/etc/no /top x/y/z mod/a.so \xff/etc/passwd\0/etc/gr";
        // A path may lie in two parts.
        paths.add(bytes);
        paths.add(b"oup");
        let found = ["/etc/passwd", "/usr/a.js", "mod/a.so", "/etc/group"];
        assert_eq!(texts(paths.take()), found);
        let mut paths = Paths::default();
        paths.add(&b"/a".repeat(200));
        paths.add(b" /a/b /a /ab");
        assert_eq!(texts(paths.take()), ["/a/b"]);
    }

    #[test]
    fn paths_of_one_file_have_a_limit() {
        let mut paths = Paths::default();
        for nth in 0..2 * LOOKUPS_MAX {
            paths.add(format!("/a/{nth:04} ").as_bytes());
        }
        assert_eq!(paths.take().len(), LOOKUPS_MAX);
    }

    #[test]
    fn comments_of_a_text_name_nothing() {
        let text = b"# /etc/none\ninclude /etc/a.conf;\n  #/etc/none\nx /etc/d/*.conf\n";
        let found = paths_of_text(text).map(texts);
        assert_eq!(found.unwrap(), ["/etc/a.conf", "/etc/d/*.conf"]);
        assert_eq!(paths_of_text(b"/etc/a\0"), None);
    }

    #[test]
    fn paths_lead_to_small_files_of_the_source() {
        let nodes = [
            Node::dir(&[("etc", 1), ("lib", 7), ("localtime", 10)]),
            Node::dir(&[
                ("a.conf", 2),
                ("b.conf", 3),
                ("c.txt", 4),
                ("d", 5),
                ("big", 6),
            ]),
            Node::file(1),
            Node::symlink("../lib/deep"),
            Node::file(1),
            Node::dir(&[]),
            Node::file(FILE_MAX + 1),
            Node::dir(&[("mod.so", 8), ("deep", 9)]),
            Node::file(1),
            Node::file(1),
            Node::symlink("/lib/deep"),
        ];
        let tree = tree(&nodes).unwrap();
        let of = |path: &str| {
            let found = Finder::new(&tree).of(&[path.as_bytes().to_vec()]);
            found.into_iter().map(|file| file.0).collect::<Vec<_>>()
        };
        let none: [u32; 0] = [];
        assert_eq!(of("/etc/a.conf"), [2]);
        assert_eq!(of("/localtime"), [9]);
        assert_eq!(of("/etc/*.conf"), [2, 9]);
        assert_eq!(of("/etc/c*"), [4]);
        assert_eq!(of("modules/mod.so"), [8]);
        for path in [
            "/etc/d",
            "/etc/big",
            "/etc/gone",
            "/*/a.conf",
            "/etc/*.*",
            "x/gone.so",
        ] {
            assert_eq!(of(path), none, "{path}");
        }
    }
}
