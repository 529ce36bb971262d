//! The modules of a crate, and what each file names of the others.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use syn::{Item, ItemMod, UseTree};

use super::Imports;
use super::paths::{Named, named};

/// How many re-exports one name is followed through: more would be a circle of them.
const RE_EXPORTS_MAX: usize = 16;

/// One module.
#[derive(Debug, Default)]
struct Module {
    /// Its names from the crate's root on.
    path: Vec<String>,
    children: BTreeMap<String, usize>,
    parent: Option<usize>,
    /// What `use` brings in, by the name that it has here: others may name it through this module.
    uses: BTreeMap<String, Vec<String>>,
    /// Paths that the module names.
    named: Vec<Vec<String>>,
}

/// The modules of a crate, the root first.
#[derive(Debug, Default)]
pub(super) struct Modules(Vec<Module>);

impl Modules {
    /// Reads a library from its root file on.
    ///
    /// # Errors
    /// If a file cannot be read or is not Rust.
    pub(super) fn load(library: &Path) -> anyhow::Result<Self> {
        let mut modules = Self(vec![Module::default()]);
        let folder = library.parent().unwrap_or(Path::new("."));
        modules.file(0, library, folder)?;
        Ok(modules)
    }

    /// Returns a module's path within the crate, as `a::b`.
    pub(super) fn name(&self, at: usize) -> String {
        self.0[at].path.join("::")
    }

    /// Returns which module imports which; a module and those below it do not count.
    pub(super) fn imports(&self) -> Imports {
        let mut imports = Imports::new();
        for (from, module) in self.0.iter().enumerate() {
            let targets = module.named.iter();
            let targets = targets.filter_map(|path| self.resolve(from, path, RE_EXPORTS_MAX));
            let others = targets.filter(|to| !self.is_family(from, *to));
            imports.insert(from, others.collect::<BTreeSet<_>>());
        }
        imports
    }

    /// Whether one of two modules is the other, or above it.
    fn is_family(&self, one: usize, other: usize) -> bool {
        let (one, other) = (&self.0[one].path, &self.0[other].path);
        one.starts_with(other) || other.starts_with(one)
    }

    /// Reads one file as the module `at`; its children lie in `folder`.
    fn file(&mut self, at: usize, path: &Path, folder: &Path) -> anyhow::Result<()> {
        let text =
            fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        let file = syn::parse_file(&text).with_context(|| format!("parsing {}", path.display()))?;
        self.items(at, &file.items, folder)
    }

    fn items(&mut self, at: usize, items: &[Item], folder: &Path) -> anyhow::Result<()> {
        for item in items {
            match item {
                Item::Mod(child) if !is_test(&child.attrs) => self.child(at, child, folder)?,
                Item::Mod(_) => {}
                Item::Use(import) if !is_test(&import.attrs) => {
                    self.import(at, &mut Vec::new(), &import.tree);
                }
                Item::Use(_) => {}
                other => {
                    let Named(paths) = named(other);
                    self.0[at].named.extend(paths);
                }
            }
        }
        Ok(())
    }

    fn child(&mut self, parent: usize, child: &ItemMod, folder: &Path) -> anyhow::Result<()> {
        let name = child.ident.to_string();
        let at = self.0.len();
        let path = [&self.0[parent].path[..], std::slice::from_ref(&name)].concat();
        self.0.push(Module {
            path,
            parent: Some(parent),
            ..Module::default()
        });
        self.0[parent].children.insert(name.clone(), at);
        let below = folder.join(&name);
        if let Some((_, items)) = &child.content {
            return self.items(at, items, &below);
        }
        let beside: PathBuf = folder.join(format!("{name}.rs"));
        let file = if beside.exists() {
            beside
        } else {
            below.join("mod.rs")
        };
        self.file(at, &file, &below)
    }

    /// Notes what one tree of a `use` brings in.
    fn import(&mut self, at: usize, before: &mut Vec<String>, tree: &UseTree) {
        let (leaf, name) = match tree {
            UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.import(at, before, &path.tree);
                before.pop();
                return;
            }
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.import(at, before, tree);
                }
                return;
            }
            UseTree::Name(leaf) => (Some(leaf.ident.to_string()), Some(leaf.ident.to_string())),
            UseTree::Rename(leaf) => (Some(leaf.ident.to_string()), Some(leaf.rename.to_string())),
            UseTree::Glob(_) => (None, None),
        };
        let mut path = before.clone();
        // `use a::{self}` names `a`.
        path.extend(leaf.filter(|leaf| leaf != "self"));
        let name = name.filter(|name| name != "self");
        if let Some(name) = name.or_else(|| path.last().cloned()) {
            self.0[at].uses.insert(name, path.clone());
        }
        self.0[at].named.push(path);
    }

    /// Returns the module that defines what `path` names in module `at`; `None` if that is another
    /// crate's.
    fn resolve(&self, at: usize, path: &[String], depth: usize) -> Option<usize> {
        let mut here = at;
        let mut rest = path.iter();
        let mut is_first = true;
        while let Some(segment) = rest.clone().next() {
            let module = &self.0[here];
            match segment.as_str() {
                "crate" if is_first => here = 0,
                "self" if is_first => {}
                "super" => here = module.parent?,
                name => {
                    if let Some(child) = module.children.get(name) {
                        here = *child;
                    } else if let Some(target) = module.uses.get(name) {
                        // A `use` of the very same name, as in `use clap::clap;`, is another crate's.
                        let known = depth > 0 && !(here == at && target == path);
                        let target: Vec<_> = target.iter().chain(rest.skip(1)).cloned().collect();
                        return known.then(|| self.resolve(here, &target, depth - 1))?;
                    } else {
                        // An item of this module, or the first name is another crate's.
                        return (!is_first).then_some(here);
                    }
                }
            }
            is_first = false;
            rest.next();
        }
        Some(here)
    }
}

/// Whether an item is there in tests only.
fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute
                .parse_args::<syn::Path>()
                .is_ok_and(|path| path.is_ident("test"))
    })
}
