//! Where the loader of a program finds its libraries.

use blocks::{FileId, NodeKind, Tree};

use super::elf::Loads;
use super::paths;

/// Directories in which loaders look without being told; those of `ld.so.conf` go before them.
const DEFAULT: [&[u8]; 9] = [
    b"/lib/x86_64-linux-gnu",
    b"/usr/lib/x86_64-linux-gnu",
    b"/lib/aarch64-linux-gnu",
    b"/usr/lib/aarch64-linux-gnu",
    b"/lib64",
    b"/usr/lib64",
    b"/lib",
    b"/usr/local/lib",
    b"/usr/lib",
];
/// Where the configuration of the loader is, and the files that it includes as a rule.
const CONFIGURATION: &[u8] = b"/etc/ld.so.conf";
const INCLUDED: &[u8] = b"/etc/ld.so.conf.d";
/// Files of the configuration that are read, and directories that are taken from all of them.
const INCLUDED_MAX: usize = 64;
const DIRECTORIES_MAX: usize = 64;

/// Returns the files of the loader's configuration.
pub(super) fn configuration(tree: &Tree) -> Vec<FileId> {
    let first = paths::file(tree, FileId::ROOT, CONFIGURATION);
    let dir = paths::directory(tree, FileId::ROOT, INCLUDED);
    let names = dir.into_iter().flat_map(|dir| tree.entries(dir));
    let included = names
        .filter(|(name, _)| name.ends_with(b".conf"))
        .take(INCLUDED_MAX)
        .filter_map(|(name, _)| paths::file(tree, dir?, name));
    first.into_iter().chain(included).collect()
}

/// Finds libraries in a source.
#[derive(Debug)]
pub(super) struct Finder<'a> {
    tree: &'a Tree,
    directories: Vec<FileId>,
}

impl<'a> Finder<'a> {
    /// Returns who looks in the directories that these files of the configuration name, and in the default ones.
    pub(super) fn new(tree: &'a Tree, configuration: &[Vec<u8>]) -> Self {
        let lines = configuration.iter().flat_map(|file| lines(file));
        let named = lines.filter(|line| line.starts_with(b"/"));
        let all = named.take(DIRECTORIES_MAX).chain(DEFAULT);
        let mut directories = Vec::new();
        for path in all {
            if let Some(dir) = paths::directory(tree, FileId::ROOT, path)
                && !directories.contains(&dir)
            {
                directories.push(dir);
            }
        }
        Self { tree, directories }
    }

    /// Returns what a program in a directory is loaded with.
    pub(super) fn of(&self, dir: FileId, loads: &Loads) -> Vec<FileId> {
        let file = |path: &[u8]| paths::file(self.tree, FileId::ROOT, path);
        let loader = loads.interpreter.as_deref().and_then(file);
        let mut own = self.directories_of(dir, &loads.rpath);
        own.extend(self.directories_of(dir, &loads.runpath));
        let library = |name: &Vec<u8>| {
            if name.contains(&b'/') {
                return file(name);
            }
            let mut all = own.iter().chain(&self.directories);
            all.find_map(|dir| paths::file(self.tree, *dir, name))
        };
        let libraries = loads.needed.iter().filter_map(library);
        loader.into_iter().chain(libraries).collect()
    }

    /// Returns the directories of a list in a program that lies in `dir`.
    fn directories_of(&self, dir: FileId, list: &[u8]) -> Vec<FileId> {
        let paths = list.split(|byte| *byte == b':').take(DIRECTORIES_MAX);
        let found = paths.filter_map(|path| {
            for origin in [&b"$ORIGIN"[..], b"${ORIGIN}"] {
                if let Some(rest) = path.strip_prefix(origin) {
                    return self.below(dir, rest);
                }
            }
            path.starts_with(b"/")
                .then(|| self.below(FileId::ROOT, path))?
        });
        found.collect()
    }

    /// Returns the directory that a path leads to from another one, whether it begins with `/` or not.
    fn below(&self, dir: FileId, path: &[u8]) -> Option<FileId> {
        let start = path.iter().position(|byte| *byte != b'/');
        let found = paths::walk(self.tree, dir, &path[start.unwrap_or(path.len())..])?;
        paths::is(self.tree, found, NodeKind::Dir).then_some(found)
    }
}

fn lines(file: &[u8]) -> impl Iterator<Item = &[u8]> {
    file.split(|byte| *byte == b'\n').map(|line| {
        let end = line.iter().position(|byte| *byte == b'#');
        line[..end.unwrap_or(line.len())].trim_ascii()
    })
}

#[cfg(test)]
mod tests {
    use blocks::testing::{Node, tree};

    use super::*;

    fn loads(needed: &[&str]) -> Loads {
        Loads {
            needed: needed.iter().map(|name| name.as_bytes().to_vec()).collect(),
            ..Loads::default()
        }
    }

    #[test]
    fn libraries_are_found_where_the_loader_looks() {
        let nodes = [
            Node::dir(&[("etc", 1), ("usr", 2), ("opt", 8), ("lib", 12)]),
            Node::dir(&[("ld.so.conf", 9), ("ld.so.conf.d", 3)]),
            Node::dir(&[("lib", 4)]),
            Node::dir(&[("a.conf", 9), ("b.txt", 9)]),
            Node::dir(&[("liba.so", 5), ("libb.so", 6), ("ld.so", 7)]),
            Node::file(1),
            Node::file(2),
            Node::file(3),
            Node::dir(&[("bin", 10), ("liba.so", 11)]),
            Node::file(4),
            Node::dir(&[]),
            Node::file(5),
            Node::symlink("usr/lib"),
        ];
        let tree = tree(&nodes).unwrap();
        assert_eq!(configuration(&tree), [FileId(9), FileId(9)]);
        let of = |configuration: &[&str], loads: &Loads| {
            let files: Vec<_> = configuration
                .iter()
                .map(|f| f.as_bytes().to_vec())
                .collect();
            let found = Finder::new(&tree, &files).of(FileId(10), loads);
            found.into_iter().map(|file| file.0).collect::<Vec<_>>()
        };
        assert_eq!(of(&[], &loads(&["liba.so", "gone.so", "libb.so"])), [5, 6]);
        let conf = "# none\n include x\n\t/opt # here\n/nowhere\nrelative";
        assert_eq!(of(&[conf], &loads(&["liba.so", "libb.so"])), [11, 6]);
        for list in [
            "$ORIGIN/..",
            "/nowhere:${ORIGIN}/../",
            "/opt",
            ":relative:/opt",
        ] {
            let mut program = loads(&["liba.so", "/opt/liba.so"]);
            program.interpreter = Some(b"/lib/ld.so".to_vec());
            program.runpath = list.as_bytes().to_vec();
            assert_eq!(of(&[], &program), [7, 11, 11], "{list}");
            program.rpath = std::mem::take(&mut program.runpath);
            assert_eq!(of(&[], &program), [7, 11, 11], "{list}");
        }
    }
}
