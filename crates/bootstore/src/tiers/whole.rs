//! Whole files on tiers, for mounts that pass files through: which file a copy is of.
//!
//! A file is known by its path and its version. One that has changed is another file, of which
//! there is no copy.

use host::interrupt::Interrupted;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io::{self, Read, Seek as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context as _, ensure};
use blocks::{ContentId, FileKey, Timestamp, Tree, Version, WholeCopies};
use tiering::objects::{Copied, name_of};
use tiering::pace::Pace;

use super::Tiers;
use super::known::Known;
use super::mover::Mover;
use super::remembered::Remembered;

/// A regular file of this machine, in the version found when it was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WholeFile {
    path: PathBuf,
    version: Version,
}

impl WholeFile {
    /// Examines a file.
    ///
    /// # Errors
    /// If it does not exist, or is not a regular file.
    pub fn at(path: &Path) -> anyhow::Result<Self> {
        let looking = || format!("looking at {}", path.display());
        let path = fs::canonicalize(path).with_context(looking)?;
        let found = fs::symlink_metadata(&path).with_context(looking)?;
        ensure!(found.is_file(), "{} is not a regular file", path.display());
        let version = version_of(&found);
        Ok(Self { path, version })
    }

    /// Returns the key of its record.
    pub fn key(&self) -> ContentId {
        key_of(&self.path, &self.version)
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the version that it was looked at in.
    pub const fn version(&self) -> Version {
        self.version
    }

    /// Returns whether it is a program, which Linux does not run from a copy.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn is_program(&self) -> io::Result<bool> {
        let file = File::open(&self.path)?;
        let mut head = Vec::new();
        let mode = file.metadata()?.mode();
        file.take(4).read_to_end(&mut head)?;
        Ok(yolofs::is_program(mode, &head))
    }

    /// Returns its length.
    pub const fn bytes(&self) -> u64 {
        self.version.size
    }

    /// Fails if an open file is not this one any more.
    fn check(&self, file: &File) -> anyhow::Result<()> {
        let now = file.metadata().context("looking at it again")?;
        let path = self.path.display();
        ensure!(
            version_of(&now) == self.version,
            "{path} is changing: copy it when nothing writes to it"
        );
        Ok(())
    }
}

impl WholeFile {
    /// Waits, if the file changed just now, until a change of what is read from then on would show.
    fn wait_for_a_tick(&self) {
        if self.version.is_recent(Timestamp::of(SystemTime::now())) {
            // What is waited for is the time itself.
            std::thread::sleep(self.version.tick());
        }
    }
}

fn version_of(found: &Metadata) -> Version {
    let time = |secs, nanos: i64| Timestamp {
        secs,
        nanos: u32::try_from(nanos).unwrap_or(0),
    };
    Version {
        size: found.size(),
        mtime: time(found.mtime(), found.mtime_nsec()),
        ctime: time(found.ctime(), found.ctime_nsec()),
        inode: found.ino(),
    }
}

/// Returns what a version of a file is known by.
fn key_of(path: &Path, version: &Version) -> ContentId {
    let mut text = path.as_os_str().as_bytes().to_vec();
    // No path has a zero byte in it.
    text.push(0);
    for number in [version.size, version.inode] {
        text.extend(number.to_le_bytes());
    }
    for time in [version.mtime, version.ctime] {
        text.extend(time.secs.to_le_bytes());
        text.extend(time.nanos.to_le_bytes());
    }
    ContentId::of(&text)
}

impl Mover {
    /// Copies a file to a tier, whole. An existing copy is read and verified; if it is damaged,
    /// it is written again.
    ///
    /// # Errors
    /// If the tier is missing or full, the file is written to meanwhile, or `pace` stops it.
    pub fn bring_file(
        &self,
        file: &WholeFile,
        place: usize,
        pace: &dyn Pace,
    ) -> anyhow::Result<Copied> {
        let known = self.tiers().files().get(file.key());
        let object = known.and_then(|known| known.object);
        if let Some(copied) = self.bring_known(object, place, pace)? {
            return Ok(copied);
        }
        let reading = || format!("reading {}", file.path.display());
        let mut opened = File::open(&file.path).with_context(reading)?;
        file.check(&opened)?;
        file.wait_for_a_tick();
        let mut paced = PacedRead {
            file: &opened,
            pace,
        };
        let (object, bytes) = match name_of(&mut paced) {
            Err(error) if error.kind() == io::ErrorKind::Other => {
                return Err(Interrupted.into());
            }
            named => named.with_context(reading)?,
        };
        file.check(&opened)?;
        // First what it is, then that it is there: a copy that nobody knows would be garbage.
        self.tiers().files().change(file.key(), |known| {
            known.object = Some(object);
            known.bytes = bytes;
            known.file = Some(file.path.to_string_lossy().into_owned());
        })?;
        opened.rewind().with_context(reading)?;
        self.add(object, bytes, place, &mut opened, pace)
    }
}

