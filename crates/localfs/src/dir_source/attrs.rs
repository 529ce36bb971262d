//! The attributes of a file at one moment, extended ones included.

use std::io;

use blocks::{AllAttrs, AttrSource, FileId, SourceError, SourceErrorKind};
use nix::errno::Errno;
use nix::fcntl::{OFlag, ResolveFlag};
use rawio::stat::stat_at;

use super::{DirSource, Files};
use crate::attr::attr_of;
use crate::open::{gone, open_beneath};
use crate::scan::{self, xattrs};

/// How often a file is asked again whose attributes changed while they were read.
const ATTEMPTS: usize = 4;
/// What an error was met in.
const DOING: &str = "reading all attributes";

impl AttrSource for DirSource {
    fn all_attrs(&self, file: FileId) -> Result<AllAttrs, SourceError> {
        let path = self.files.names.path(file);
        let gone_now = || SourceError::new(SourceErrorKind::NotFound, DOING).about(file);
        self.all_attrs_at(file, &path.ok_or_else(gone_now)?)
    }

    fn all_attrs_at(&self, file: FileId, path: &[u8]) -> Result<AllAttrs, SourceError> {
        let attrs = self.files.all_attrs(path);
        attrs.map_err(|error| SourceError::from_io(DOING, gone(error)).about(file))
    }
}

impl Files {
    fn all_attrs(&self, path: &[u8]) -> io::Result<AllAttrs> {
        if let Some(files) = self.root.disk_files().filter(|_| path.is_empty()) {
            return Ok(AllAttrs {
                attr: scan::disk_root(&*self.root, files)?,
                xattrs: Vec::new(),
            });
        }
        let (dir, name) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (&path[..slash], &path[slash + 1..]),
            None => (&b""[..], path),
        };
        let way = OFlag::O_PATH | OFlag::O_DIRECTORY;
        let dir = open_beneath(&*self.root, dir, way, ResolveFlag::empty())?;
        let stat = || {
            let attr = attr_of(&stat_at(&dir, name)?);
            attr.ok_or_else(|| io::Error::from(Errno::ENOENT))
        };
        let mut before = stat()?;
        for _ in 0..ATTEMPTS {
            let xattrs = xattrs::read(&dir, name)?;
            let after = stat()?;
            // Reading it moves its access time, at most.
            let same = (
                after.version(),
                after.kind,
                after.perm,
                after.uid,
                after.gid,
            ) == (
                before.version(),
                before.kind,
                before.perm,
                before.uid,
                before.gid,
            );
            if same {
                let attr = after;
                return Ok(AllAttrs { attr, xattrs });
            }
            before = after;
        }
        Err(Errno::EAGAIN.into())
    }
}
