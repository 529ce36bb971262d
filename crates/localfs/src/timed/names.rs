//! Names and attributes within a deadline.
//!
//! As with reads, a question is handed to a helper only if it cannot be answered without asking
//! the source.

use std::ops::ControlFlow;

use blocks::{Attr, EntryRef, FileId, Lifetime, Namespace, NodeKind, SourceError};

use super::TimedSource;

/// Entries that a helper lists at a time: about as many as the kernel takes at once. What is listed
/// beyond is listed again.
const BATCH: usize = 64;

/// Names of which some are known without asking the source.
pub trait PromptNames: Namespace {
    /// Looks a name up like [`Namespace::lookup`] if the answer is known.
    fn lookup_now(&self, dir: FileId, name: &[u8]) -> Option<FileId>;

    /// Returns what [`Namespace::attr`] does if it is known.
    fn attr_now(&self, file: FileId) -> Option<Attr>;
}

/// [`EntryRef`], with a name of its own.
struct Entry {
    name: Vec<u8>,
    file: FileId,
    kind: NodeKind,
    next: u64,
}

impl<N: PromptNames + 'static> TimedSource<N> {
    /// [`within`](Self::within), about one file.
    fn ask<T: Send + 'static>(
        &self,
        file: FileId,
        doing: &'static str,
        ask: impl FnOnce(&N) -> Result<T, SourceError> + Send + 'static,
    ) -> Result<T, SourceError> {
        self.within(doing, ask)
            .unwrap_or_else(|error| Err(error.about(file)))
    }
}

impl<N: PromptNames + 'static> Namespace for TimedSource<N> {
    fn lifetime(&self) -> Lifetime {
        self.source().lifetime()
    }

    fn lookup(&self, dir: FileId, name: &[u8]) -> Result<Option<FileId>, SourceError> {
        if let Some(file) = self.source().lookup_now(dir, name) {
            return Ok(Some(file));
        }
        let name = name.to_vec();
        self.ask(dir, "looking up a name", move |names| {
            names.lookup(dir, &name)
        })
    }

    fn attr(&self, file: FileId) -> Result<Attr, SourceError> {
        if let Some(attr) = self.source().attr_now(file) {
            return Ok(attr);
        }
        self.ask(file, "reading the attributes", move |names| {
            names.attr(file)
        })
    }

    fn parent(&self, dir: FileId) -> Result<FileId, SourceError> {
        self.ask(dir, "finding the parent", move |names| names.parent(dir))
    }

    fn path(&self, file: FileId) -> Option<Vec<u8>> {
        self.source().path(file)
    }

    fn paths(&self, file: FileId) -> Option<Vec<Vec<u8>>> {
        self.source().paths(file)
    }

    fn list(
        &self,
        dir: FileId,
        mut cursor: u64,
        visit: &mut dyn FnMut(EntryRef<'_>) -> ControlFlow<()>,
    ) -> Result<(), SourceError> {
        loop {
            let batch = self.ask(dir, "listing", move |names| list(names, dir, cursor))?;
            for entry in &batch {
                let shown = EntryRef {
                    name: &entry.name,
                    file: entry.file,
                    kind: entry.kind,
                    next: entry.next,
                };
                if visit(shown).is_break() {
                    return Ok(());
                }
                cursor = entry.next;
            }
            if batch.len() < BATCH {
                return Ok(());
            }
        }
    }

    fn target(&self, link: FileId) -> Result<Vec<u8>, SourceError> {
        self.ask(link, "reading the link", move |names| names.target(link))
    }

    fn xattr(&self, file: FileId, name: &[u8]) -> Result<Option<Vec<u8>>, SourceError> {
        let name = name.to_vec();
        self.ask(file, "reading an attribute", move |names| {
            names.xattr(file, &name)
        })
    }

    fn xattr_names(&self, file: FileId) -> Result<Vec<u8>, SourceError> {
        self.ask(file, "listing the attributes", move |names| {
            names.xattr_names(file)
        })
    }

    fn generation(&self, file: FileId) -> Option<u32> {
        self.source().generation(file)
    }

    fn has_xattrs(&self) -> bool {
        self.source().has_xattrs()
    }

    fn has_access_lists(&self) -> bool {
        self.source().has_access_lists()
    }
}

/// Lists a batch of a directory from `cursor` on.
fn list(names: &impl Namespace, dir: FileId, cursor: u64) -> Result<Vec<Entry>, SourceError> {
    let mut batch = Vec::new();
    names.list(dir, cursor, &mut |entry| {
        batch.push(Entry {
            name: entry.name.to_vec(),
            file: entry.file,
            kind: entry.kind,
            next: entry.next,
        });
        if batch.len() < BATCH {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    })?;
    Ok(batch)
}
