//! The paths of a store, and the smallest changes to them.

mod access;
mod link;
pub(super) mod marker;

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, FileTimes};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use blocks::ContentId;
use rawio::private;

use crate::durable::{Steps, TempFile};
use crate::store::reading;
use crate::{ImageId, StoreError};
use marker::{Kind, MARKER};

/// The paths of a store.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    dir: PathBuf,
}

const IMAGES: &str = "images";
const SEGMENTS: &str = "segments";
const NAMES: &str = "names";
const PINS: &str = "pins";
const STACKS: &str = "stacks";
const TMP: &str = "tmp";

/// Threads that read names, and names for which one thread is enough.
const NAME_READERS: usize = 8;
const NAMES_AT_ONCE: usize = 64;

const LOCK: &str = "lock";
/// What commands keep beside the store's own files: copies on tiers and what is known of them, and
/// what is being fetched.
const BESIDE: [&str; 2] = ["tiers", "pulling"];
/// What commands write beside the store's own files begins with this.
const RECORDING: &str = "recording-";
/// What a fresh file system may have.
const LOST_FOUND: &str = "lost+found";

impl Places {
    /// Returns the paths of a store, or of a future one. Creates nothing, and restricts access to
    /// it.
    pub(super) fn of(dir: PathBuf, group: Option<u32>) -> Result<Self, StoreError> {
        if marker::look(&dir)? != Kind::Nothing {
            access::settle(&dir, group)?;
        }
        Ok(Self { dir })
    }

    /// Returns whether there is a store, or what commands keep beside one: whole files are on tiers
    /// without any boot image.
    pub(super) fn is_there(&self) -> Result<bool, StoreError> {
        let is_store = marker::look(&self.dir)? != Kind::Nothing;
        Ok(is_store || BESIDE.iter().any(|part| self.dir.join(part).is_dir()))
    }

    /// Creates the store's directories if they are missing, before a write. The kind of the directory is
    /// checked again before, because it may have been replaced.
    pub(super) fn make(&self, group: Option<u32>) -> Result<Kind, StoreError> {
        let kind = marker::look(&self.dir)?;
        let made = private::make_dir(&self.dir);
        made.map_err(|error| StoreError::io(&self.dir, "creating", error))?;
        access::settle(&self.dir, group)?;
        // A marked store may lack what only later releases keep.
        marker::make_parts(&self.dir, &[TMP, IMAGES, SEGMENTS, NAMES, PINS, STACKS])?;
        Ok(kind)
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(super) fn lock(&self) -> PathBuf {
        self.dir.join(LOCK)
    }

    pub(super) fn tmp(&self) -> PathBuf {
        self.dir.join(TMP)
    }

    pub(super) fn image(&self, id: &ImageId) -> PathBuf {
        self.dir.join(IMAGES).join(format!("{id}.bimg"))
    }

    pub(super) fn segment(&self, id: &ContentId) -> PathBuf {
        self.dir.join(SEGMENTS).join(format!("{id}.seg"))
    }

    fn name(&self, name: &str) -> PathBuf {
        self.dir.join(NAMES).join(name)
    }

    fn pin_path(&self, id: &ImageId) -> PathBuf {
        self.dir.join(PINS).join(id.to_string())
    }

    /// Returns where the container image with this reference is described. References have
    /// slashes and upper-case twins: the file goes by their hash.
    pub(super) fn stack(&self, reference: &str) -> PathBuf {
        let file = format!("{}.json", ContentId::of(reference.as_bytes()));
        self.dir.join(STACKS).join(file)
    }

    /// Returns the files that describe container images, sorted.
    pub(super) fn stacks(&self) -> Result<Vec<PathBuf>, StoreError> {
        let dir = self.dir.join(STACKS);
        let names = list(&dir)?.into_iter();
        Ok(names
            .filter(|name| id_of(name, ".json").is_some())
            .map(|name| dir.join(name))
            .collect())
    }

    /// Returns the image that has this name, without reading the others.
    pub(super) fn named(&self, name: &str) -> Result<Option<ImageId>, StoreError> {
        let path = self.name(name);
        let id = match link::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            link => link.map_err(reading(&path))?.flatten(),
        };
        Ok(id.filter(|id| self.image(id).exists()))
    }

    /// Fails unless there is such an image.
    pub(super) fn must_have(&self, id: &ImageId) -> Result<(), StoreError> {
        let path = self.image(id);
        if path.try_exists().map_err(reading(&path))? {
            return Ok(());
        }
        Err(StoreError::NotFound {
            what: id.to_string(),
        })
    }

    /// Returns the ids of all images, sorted.
    pub(super) fn images(&self) -> Result<Vec<ImageId>, StoreError> {
        let ids = self.ids(IMAGES, ".bimg")?;
        Ok(ids.into_iter().map(ImageId).collect())
    }

