//! Where the parts of an image lie: files, or pieces of one.

use std::fs::File;
use std::io::{self, Read, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::ImageError;

/// A run of bytes in a file.
#[derive(Clone, Debug)]
pub(crate) struct FileRange {
    pub(crate) path: Arc<Path>,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

impl FileRange {
    /// Opens it for reading from its start to its end.
    pub(crate) fn open(&self) -> io::Result<io::Take<File>> {
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(self.offset))?;
        Ok(file.take(self.len))
    }

    /// Reads all of it, if it has at most `limit` bytes.
    pub(crate) fn read(&self, what: &'static str, limit: u64) -> Result<Vec<u8>, ImageError> {
        if self.len > limit {
            let bytes = self.len;
            return Err(ImageError::TooLarge { what, bytes, limit });
        }
        let mut bytes = Vec::new();
        self.open()
            .and_then(|mut file| file.read_to_end(&mut bytes))
            .map_err(|error| ImageError::io(&self.path, error))?;
        Ok(bytes)
    }
}

/// The named files of an image: in a directory, or in a tar.
pub(crate) trait Files {
    /// Returns what all of it is called in messages.
    fn path(&self) -> &Path;

    /// Returns the place of the file of this name, if there is one.
    ///
    /// # Errors
    /// If it cannot be determined.
    fn find(&self, name: &str) -> Result<Option<FileRange>, ImageError>;

    /// Reads a small file.
    ///
    /// # Errors
    /// If it is not there, larger than `limit`, or cannot be read.
    fn read(&self, name: &str, what: &'static str, limit: u64) -> Result<Vec<u8>, ImageError> {
        let place = self.find(name)?.ok_or_else(|| ImageError::Missing {
            path: self.path().to_owned(),
            name: name.chars().take(120).collect(),
        })?;
        place.read(what, limit)
    }
}

/// A directory. Names come from this crate or are digests: they do not lead out of it.
#[derive(Debug)]
pub(crate) struct Directory(pub(crate) PathBuf);

impl Files for Directory {
    fn path(&self) -> &Path {
        &self.0
    }

    fn find(&self, name: &str) -> Result<Option<FileRange>, ImageError> {
        let path = self.0.join(name);
        match path.metadata() {
            Ok(found) if found.is_file() => Ok(Some(FileRange {
                path: path.into(),
                offset: 0,
                len: found.len(),
            })),
            Ok(_) => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(ImageError::io(&path, error)),
        }
    }
}
