//! Where Python finds the compiled modules and the libraries that a module imports.

use std::collections::{BTreeMap, HashMap};

use blocks::{FileId, Namespace as _, NodeKind, Tree};

use super::paths;
use super::python::Import;

/// The directory that compiled modules lie in.
pub(super) const CACHE: &[u8] = b"__pycache__";
/// The module that a package is.
const PACKAGE: &[u8] = b"__init__";
/// Directories of modules have these names; the library of a release, `python3.11`, begins with the first.
const RELEASE: &[u8] = b"python3";
const INTERPRETER: &[u8] = b"python3.";
const DIRECTORIES: [&[u8]; 3] = [b"lib-dynload", b"dist-packages", b"site-packages"];
/// What an interpreter imports before the first line of a script. Others are in the interpreter itself since 3.11.
const AT_ITS_START: [&[u8]; 4] = [
    b"encodings",
    b"encodings.aliases",
    b"encodings.utf_8",
    b"sitecustomize",
];
const BEFORE_3_11: [&[u8]; 10] = [
    b"codecs",
    b"io",
    b"abc",
    b"site",
    b"os",
    b"stat",
    b"posixpath",
    b"genericpath",
    b"_collections_abc",
    b"_sitebuiltins",
];
/// Directories of modules that are taken.
const ROOTS_MAX: usize = 64;
/// Packages that a module lies in, one in the other.
const LEVELS_MAX: usize = 32;
/// Names that are looked up in one source. More has a hostile one.
const LOOKUPS_MAX: u32 = 1 << 24;

/// Finds modules in a source.
#[derive(Debug)]
pub(super) struct Finder<'a> {
    tree: &'a Tree,
    roots: Vec<FileId>,
    /// By directory and name: modules that are libraries. Each directory is read once.
    libraries: HashMap<FileId, BTreeMap<&'a [u8], FileId>>,
    /// Names that may be looked up yet.
    left: u32,
}

impl<'a> Finder<'a> {
    pub(super) fn new(tree: &'a Tree) -> Self {
        let dirs = tree.files().map(|(file, _)| file);
        let roots = dirs
            .flat_map(|dir| tree.entries(dir))
            .filter(|(name, file)| is_root(name) && paths::is(tree, *file, NodeKind::Dir));
        Self {
            tree,
            roots: roots.map(|(_, file)| file).take(ROOTS_MAX).collect(),
            libraries: HashMap::new(),
            left: LOOKUPS_MAX,
        }
    }

    /// Returns the files that a compiled module imports. It lies in the directory [`CACHE`] of `package`, and its name ends with
    /// `tag`.
    pub(super) fn of(&mut self, package: FileId, tag: &[u8], imports: &[Import]) -> Vec<FileId> {
        let mut found = Vec::new();
        for import in imports {
            let mut roots = self.roots.clone();
            if let Some(above) = import.level.checked_sub(1) {
                roots = self.above(package, above).into_iter().collect();
            } else if let Some(top) = self.top(package, tag) {
                // What lies beside the package that it is of.
                roots.push(top);
            }
            let before = found.len();
            for root in roots {
                if self.import(root, tag, import, &mut found) {
                    break;
                }
                found.truncate(before);
            }
        }
        found
    }

    /// Returns the compiled modules that each program of an interpreter of this name, `python3.11`, begins with.
    pub(super) fn of_interpreter(&mut self, name: &[u8]) -> Vec<FileId> {
        let minor = name.strip_prefix(INTERPRETER).map(std::str::from_utf8);
        let Some(minor) = minor.and_then(|minor| minor.ok()?.parse::<u8>().ok()) else {
            return Vec::new();
        };
        let tag = format!("cpython-3{minor}.pyc");
        let roots = self.roots.clone();
        let others: &[&[u8]] = if minor < 11 { &BEFORE_3_11 } else { &[] };
        let imports = AT_ITS_START.iter().chain(others);
        let imports: Vec<_> = imports
            .map(|module| Import {
                module: module.to_vec(),
                ..Import::default()
            })
            .collect();
        // A module with the tag of this release lies in a library of this release.
        let library = roots.into_iter().find(|root| {
            let found = self.child(*root, tag.as_bytes(), AT_ITS_START[0]);
            found.0.is_some()
        });
        library.map_or_else(Vec::new, |library| {
            self.of(library, tag.as_bytes(), &imports)
        })
    }

    /// Adds what an import finds in a directory; returns whether it is there.
    fn import(
        &mut self,
        root: FileId,
        tag: &[u8],
        import: &Import,
        found: &mut Vec<FileId>,
    ) -> bool {
        let mut at = Some(root);
        let names = import.module.split(|byte| *byte == b'.');
        let names = names.filter(|name| !name.is_empty());
        for name in names.take(LEVELS_MAX) {
            let Some(dir) = at else {
                // An attribute of a module, as it seems.
                return true;
            };
            let (module, package) = self.child(dir, tag, name);
            if module.is_none() && package.is_none() {
                return false;
            }
            found.extend(module);
            at = package;
        }
        if let Some(dir) = at {
            if import.module.is_empty() {
                found.extend(self.compiled(dir, tag, PACKAGE));
            }
            for name in &import.taken {
                found.extend(self.child(dir, tag, name).0);
            }
        }
        true
    }

