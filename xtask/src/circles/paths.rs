//! The paths that an item names within its crate.

use syn::Item;
use syn::visit::{self, Visit};

/// Paths that begin with `crate`, `self` or `super`: all others need a `use`.
#[derive(Debug, Default)]
pub(super) struct Named(pub(super) Vec<Vec<String>>);

/// Returns what an item names. What stands in a macro's arguments is not seen.
pub(super) fn named(item: &Item) -> Named {
    let mut named = Named::default();
    named.visit_item(item);
    named
}

impl<'ast> Visit<'ast> for Named {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names = path
            .segments
            .iter()
            .map(|segment| segment.ident.to_string());
        let names: Vec<_> = names.collect();
        let begins = names.first().map(String::as_str);
        if names.len() > 1 && matches!(begins, Some("crate" | "self" | "super")) {
            self.0.push(names);
        }
        visit::visit_path(self, path);
    }
}
