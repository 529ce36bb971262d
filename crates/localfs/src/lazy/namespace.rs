//! Requests of a file system, answered from memory if repeated, otherwise from the disk.

use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;

use blocks::{
    ACCESS_LIST, Attr, EntryRef, FileId, Lifetime, NAME_MAX, Namespace, NodeKind, SourceError,
    SourceErrorKind,
};
use nix::errno::Errno;
use nix::fcntl::{OFlag, readlinkat};
use rawio::xattr;

use super::LazyTree;
use crate::PromptNames;
use crate::shown::{is_name, list_names, stat_shown};

impl LazyTree {
    /// Returns what `name` is in a directory that is open as `fd`.
    fn find(
        &self,
        fd: &OwnedFd,
        dir: FileId,
        name: &[u8],
        doing: &'static str,
    ) -> Result<Option<FileId>, SourceError> {
        let known = self.known.lock().child(dir, name);
        if known.is_some() {
            return Ok(known);
        }
        let shown = stat_shown(fd, name, self.mount);
        match shown.map_err(|error| SourceError::from_io(doing, error).about(dir))? {
            Some((stat, _)) => self.meet(dir, name, &stat).map(Some),
            None => Ok(None),
        }
    }

    /// Whether this is the directory that is shown for a disk image, which is not the one on the
    /// disk.
    fn is_made_up(&self, file: FileId) -> bool {
        file == FileId::ROOT && self.root.disk_files().is_some()
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
        let found = if is_name(name) {
            self.find(fd, dir, name, "listing")?
        } else {
            None
        };
        let Some(file) = found else {
            return Ok(ControlFlow::Continue(()));
        };
        Ok(visit(EntryRef {
            name,
            file,
            kind: self.attr(file)?.kind,
            next,
        }))
    }
}

impl Namespace for LazyTree {
    fn lifetime(&self) -> Lifetime {
        Lifetime::Forever
    }

    fn lookup(&self, dir: FileId, name: &[u8]) -> Result<Option<FileId>, SourceError> {
        let doing = "looking up a name";
        if self.attr(dir)?.kind != NodeKind::Dir || !is_name(name) {
            return Ok(None);
        }
        let known = self.known.lock().child(dir, name);
        if known.is_some() {
            return Ok(known);
        }
        let beside = |files: &[Vec<u8>]| !files.iter().any(|file| file == name);
        if self.root.disk_files().is_some_and(beside) {
            return Ok(None);
        }
        match self.open_dir(dir, OFlag::O_PATH, doing)? {
            Some(fd) => self.find(&fd, dir, name, doing),
            None => Ok(None),
        }
    }

    fn attr(&self, file: FileId) -> Result<Attr, SourceError> {
        let attr = self.known.lock().attr(file);
        attr.ok_or_else(|| unknown("reading the attributes", file))
    }

    fn parent(&self, dir: FileId) -> Result<FileId, SourceError> {
        let parent = self.known.lock().dir_of(dir);
        parent.ok_or_else(|| unknown("finding the parent", dir))
    }

    fn path(&self, file: FileId) -> Option<Vec<u8>> {
        self.known.lock().path(file)
    }

    fn paths(&self, file: FileId) -> Option<Vec<Vec<u8>>> {
        self.known.lock().paths(file)
    }

    fn list(
        &self,
        dir: FileId,
        cursor: u64,
        visit: &mut dyn FnMut(EntryRef<'_>) -> ControlFlow<()>,
    ) -> Result<(), SourceError> {
        let doing = "listing";
        if self.attr(dir)?.kind != NodeKind::Dir {
            return Ok(());
        }
        let Some(fd) = self.open_dir(dir, OFlag::empty(), doing)? else {
            return Ok(());
        };
        let Some(files) = self.root.disk_files() else {
            let failed = |error| SourceError::from_io(doing, error).about(dir);
            return list_names(&fd, cursor, failed, |name, next| {
                self.show(&fd, dir, name, next, visit)
            });
        };
        let from = usize::try_from(cursor).unwrap_or(usize::MAX);
        for (name, next) in files.iter().zip(1..).skip(from) {
            if self.show(&fd, dir, name, next, visit)?.is_break() {
                break;
            }
        }
        Ok(())
    }

    fn target(&self, link: FileId) -> Result<Vec<u8>, SourceError> {
        let doing = "reading the link";
        if self.attr(link)?.kind != NodeKind::Symlink {
            return Err(unknown(doing, link));
        }
        self.ask(link, doing, |(dir, name)| {
            match readlinkat(dir, name.as_slice()) {
                // Something else has the name by now.
                Err(Errno::EINVAL) => Err(Errno::ENOENT.into()),
                read => Ok(read?.into_vec()),
            }
        })
    }

    fn xattr(&self, file: FileId, name: &[u8]) -> Result<Option<Vec<u8>>, SourceError> {
        let possible = !name.is_empty() && name.len() <= NAME_MAX && !name.contains(&0);
        if !possible || self.is_made_up(file) {
            return Ok(None);
        }
        let is_list = name == ACCESS_LIST;
        if is_list && let Some(list) = self.known.lock().access_list(file) {
            return Ok(list);
        }
        let value = self.ask(file, "reading an attribute", |(dir, at)| {
            xattr::get_at(dir, at, name)
        })?;
        Ok(match is_list {
            true => self.known.lock().note_access_list(file, value),
            false => value,
        })
    }

    fn xattr_names(&self, file: FileId) -> Result<Vec<u8>, SourceError> {
        if self.is_made_up(file) {
            return Ok(Vec::new());
        }
        self.ask(file, "listing the attributes", |(dir, at)| {
            xattr::list_at(dir, at)
        })
    }

    /// One may turn up wherever nobody looked yet.
    fn has_xattrs(&self) -> bool {
        true
    }

    fn has_access_lists(&self) -> bool {
        true
    }
}

impl PromptNames for LazyTree {
    fn lookup_now(&self, dir: FileId, name: &[u8]) -> Option<FileId> {
        self.known.lock().child(dir, name)
    }

    fn attr_now(&self, file: FileId) -> Option<Attr> {
        self.known.lock().attr(file)
    }
}

fn unknown(doing: &'static str, file: FileId) -> SourceError {
    SourceError::new(SourceErrorKind::NotFound, doing).about(file)
}
