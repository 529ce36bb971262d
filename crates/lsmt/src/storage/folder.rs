//! Where the files of an image are.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{FileStorage, MemoryStorage, Storage};

/// A directory, as far as an image needs one. One process owns it.
pub trait Folder: Send + Sync {
    /// Opens an existing file.
    ///
    /// # Errors
    ///
    /// Fails if it does not exist, and as the medium does.
    fn open(&self, name: &str) -> io::Result<Arc<dyn Storage>>;

    /// Makes an empty file, in place of one that may be there.
    ///
    /// # Errors
    ///
    /// Fails as the medium does.
    fn create(&self, name: &str) -> io::Result<Arc<dyn Storage>>;

    /// Renames a file, replacing an existing one.
    ///
    /// # Errors
    ///
    /// Fails if it does not exist, and as the medium does.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file; open ones stay usable.
    ///
    /// # Errors
    ///
    /// Fails if it does not exist, and as the medium does.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Returns the names of all files.
    ///
    /// # Errors
    ///
    /// Fails as the medium does.
    fn names(&self) -> io::Result<Vec<String>>;

    /// Makes all names durable, not what the files contain.
    ///
    /// # Errors
    ///
    /// Fails as the medium does.
    fn sync(&self) -> io::Result<()>;
}

/// A directory of the file system.
#[derive(Debug)]
pub struct DirFolder {
    path: PathBuf,
}

impl DirFolder {
    /// Wraps an existing directory.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }
}

impl Folder for DirFolder {
    fn open(&self, name: &str) -> io::Result<Arc<dyn Storage>> {
        let file = File::options()
            .read(true)
            .write(true)
            .open(self.path.join(name))?;
        Ok(Arc::new(FileStorage::new(file)))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn Storage>> {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(true);
        Ok(Arc::new(FileStorage::new(
            options.open(self.path.join(name))?,
        )))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path.join(from), self.path.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path.join(name))
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            // Ours are all of ASCII.
            names.extend(entry?.file_name().into_string());
        }
        Ok(names)
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }
}

/// Files in memory.
#[derive(Debug, Default)]
pub struct MemoryFolder {
    files: Mutex<BTreeMap<String, Arc<MemoryStorage>>>,
}

impl MemoryFolder {
    /// Adds a file.
    pub fn put(&self, name: &str, bytes: Vec<u8>) {
        let file = Arc::new(MemoryStorage::new(bytes));
        drop(self.files.lock().insert(name.to_owned(), file));
    }
}

impl MemoryFolder {
    /// Returns all files with their content.
    pub fn files(&self) -> Vec<(String, Vec<u8>)> {
        let files = self.files.lock();
        files
            .iter()
            .map(|(name, file)| (name.clone(), file.bytes()))
            .collect()
    }
}

impl Folder for MemoryFolder {
    fn open(&self, name: &str) -> io::Result<Arc<dyn Storage>> {
        let files = self.files.lock();
        let file = files.get(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(file.clone())
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn Storage>> {
        self.put(name, Vec::new());
        self.open(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut files = self.files.lock();
        let file = files.remove(from).ok_or(io::ErrorKind::NotFound)?;
        drop(files.insert(to.to_owned(), file));
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let gone = self.files.lock().remove(name);
        gone.map(drop).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn names(&self) -> io::Result<Vec<String>> {
        Ok(self.files.lock().keys().cloned().collect())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}
