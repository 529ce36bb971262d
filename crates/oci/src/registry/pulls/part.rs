//! The temporary file of a pull, which an interrupted pull leaves.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use blocks::Digest;
use sha2::{Digest as _, Sha256};

use super::{RegistryError, Sink, Unfinished};
use crate::{BlobError, Descriptor};

/// A file that is being filled.
#[derive(Debug)]
pub(super) struct Part {
    file: File,
    path: PathBuf,
    hasher: Sha256,
    len: u64,
    /// Bytes that came this time.
    pub(super) fetched: u64,
}

impl Part {
    /// Opens the file of an earlier pull, or a new one, and locks it.
    pub(super) fn open(to: &Path, size: u64) -> Result<Self, RegistryError> {
        let mut name = to.as_os_str().to_owned();
        name.push(".part");
        let path = PathBuf::from(name);
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path);
        let file = opened.map_err(failed("opening", &path))?;
        file.try_lock().map_err(|error| {
            let busy = io::Error::new(io::ErrorKind::ResourceBusy, error);
            failed("taking for this pull (another one has it)", &path)(busy)
        })?;
        let mut part = Self {
            file,
            path,
            hasher: Sha256::new(),
            len: 0,
            fetched: 0,
        };
        part.take_in(size)?;
        Ok(part)
    }

    /// Hashes what is there already, so that the whole can be verified.
    fn take_in(&mut self, size: u64) -> Result<(), RegistryError> {
        let Self { file, path, .. } = self;
        let found = file.metadata().map_err(failed("reading", path))?.len();
        if found > size {
            return self.empty();
        }
        let read = io::copy(file, &mut self.hasher);
        self.len = read.map_err(failed("reading", &self.path))?;
        Ok(())
    }

    fn empty(&mut self) -> Result<(), RegistryError> {
        let Self { file, path, .. } = self;
        let emptied = file.set_len(0).and_then(|()| file.seek(SeekFrom::Start(0)));
        emptied.map_err(failed("emptying", path))?;
        self.hasher = Sha256::new();
        self.len = 0;
        Ok(())
    }

    /// Renames the file if it is valid; removes it if not.
    pub(super) fn finish(self, to: &Path, expected: Digest) -> Result<(), Unfinished> {
        let found = Digest(self.hasher.clone().finalize().into());
        if found != expected {
            self.remove();
            return Err(Unfinished::Wrong(BlobError::Digest { expected, found }));
        }
        let renamed = std::fs::rename(&self.path, to);
        renamed.map_err(|error| Unfinished::Here(failed("renaming", &self.path)(error)))
    }

    /// Nobody goes on with wrong bytes. If it cannot be removed, the next pull finds out again.
    fn remove(&self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            log::warn!("cannot remove {}: {error}", self.path.display());
        }
    }
}

impl Sink for Part {
    fn len(&self) -> u64 {
        self.len
    }

    fn restart(&mut self) -> Result<u64, RegistryError> {
        self.empty().map(|()| 0)
    }

    fn append(&mut self, bytes: &[u8], blob: &Descriptor) -> Result<(), Unfinished> {
        let (expected, found) = (blob.size, self.len + bytes.len() as u64);
        if found > expected {
            self.remove();
            return Err(Unfinished::Wrong(BlobError::Length { expected, found }));
        }
        let written = self.file.write_all(bytes);
        written.map_err(|error| Unfinished::Here(failed("writing", &self.path)(error)))?;
        self.hasher.update(bytes);
        self.len = found;
        self.fetched += bytes.len() as u64;
        Ok(())
    }
}

fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RegistryError {
    let path = path.to_owned();
    move |source| RegistryError::File {
        doing,
        path,
        source,
    }
}
