//! Paths in a source, whose symbolic links are followed, but never out of it.

use blocks::{FileId, Namespace as _, NodeKind, Tree};

/// Symbolic links that are followed on the way to one file.
const LINKS_MAX: usize = 40;
/// Names on the way to one file, with those of links.
const NAMES_MAX: usize = 512;

/// Returns the file that a path leads to from a directory; from the root if it begins with `/`.
pub(super) fn walk(tree: &Tree, from: FileId, path: &[u8]) -> Option<FileId> {
    let mut at = from;
    // What is left to walk, the next name last.
    let mut rest = Vec::new();
    push(&mut rest, &mut at, path)?;
    let mut links = 0;
    for _ in 0..NAMES_MAX {
        let Some(name) = rest.pop() else {
            return Some(at);
        };
        match name {
            b"" | b"." => continue,
            b".." => {
                at = tree.parent(at).ok()?;
                continue;
            }
            _ => {}
        }
        let found = tree.child(at, name)?;
        match tree.link_target(found) {
            None => at = found,
            Some(target) => {
                links += 1;
                if links > LINKS_MAX {
                    return None;
                }
                push(&mut rest, &mut at, target)?;
            }
        }
    }
    None
}

/// Puts the names of a path before the rest; an absolute one begins at the root.
fn push<'a>(rest: &mut Vec<&'a [u8]>, at: &mut FileId, path: &'a [u8]) -> Option<()> {
    if path.starts_with(b"/") {
        *at = FileId::ROOT;
    }
    let before = rest.len();
    let names = path.split(|byte| *byte == b'/');
    rest.extend(names.take(NAMES_MAX + 1));
    rest[before..].reverse();
    (rest.len() <= NAMES_MAX).then_some(())
}

/// Returns the regular file that a path leads to.
pub(super) fn file(tree: &Tree, from: FileId, path: &[u8]) -> Option<FileId> {
    let found = walk(tree, from, path)?;
    is(tree, found, NodeKind::File).then_some(found)
}

/// Returns the directory that a path leads to.
pub(super) fn directory(tree: &Tree, from: FileId, path: &[u8]) -> Option<FileId> {
    let found = walk(tree, from, path)?;
    is(tree, found, NodeKind::Dir).then_some(found)
}

pub(super) fn is(tree: &Tree, file: FileId, kind: NodeKind) -> bool {
    tree.inode(file)
        .is_some_and(|inode| inode.attr.kind == kind)
}

#[cfg(test)]
mod tests {
    use blocks::testing::{Node, tree};

    use super::*;

    #[test]
    fn links_are_followed_within_the_source_only() {
        let nodes = [
            Node::dir(&[("lib", 1), ("usr", 2), ("loop", 6), ("up", 7)]),
            Node::symlink("usr/lib"),
            Node::dir(&[("lib", 3)]),
            Node::dir(&[
                ("libz.so.1", 4),
                ("libz.so.1.2", 5),
                ("abs", 8),
                ("gone", 9),
            ]),
            Node::symlink("libz.so.1.2"),
            Node::file(10),
            Node::symlink("loop"),
            Node::symlink("../../../usr/./lib//libz.so.1"),
            Node::symlink("/lib/libz.so.1"),
            Node::symlink("/proc/self/exe"),
        ];
        let tree = tree(&nodes).unwrap();
        let file = |path: &str| file(&tree, FileId::ROOT, path.as_bytes()).map(|file| file.0);
        for path in [
            "/lib/libz.so.1",
            "usr/lib/libz.so.1.2",
            "up",
            "lib/abs",
            "lib/../usr/lib/abs",
        ] {
            let expected = match path {
                // The parent of what a link leads to, as the kernel has it.
                "lib/../usr/lib/abs" => None,
                _ => Some(5),
            };
            assert_eq!(file(path), expected, "{path}");
        }
        for path in [
            "loop",
            "lib/gone",
            "lib",
            "usr",
            "nothing",
            "lib/libz.so.1/x",
        ] {
            assert_eq!(file(path), None, "{path}");
        }
        assert_eq!(file(&"./".repeat(1000)), None);
        assert_eq!(directory(&tree, FileId::ROOT, b"/lib"), Some(FileId(3)));
        assert_eq!(directory(&tree, FileId(3), b".."), Some(FileId(2)));
    }
}