    /// Returns the ids of all segments, sorted.
    pub(super) fn segments(&self) -> Result<Vec<ContentId>, StoreError> {
        self.ids(SEGMENTS, ".seg")
    }

    /// Returns the ids of pinned images, sorted.
    pub(super) fn pins(&self) -> Result<Vec<ImageId>, StoreError> {
        let ids = self.ids(PINS, "")?;
        Ok(ids.into_iter().map(ImageId).collect())
    }

    /// Returns the size of images, segments and leftovers, garbage included.
    pub(super) fn bytes(&self) -> Result<u64, StoreError> {
        let mut bytes = 0;
        for part in [IMAGES, SEGMENTS] {
            let dir = self.dir.join(part);
            for name in list(&dir)? {
                bytes += file_bytes(&dir.join(name))?;
            }
        }
        for path in self.leftovers()? {
            bytes += file_bytes(&path)?;
        }
        Ok(bytes)
    }

    /// Returns all names, sorted, with the id that each is for, if it can be one.
    pub(super) fn names(&self) -> Result<Vec<(String, Option<ImageId>)>, StoreError> {
        let dir = self.dir.join(NAMES);
        let names = list(&dir)?;
        let read = |names: &[OsString]| -> Vec<_> {
            let named = names.iter().filter_map(|name| named_in(&dir, name));
            named.collect()
        };
        // Each may be a block of the disk, in the stores of earlier releases.
        let parts = names.chunks(names.len().div_ceil(NAME_READERS).max(NAMES_AT_ONCE));
        std::thread::scope(|scope| {
            let readers = parts.map(|part| {
                let thread = std::thread::Builder::new().name("bootimg-names".to_owned());
                let spawned = thread.spawn_scoped(scope, move || read(part));
                // Without a thread it takes longer.
                (part, spawned)
            });
            let readers: Vec<_> = readers.collect();
            let parts = readers.into_iter().map(|(part, reader)| {
                let joined = reader.ok().and_then(|reader| reader.join().ok());
                joined.unwrap_or_else(|| read(part))
            });
            Ok(parts.flatten().collect())
        })
    }

    /// Returns the files of dead writers: those with names that writers use, and no
    /// others. Only for the holder of the lock.
    pub(super) fn leftovers(&self) -> Result<Vec<PathBuf>, StoreError> {
        let dir = self.tmp();
        let paths = list(&dir)?.into_iter().map(|name| dir.join(name));
        Ok(paths.filter(|path| is_leftover(path)).collect())
    }

    /// When a name came or went last.
    pub(super) fn named_at(&self) -> Option<SystemTime> {
        let names = fs::metadata(self.dir.join(NAMES));
        names.and_then(|meta| meta.modified()).ok()
    }

    /// Sets the name of an image, and removes it from its former image.
    pub(super) fn set_name(
        &self,
        name: &str,
        id: &ImageId,
        steps: &Steps,
    ) -> Result<(), StoreError> {
        let path = self.name(name);
        let temp = self.tmp().join(format!("{name}.name"));
        let naming = |error| StoreError::io(&path, "naming", error);
        // Left over from a writer that died: we hold the lock.
        match fs::remove_file(&temp) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(naming(error)),
            _ => {}
        }
        steps.symlink(&link::target(id), &temp).map_err(naming)?;
        steps.rename(&temp, &path).map_err(naming)?;
        steps.sync_dir(&self.dir.join(NAMES)).map_err(naming)
    }

    pub(super) fn remove_name(&self, name: &str, steps: &Steps) -> Result<(), StoreError> {
        self.remove(&self.name(name), steps)
    }

    pub(super) fn pin(&self, id: &ImageId, steps: &Steps) -> Result<(), StoreError> {
        let path = self.pin_path(id);
        TempFile::create(&path, Some(&self.tmp()), steps)
            .and_then(|file| file.keep(&path))
            .map_err(|error| StoreError::io(&path, "pinning", error))
    }

    pub(super) fn unpin(&self, id: &ImageId, steps: &Steps) -> Result<(), StoreError> {
        let path = self.pin_path(id);
        if path.try_exists().map_err(reading(&path))? {
            self.remove(&path, steps)?;
        }
        Ok(())
    }

    pub(super) fn remove_image(&self, id: &ImageId, steps: &Steps) -> Result<(), StoreError> {
        self.remove(&self.image(id), steps)
    }

    pub(super) fn remove_segment(&self, id: &ContentId, steps: &Steps) -> Result<(), StoreError> {
        self.remove(&self.segment(id), steps)
    }

    pub(super) fn remove(&self, path: &Path, steps: &Steps) -> Result<(), StoreError> {
        steps
            .remove(path)
            .map_err(|error| StoreError::io(path, "removing", error))
    }

    /// Returns when an image was used last.
    pub(super) fn last_used(&self, id: &ImageId) -> Option<SystemTime> {
        fs::metadata(self.image(id)).ok()?.modified().ok()
    }

    /// Records a use of an image now.
    pub(super) fn touch(&self, id: &ImageId) {
        self.set_last_used(id, SystemTime::now());
    }

    /// Records the last use of an image. Without write access it does nothing.
    pub(super) fn set_last_used(&self, id: &ImageId, when: SystemTime) {
        let path = self.image(id);
        let times = FileTimes::new().set_modified(when);
        let done = File::options()
            .write(true)
            .open(&path)
            .and_then(|file| file.set_times(times));
        if let Err(error) = done {
            log::debug!("cannot note the use of {}: {error}", path.display());
        }
    }

    fn ids(&self, part: &str, suffix: &str) -> Result<Vec<ContentId>, StoreError> {
        let names = list(&self.dir.join(part))?;
        Ok(names
            .iter()
            .filter_map(|name| id_of(name, suffix))
            .collect())
    }
}