/// A file that is read at a pace. One that is stopped fails with an error of no other kind.
struct PacedRead<'a> {
    file: &'a File,
    pace: &'a dyn Pace,
}

impl Read for PacedRead<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buf)?;
        self.pace.turn(read as u64).map_err(io::Error::other)?;
        Ok(read)
    }
}

/// The copies of a source's files, for a mount of it.
#[derive(Debug)]
pub struct SourceCopies {
    tiers: Tiers,
    /// Where the tree's root is.
    root: PathBuf,
    tree: Arc<Tree>,
    remembered: Remembered,
}

impl SourceCopies {
    /// Looks for copies of the files of a tree.
    pub fn new(tiers: Tiers, root: PathBuf, tree: Arc<Tree>) -> Self {
        Self {
            remembered: Remembered::new(tiers.files()),
            tiers,
            root,
            tree,
        }
    }

    /// Returns what a file is known by; `None` if the tree does not have it.
    fn key_of(&self, file: &FileKey) -> Option<ContentId> {
        let path = self.tree.path(file.file)?;
        let path = self.root.join(OsStr::from_bytes(&path));
        Some(key_of(&path, &file.version))
    }
}

impl WholeCopies for SourceCopies {
    fn open_copy(&self, file: &FileKey) -> io::Result<Option<OwnedFd>> {
        let object = self.remembered.object_of(file, || self.key_of(file));
        let Some(object) = object else {
            return Ok(None);
        };
        // The lock that keeps the copy goes with the kernel's own reference to it.
        for copy in self.tiers.open_copies(object) {
            if copy.file.metadata()?.len() == file.version.size {
                return Ok(Some(copy.file.into()));
            }
        }
        let lost = format!("no tier has object {} any more", object.short());
        Err(io::Error::new(io::ErrorKind::NotFound, lost))
    }
}

impl Tiers {
    /// Removes the records of files whose copy this object is, since it is removed on purpose: a file with a
    /// record and without a copy counts as lost.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn forget_copies(&self, object: ContentId) -> anyhow::Result<()> {
        let files = self.files();
        for key in files.keys() {
            if files
                .get(key)
                .is_some_and(|known| known.object == Some(object))
            {
                files.change(key, |known| known.object = None)?;
            }
        }
        Ok(())
    }

    /// Returns the records of the versions of a file, which may not exist, with their keys.
    ///
    /// # Errors
    /// If there are none.
    pub fn versions_of(&self, path: &Path) -> anyhow::Result<Vec<(ContentId, Known)>> {
        let there = fs::canonicalize(path).or_else(|_| std::path::absolute(path));
        let there = there.with_context(|| format!("looking for {}", path.display()))?;
        let files = self.files();
        let known = files.keys().into_iter();
        let known = known.filter_map(|key| Some((key, files.get(key)?)));
        let known: Vec<_> = known
            .filter(|(_, known)| known.file.as_deref() == there.to_str())
            .collect();
        ensure!(
            !known.is_empty(),
            "{} was never promoted (yolofs tier status shows what was)",
            there.display()
        );
        Ok(known)
    }
}

/// Records a use of the files of a source, so that they stay on their tiers. The process that serves them may
/// not write, and would do it too late.
pub fn note_use(tiers: &Tiers, source: &Path) {
    if !tiers.are_used() {
        return;
    }
    let files = tiers.files();
    for key in files.keys() {
        let path = files.get(key).and_then(|known| known.file);
        if path.is_some_and(|path| Path::new(&path).starts_with(source))
            && let Err(error) = files.add_heat(key, super::now())
        {
            log::debug!(
                "the use of a file of {} is not noted: {error:#}",
                source.display()
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_version_of_each_file_has_a_key_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        fs::write(&path, b"one").unwrap();
        let one = WholeFile::at(&path).unwrap();
        assert_eq!(one, WholeFile::at(&path).unwrap());
        let mut versions = vec![one.version; 5];
        versions[0].size += 1;
        versions[1].inode += 1;
        versions[2].mtime.nanos ^= 1;
        versions[3].ctime.secs += 1;
        versions[4].ctime.nanos ^= 1;
        for other in &versions {
            assert_ne!(key_of(&one.path, other), one.key());
        }
        assert_ne!(key_of(&dir.path().join("b"), &one.version), one.key());
        assert!(WholeFile::at(dir.path()).is_err(), "a directory is none");
    }

    #[test]
    fn a_version_is_the_one_that_a_scan_sees() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a"), b"one").unwrap();
        let root = Arc::new(localfs::SourceRoot::open(dir.path()).unwrap());
        let tree = localfs::scan(&root, |_| ()).unwrap().tree;
        let file = blocks::FileId(1);
        let whole = WholeFile::at(&dir.path().join("a")).unwrap();
        assert_eq!(whole.version, tree.key(file).unwrap().version);
        assert_eq!(whole.path, root.path().join("a"));
    }
}
