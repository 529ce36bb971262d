//! The directory that a source of the service was made of. It is not trusted: its content is
//! verified, so it may have changed, and be on a file system that hangs.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use blockservice::client::Origin;
use localfs::{Patience, TimedSource};
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sys::stat::Mode;

/// An opened directory, read with a deadline.
#[derive(Debug)]
pub(super) struct OriginDir(TimedSource<OwnedFd>);

impl OriginDir {
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let dir = open(path, flags, Mode::empty());
        let dir = dir.with_context(|| format!("opening the origin {}", path.display()))?;
        Ok(Self(TimedSource::new(Arc::new(dir), Patience::default())))
    }
}

impl Origin for OriginDir {
    fn read(&self, path: &[u8], offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let path = OsStr::from_bytes(path).to_owned();
        let read = move |dir: &OwnedFd| {
            // A pipe in the file's place must not be waited for.
            let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
            let beneath = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS;
            let how = OpenHow::new().flags(flags).resolve(beneath);
            let file = File::from(openat2(dir, Path::new(&path), how)?);
            let mut bytes = vec![0; len];
            let mut done = 0;
            while done < len {
                match file.read_at(&mut bytes[done..], offset + done as u64)? {
                    0 => break,
                    read => done += read,
                }
            }
            bytes.truncate(done);
            Ok(bytes)
        };
        let read = self.0.within("reading the origin", read);
        read.map_err(io::Error::other)?
    }
}