/// Returns whether a store has, or may have, an entry of this name.
pub(super) fn is_own_entry(name: &OsStr) -> bool {
    is_kept(name).is_some()
}

/// Returns whether an entry of a store's directory is part of the store; `None` for a foreign entry.
pub(super) fn is_kept(name: &OsStr) -> Option<bool> {
    let parts = [IMAGES, SEGMENTS, NAMES, PINS, STACKS, TMP, LOCK, MARKER];
    let known = |known: &&str| name == *known;
    let is_kept =
        parts.iter().chain(&BESIDE).any(known) || name.as_bytes().starts_with(RECORDING.as_bytes());
    (is_kept || name == LOST_FOUND).then_some(is_kept)
}

/// Returns whether there is something in a directory of the layout of a store that only a store has:
/// a boot image, blocks of one, or what describes a container image. By names.
pub(super) fn has_content(dir: &Path) -> Result<bool, StoreError> {
    for (part, suffix) in [(IMAGES, ".bimg"), (SEGMENTS, ".seg"), (STACKS, ".json")] {
        let names = list(&dir.join(part))?;
        if names.iter().any(|name| id_of(name, suffix).is_some()) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns whether a writer made this file in `tmp`: `<file>.<pid>.<serial>.tmp`, where the file is
/// one that a store has, or `<name>.name`, a link to an image.
fn is_leftover(path: &Path) -> bool {
    let Some(name) = path.file_name() else {
        return false;
    };
    let is_file = || fs::symlink_metadata(path).is_ok_and(|meta| meta.is_file());
    match name.as_bytes().strip_suffix(b".name") {
        Some(_) => matches!(link::read(path), Ok(Some(_))),
        None => is_temporary(name.as_bytes()) && is_file(),
    }
}

fn is_temporary(name: &[u8]) -> bool {
    let is_number =
        |part: &[u8]| !part.is_empty() && part.len() <= 20 && part.iter().all(u8::is_ascii_digit);
    let mut parts = name.rsplitn(4, |byte| *byte == b'.');
    let end = parts.next() == Some(b"tmp");
    let numbered = end && parts.by_ref().take(2).all(is_number);
    let of = parts.next().map(OsStr::from_bytes);
    let suffixes = [".bimg", ".seg", ".json", ""];
    let is_ours = |of: &OsStr| of == MARKER || suffixes.iter().any(|end| id_of(of, end).is_some());
    numbered && of.is_some_and(is_ours)
}

/// Returns a name, and the id that it is for, if it can be one; `None` if the entry is nothing that a store puts there.
fn named_in(dir: &Path, name: &OsStr) -> Option<(String, Option<ImageId>)> {
    let name = name.to_str()?;
    let id = link::read(&dir.join(name)).ok()??;
    Some((name.to_owned(), id))
}

/// Returns the id in the name of a file, if there is one.
fn id_of(name: &OsStr, suffix: &str) -> Option<ContentId> {
    let digits = name.as_bytes().strip_suffix(suffix.as_bytes())?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Returns the names in a directory, sorted; none if it is not there, as in a store that nobody has
/// written to.
fn list(dir: &Path) -> Result<Vec<OsString>, StoreError> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(reading(dir))?,
    };
    let mut names = entries
        .map(|entry| entry.map(|entry| entry.file_name()))
        .collect::<Result<Vec<_>, _>>()
        .map_err(reading(dir))?;
    names.sort_unstable();
    Ok(names)
}

/// Returns the length of a file.
pub(super) fn file_bytes(path: &PathBuf) -> Result<u64, StoreError> {
    Ok(fs::symlink_metadata(path).map_err(reading(path))?.len())
}
