//! Requests of a file system, answered from the disk.

use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;

use blocks::{
    ACCESS_LIST, Attr, EntryRef, FileId, Lifetime, NAME_MAX, Namespace, NodeKind, SourceError,
    SourceErrorKind,
};
use nix::fcntl::{OFlag, readlinkat};
use rawio::xattr;

use super::LiveTree;
use crate::PromptNames;
use crate::shown::{is_name, list_names, stat_shown};

impl LiveTree {
    fn list_disk(
        &self,
        dir: &OwnedFd,
        files: &[Vec<u8>],
        cursor: u64,
        visit: &mut dyn FnMut(EntryRef<'_>) -> ControlFlow<()>,
    ) -> Result<(), SourceError> {
        let from = usize::try_from(cursor).unwrap_or(usize::MAX);
        for (index, name) in files.iter().enumerate().skip(from) {
            if self
                .show(dir, FileId::ROOT, name, index as u64 + 1, visit)?
                .is_break()
            {
                break;
            }
        }
        Ok(())
    }

    /// Shows one name of a directory, if it is still there.
    fn show(
        &self,
        fd: &OwnedFd,
        dir: FileId,
        name: &[u8],
        next: u64,
        visit: &mut dyn FnMut(EntryRef<'_>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, SourceError> {
        let shown = stat_shown(fd, name, self.mount);
        let shown = shown.map_err(|error| SourceError::from_io("listing", error).about(dir))?;
        let Some((stat, attr)) = shown.filter(|_| name.len() <= NAME_MAX) else {
            return Ok(ControlFlow::Continue(()));
        };
        Ok(visit(EntryRef {
            name,
            file: self.meet(fd, (&stat, &attr), dir, name)?,
            kind: attr.kind,
            next,
        }))
    }
}

impl Namespace for LiveTree {
    fn lifetime(&self) -> Lifetime {
        Lifetime::For(self.ttl)
    }

    fn lookup(&self, dir: FileId, name: &[u8]) -> Result<Option<FileId>, SourceError> {
        let doing = "looking up a name";
        if !is_name(name) {
            return Ok(None);
        }
        let Some(fd) = self.open_dir(dir, OFlag::O_PATH, doing)? else {
            return Ok(None);
        };
        let beside = |files: &[Vec<u8>]| dir == FileId::ROOT && !files.iter().any(|f| f == name);
        if self.root.disk_files().is_some_and(beside) {
            return Ok(None);
        }
        let shown = stat_shown(&fd, name, self.mount);
        match shown.map_err(|error| SourceError::from_io(doing, error).about(dir))? {
            Some((stat, attr)) => self.meet(&fd, (&stat, &attr), dir, name).map(Some),
            None => Ok(None),
        }
    }

    fn attr(&self, file: FileId) -> Result<Attr, SourceError> {
        Ok(self.find(file, "reading the attributes")?.attr)
    }

    fn parent(&self, dir: FileId) -> Result<FileId, SourceError> {
        let doing = "finding the parent";
        let found = self.find(dir, doing)?;
        let parent = self.ids.lock().parent(dir);
        parent
            .filter(|_| found.attr.kind == NodeKind::Dir)
            .ok_or_else(|| SourceError::new(SourceErrorKind::NotFound, doing).about(dir))
    }

    fn path(&self, file: FileId) -> Option<Vec<u8>> {
        self.ids.lock().path(file)
    }

    fn list(
        &self,
        dir: FileId,
        cursor: u64,
        visit: &mut dyn FnMut(EntryRef<'_>) -> ControlFlow<()>,
    ) -> Result<(), SourceError> {
        let doing = "listing";
        let failed = |error| SourceError::from_io(doing, error).about(dir);
        let Some(fd) = self.open_dir(dir, OFlag::empty(), doing)? else {
            return Ok(());
        };
        if let Some(files) = self.root.disk_files() {
            return self.list_disk(&fd, files, cursor, visit);
        }
        list_names(&fd, cursor, failed, |name, next| {
            self.show(&fd, dir, name, next, visit)
        })
    }

    fn target(&self, link: FileId) -> Result<Vec<u8>, SourceError> {
        self.ask(link, "reading the link", |found| {
            Ok(readlinkat(&found.dir, found.name.as_slice())?.into_vec())
        })
    }

    fn xattr(&self, file: FileId, name: &[u8]) -> Result<Option<Vec<u8>>, SourceError> {
        if name.is_empty() || name.len() > NAME_MAX || name.contains(&0) {
            return Ok(None);
        }
        self.ask(file, "reading an attribute", |found| {
            let value = xattr::get_at(&found.dir, &found.name, name)?;
            if name == ACCESS_LIST {
                let mut ids = self.ids.lock();
                ids.told_list(file, value.as_deref(), found.attr.ctime);
            }
            Ok(value)
        })
    }

    fn xattr_names(&self, file: FileId) -> Result<Vec<u8>, SourceError> {
        self.ask(file, "listing the attributes", |found| {
            xattr::list_at(&found.dir, &found.name)
        })
    }

    /// One may be set at any time.
    fn has_xattrs(&self) -> bool {
        true
    }

    fn has_access_lists(&self) -> bool {
        true
    }
}

/// Nothing is known without asking: it may have changed.
impl PromptNames for LiveTree {
    fn lookup_now(&self, _: FileId, _: &[u8]) -> Option<FileId> {
        None
    }

    fn attr_now(&self, _: FileId) -> Option<Attr> {
        None
    }
}