    /// Returns the file of a module in a directory, and its own directory if it is a package.
    fn child(&mut self, dir: FileId, tag: &[u8], name: &[u8]) -> (Option<FileId>, Option<FileId>) {
        let Some(left) = self.left.checked_sub(1) else {
            return (None, None);
        };
        self.left = left;
        let sub = self.tree.child(dir, name);
        let sub = sub.filter(|sub| paths::is(self.tree, *sub, NodeKind::Dir));
        if let Some(sub) = sub
            && let Some(file) = self.compiled(sub, tag, PACKAGE)
        {
            return (Some(file), Some(sub));
        }
        let library = self.libraries_in(dir).get(name).copied();
        let file = library.or_else(|| self.compiled(dir, tag, name));
        // A directory without a module of its own has modules nevertheless.
        (file, sub.filter(|_| file.is_none()))
    }

    /// Returns the compiled file of a module in a directory.
    fn compiled(&self, dir: FileId, tag: &[u8], name: &[u8]) -> Option<FileId> {
        let cache = self.tree.child(dir, CACHE)?;
        let file = [name, b".", tag].concat();
        let found = self.tree.child(cache, &file)?;
        paths::is(self.tree, found, NodeKind::File).then_some(found)
    }

    /// Returns the modules of a directory that are libraries, by name.
    fn libraries_in(&mut self, dir: FileId) -> &BTreeMap<&'a [u8], FileId> {
        let tree = self.tree;
        self.libraries.entry(dir).or_insert_with(|| {
            let libraries = tree.entries(dir).filter(|(name, file)| {
                name.ends_with(b".so") && paths::is(tree, *file, NodeKind::File)
            });
            let named = libraries.filter_map(|(name, file)| {
                let end = name.iter().position(|byte| *byte == b'.')?;
                Some((&name[..end], file))
            });
            named.collect()
        })
    }

    /// Returns the package so many levels above another one.
    fn above(&self, mut package: FileId, levels: u32) -> Option<FileId> {
        if levels as usize > LEVELS_MAX {
            return None;
        }
        for _ in 0..levels {
            package = self.tree.parent(package).ok()?;
        }
        Some(package)
    }

    /// Returns the directory that the outermost package lies in which a directory belongs to.
    fn top(&self, mut dir: FileId, tag: &[u8]) -> Option<FileId> {
        for _ in 0..LEVELS_MAX {
            if self.compiled(dir, tag, PACKAGE).is_none() {
                return Some(dir);
            }
            dir = self.tree.parent(dir).ok()?;
        }
        None
    }
}

fn is_root(name: &[u8]) -> bool {
    let is_release = name
        .strip_prefix(RELEASE)
        .is_some_and(|rest| rest.iter().all(|b| b.is_ascii_digit() || *b == b'.'));
    is_release || DIRECTORIES.contains(&name)
}

#[cfg(test)]
mod tests {
    use blocks::testing::{Node, tree};

    use super::*;

    const TAG: &[u8] = b"cpython-311.pyc";

    #[test]
    fn modules_packages_and_libraries_are_found() {
        let compiled = |name: &str| format!("{name}.cpython-311.pyc");
        let (init, ssl, late) = (compiled("__init__"), compiled("ssl"), compiled("events"));
        let nodes = [
            Node::dir(&[("usr", 1), ("app", 12)]),
            Node::dir(&[("python3.11", 2), ("python3", 14)]),
            Node::dir(&[
                ("__pycache__", 3),
                ("asyncio", 5),
                ("lib-dynload", 9),
                ("space", 11),
            ]),
            Node::dir(&[(&ssl, 4)]),
            Node::file(1),
            Node::dir(&[("__pycache__", 6)]),
            Node::dir(&[(&init, 7), (&late, 8)]),
            Node::file(2),
            Node::file(3),
            Node::dir(&[("_ssl.cpython-311-x86_64-linux-gnu.so", 10)]),
            Node::file(4),
            Node::dir(&[]),
            Node::dir(&[("__pycache__", 13)]),
            Node::dir(&[(&late, 15)]),
            Node::dir(&[]),
            Node::file(5),
        ];
        let tree = tree(&nodes).unwrap();
        let mut finder = Finder::new(&tree);
        let mut of = |package: u32, module: &str, level, taken: &[&str]| {
            let import = Import {
                module: module.as_bytes().to_vec(),
                level,
                taken: taken.iter().map(|name| name.as_bytes().to_vec()).collect(),
            };
            let found = finder.of(FileId(package), TAG, &[import]);
            found.into_iter().map(|file| file.0).collect::<Vec<_>>()
        };
        let none: [u32; 0] = [];
        assert_eq!(of(2, "ssl", 0, &["create"]), [4]);
        assert_eq!(of(2, "_ssl", 0, &[]), [10]);
        assert_eq!(of(2, "asyncio", 0, &["events", "run"]), [7, 8]);
        assert_eq!(of(2, "asyncio.events", 0, &[]), [7, 8]);
        assert_eq!(of(2, "asyncio.nothing", 0, &[]), none);
        assert_eq!(of(2, "ssl.context", 0, &[]), [4]);
        assert_eq!(of(2, "gone", 0, &["ssl"]), none);
        // From the package itself, the one above, and one that is not there.
        assert_eq!(of(5, "", 1, &["events"]), [7, 8]);
        assert_eq!(of(5, "events", 1, &[]), [8]);
        assert_eq!(of(5, "ssl", 2, &[]), [4]);
        assert_eq!(of(5, "ssl", u32::MAX, &[]), none);
        // Beside a script that lies in no directory of modules.
        assert_eq!(of(12, "events", 0, &[]), [15]);
        assert_eq!(of(12, "", 0, &[]), none);
        assert_eq!(of(12, "...", 0, &[]), none);
        let deep = "asyncio.".repeat(1000);
        assert_eq!(of(2, &deep, 0, &[]), none);
    }
}
