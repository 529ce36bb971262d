//! A directory of a file system.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use nix::fcntl::{FallocateFlags, fallocate};
use rawio::private;

use super::{Medium, open_regular};

/// A directory of any file system.
#[derive(Debug)]
pub struct DirMedium {
    dir: PathBuf,
    /// Its device and inode when it was opened. The directory is not held open, so that its file
    /// system can be unmounted.
    identity: (u64, u64),
}

impl DirMedium {
    /// Opens a directory, and creates it if it is missing. Files in it are readable only by users who can read the
    /// directory: they are copies of files that only root may read.
    ///
    /// # Errors
    /// If it neither exists nor can be created.
    pub fn open(dir: &Path) -> io::Result<Self> {
        private::make_dir_alike(dir)?;
        let dir = dir.canonicalize()?;
        let identity = identity(&dir)?;
        Ok(Self { dir, identity })
    }

    /// Returns the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Refuses to go on if another directory has the path: a file system was mounted or unmounted.
    fn check_identity(&self) -> io::Result<()> {
        if identity(&self.dir)? == self.identity {
            return Ok(());
        }
        Err(io::Error::other(format!(
            "{} is another directory than when it was opened: is its file system not mounted? \
             (mount it, and start again)",
            self.dir.display()
        )))
    }

    /// Returns the path of a file; names are ours, and have no slashes.
    fn at(&self, name: &str) -> PathBuf {
        debug_assert!(!name.contains('/'), "{name}");
        self.dir.join(name)
    }
}

/// Returns the device and the inode of a directory.
fn identity(dir: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::metadata(dir)?;
    Ok((metadata.dev(), metadata.ino()))
}

/// Reads from `offset` until `buf` is full or the file ends.
fn read_full(file: &File, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        match file.read_at(&mut buf[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

impl Medium for DirMedium {
    fn write_at(&self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let path = self.at(name);
        let file = match private::open_own(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.check_identity()?;
                private::create_new(&path)
            }
            opened => opened,
        };
        file?.write_all_at(bytes, offset)
    }

    fn read_at(&self, name: &str, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        read_full(&open_regular(&self.at(name))?, offset, buf)
    }

    fn give_back(&self, name: &str, offset: u64, len: u64) -> io::Result<()> {
        let file = private::open_own(&self.at(name))?;
        let number = |number| i64::try_from(number).map_err(io::Error::other);
        let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        Ok(fallocate(&file, hole, number(offset)?, number(len)?)?)
    }

    fn sync(&self, name: &str) -> io::Result<()> {
        // Any descriptor of the file will do: the kernel syncs the inode.
        open_regular(&self.at(name))?.sync_all()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.at(from), self.at(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.at(name))
    }

    fn sync_names(&self) -> io::Result<()> {
        File::open(&self.dir)?.sync_all()
    }

    fn list(&self) -> io::Result<Vec<(String, u64)>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            let meta = entry.metadata()?;
            // A name that is no text is not ours.
            if let (true, Ok(name)) = (meta.is_file(), entry.file_name().into_string()) {
                files.push((name, meta.len()));
            }
        }
        Ok(files)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_file_is_made_in_another_directory_of_the_same_path() {
        let dir = tempfile::tempdir().unwrap();
        let (tier, aside) = (dir.path().join("tier"), dir.path().join("aside"));
        let medium = DirMedium::open(&tier).unwrap();
        medium.write_at("one", 0, b"1").unwrap();
        // As after an unmount: the path leads to an empty directory.
        fs::rename(&tier, &aside).unwrap();
        fs::create_dir(&tier).unwrap();
        let error = medium.write_at("two", 0, b"2").unwrap_err();
        assert!(error.to_string().contains("not mounted"), "{error}");
        assert_eq!(fs::read_dir(&tier).unwrap().count(), 0);
        fs::remove_dir(&tier).unwrap();
        fs::rename(&aside, &tier).unwrap();
        medium.write_at("two", 0, b"2").unwrap();
    }
}
