//! What must be read: a copy in memory, taken from where nothing is mounted.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use sha2::{Digest as _, Sha256};

/// The content of a tree, by path below its root.
#[derive(Debug, Default)]
pub struct Truth {
    files: Vec<(PathBuf, Vec<u8>)>,
    dirs: BTreeMap<PathBuf, Vec<PathBuf>>,
}

impl Truth {
    /// Reads a tree.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn of(root: &Path) -> anyhow::Result<Self> {
        let mut truth = Self::default();
        truth
            .take_dir(root, Path::new(""))
            .with_context(|| format!("reading {}", root.display()))?;
        Ok(truth)
    }

    fn take_dir(&mut self, root: &Path, dir: &Path) -> io::Result<()> {
        let mut names = Vec::new();
        for entry in fs::read_dir(root.join(dir))? {
            let entry = entry?;
            let path = dir.join(entry.file_name());
            names.push(path.clone());
            if entry.file_type()?.is_dir() {
                self.take_dir(root, &path)?;
            } else {
                let bytes = fs::read(root.join(&path))?;
                self.files.push((path, bytes));
            }
        }
        names.sort();
        self.dirs.insert(dir.to_owned(), names);
        Ok(())
    }

    /// Returns the files, with what is in them.
    #[must_use]
    pub fn files(&self) -> &[(PathBuf, Vec<u8>)] {
        &self.files
    }

    /// Returns the SHA-256 of each file in hexadecimal, by path.
    pub(crate) fn digests(&self) -> BTreeMap<String, String> {
        let digest = |bytes: &[u8]| format!("{:x}", Sha256::digest(bytes));
        self.files
            .iter()
            .map(|(path, bytes)| (path.display().to_string(), digest(bytes)))
            .collect()
    }

    /// Returns the directories, with the sorted paths of what is in them.
    pub(crate) fn dirs(&self) -> impl Iterator<Item = (&Path, &[PathBuf])> {
        self.dirs
            .iter()
            .map(|(dir, names)| (dir.as_path(), names.as_slice()))
    }

    /// Compares a tree with it, to the last byte. Returns how many files are the same.
    ///
    /// # Errors
    /// If it cannot be read, or anything differs.
    pub fn compare(&self, root: &Path) -> anyhow::Result<usize> {
        let there = Self::of(root)?;
        anyhow::ensure!(
            there.dirs == self.dirs,
            "the names in {} are not those of the source",
            root.display()
        );
        let mine: BTreeMap<_, _> = self
            .files
            .iter()
            .map(|(path, bytes)| (path, bytes))
            .collect();
        for (path, bytes) in &there.files {
            anyhow::ensure!(
                mine.get(path) == Some(&bytes),
                "{} is not what the source has",
                root.join(path).display()
            );
        }
        Ok(there.files.len())
    }
}
