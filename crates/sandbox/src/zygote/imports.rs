//! What programs import of their packages: which modules a Zygote of these packages imports besides the topmost ones.
//!
//! Programs name the modules themselves, so the names are hostile input: they are bounded, checked, and looked for
//! in the packages only. A Zygote has only what *every* program with its packages has imported so far: what a module
//! does to the interpreter, it does to those only who have it, too.

use std::collections::{BTreeSet, HashMap};

use crate::packages::Packages;

/// The most modules that are kept of one set of packages. Django's requests import some 300 of it.
pub const IMPORTS_MAX: usize = 1024;

/// The longest name of a module. Python bounds none; real ones have below 100 bytes.
const NAME_MAX_BYTES: usize = 200;

/// Sets of packages that are remembered, each with at most [`IMPORTS_MAX`] names.
const SETS_MAX: usize = 256;

/// What the modules of two programs must have in common to be the same ones.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ImportKey {
    pub(crate) base: String,
    pub(crate) interpreter: String,
    pub(crate) store: Option<std::path::PathBuf>,
    pub(crate) packages: Packages,
}

/// The modules that programs of each set of packages have imported.
#[derive(Debug, Default)]
pub(crate) struct Imports {
    common: HashMap<ImportKey, BTreeSet<String>>,
}

impl Imports {
    /// Notes what one more program has imported. Names that cannot be a module's are left out.
    pub(crate) fn note(&mut self, key: ImportKey, modules: impl IntoIterator<Item = String>) {
        let modules = modules.into_iter().filter(|name| is_module(name));
        let modules: BTreeSet<String> = modules.take(IMPORTS_MAX).collect();
        if let Some(common) = self.common.get_mut(&key) {
            common.retain(|name| modules.contains(name));
            return;
        }
        if self.common.len() >= SETS_MAX {
            self.common.clear();
        }
        self.common.insert(key, modules);
    }

    /// Has no Zygote of these packages import more than their topmost modules from now on.
    pub(crate) fn refuse(&mut self, key: ImportKey) {
        self.note(key, []);
    }

    /// Returns what all programs of these packages have imported.
    pub(crate) fn common(&self, key: &ImportKey) -> Vec<String> {
        let common = self.common.get(key);
        common.map_or_else(Vec::new, |common| common.iter().cloned().collect())
    }
}

/// Returns whether a name can be that of a module: words that are separated by single dots.
fn is_module(name: &str) -> bool {
    let is_word = |word: &str| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        !word.is_empty() && word.bytes().all(plain)
    };
    name.len() <= NAME_MAX_BYTES && name.split('.').all(is_word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(package: &str) -> ImportKey {
        ImportKey {
            base: "debian".to_owned(),
            interpreter: "/usr/bin/python3".to_owned(),
            store: None,
            packages: Packages::from([package.to_owned()]),
        }
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn only_what_all_have_imported_is_kept() {
        let mut imports = Imports::default();
        assert!(imports.common(&key("a==1")).is_empty());
        imports.note(key("a==1"), names(&["a.x", "a.y", "a.z"]));
        assert_eq!(imports.common(&key("a==1")), ["a.x", "a.y", "a.z"]);
        imports.note(key("a==1"), names(&["a.y", "a.z", "a.more"]));
        assert_eq!(imports.common(&key("a==1")), ["a.y", "a.z"]);
        // Another version is another package.
        assert!(imports.common(&key("a==2")).is_empty());
        imports.refuse(key("a==1"));
        imports.note(key("a==1"), names(&["a.y"]));
        assert!(imports.common(&key("a==1")).is_empty());
    }

    #[test]
    fn names_are_bounded_and_plain() {
        let mut imports = Imports::default();
        let wrong = ["", ".a", "a..b", "a.", "a/b", "a b", "é", &"a".repeat(201)];
        imports.note(key("a==1"), names(&wrong));
        assert!(imports.common(&key("a==1")).is_empty());
        let many = (0..2 * IMPORTS_MAX).map(|number| format!("a.m{number}"));
        imports.note(key("b==1"), many);
        assert_eq!(imports.common(&key("b==1")).len(), IMPORTS_MAX);
        for number in 0..2 * SETS_MAX {
            imports.note(key(&format!("p=={number}")), names(&["p"]));
        }
        assert!(imports.common.len() <= SETS_MAX);
    }
}
