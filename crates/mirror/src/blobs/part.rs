//! The file of an incomplete blob, and the metadata that is needed to resume its download.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rawio::regular::{self, Links};
use serde::{Deserialize, Serialize};

use super::digest::{BlobDigest, Hasher};

/// The most bytes between two syncs: what a power cut can cost.
const SYNC_EVERY: u64 = 64 << 20;

/// Bytes that are hashed at a time when a download is resumed.
const REHASH_CHUNK: usize = 1 << 20;

/// Bytes of a journal: a registry's ETag is most of it.
const JOURNAL_MAX: u64 = 1 << 20;

/// Changes with each start of the kernel. What a process wrote survives its own death in the page
/// cache, but not that of the kernel.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The journal of an incomplete blob.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Journal {
    /// Bytes of the whole blob.
    size: u64,
    /// The ETag of the registry, if it sent one.
    etag: Option<String>,
    /// The boot id of the kernel that wrote it.
    boot: String,
    /// Bytes that were synced to the disk.
    synced: u64,
}

/// An incomplete blob.
#[derive(Debug)]
pub(crate) struct Part {
    digest: BlobDigest,
    path: PathBuf,
    file: Arc<File>,
    hasher: Hasher,
    len: u64,
    journal: Journal,
}

/// The result of completing a blob.
#[derive(Debug)]
pub(super) enum Finish {
    /// Its digest is right, and it is synced and renamed.
    Whole,
    /// Its digest is wrong, and its file was removed.
    Mismatch(BlobDigest),
}

impl Part {
    /// Opens the file of an earlier download in a directory, or a new one.
    pub(super) fn open(dir: &Path, digest: &BlobDigest) -> io::Result<Self> {
        let path = path_of(dir, digest);
        let journal = read_journal(&path).unwrap_or_default();
        let file = regular::open_to_write(&path, Links::Followed, true)?;
        let mut part = Self {
            digest: digest.clone(),
            path,
            file: Arc::new(file),
            hasher: digest.algorithm().hasher(),
            len: 0,
            journal,
        };
        part.take_up()?;
        Ok(part)
    }

    /// Hashes the bytes that are known to be on the disk, and truncates the rest.
    fn take_up(&mut self) -> io::Result<()> {
        let there = self.file.metadata()?.len();
        let trusted = match self.journal.boot == boot_id() {
            true => there,
            false => there.min(self.journal.synced),
        };
        let trusted = trusted.min(self.journal.size);
        self.file.set_len(trusted)?;
        let mut chunk = vec![0; REHASH_CHUNK];
        while self.len < trusted {
            let read = self.file.read_at(&mut chunk, self.len)?;
            if read == 0 {
                break;
            }
            self.hasher.update(&chunk[..read]);
            self.len += read as u64;
        }
        Ok(())
    }

    /// Returns the number of its bytes.
    pub(crate) const fn len(&self) -> u64 {
        self.len
    }

    /// Returns the size of the complete blob, if an earlier download recorded it.
    pub(crate) fn known_size(&self) -> Option<u64> {
        (self.journal.size > 0).then_some(self.journal.size)
    }

    /// Returns what the upstream called it.
    pub(crate) fn etag(&self) -> Option<&str> {
        self.journal.etag.as_deref()
    }

    pub(super) fn file(&self) -> Arc<File> {
        Arc::clone(&self.file)
    }

    /// Records the size and the ETag from the registry.
    pub(crate) fn begin(&mut self, size: u64, etag: Option<String>) -> io::Result<()> {
        self.journal = Journal {
            size,
            etag,
            boot: boot_id(),
            synced: self.journal.synced.min(self.len),
        };
        self.write_journal()
    }

    /// Appends bytes.
    pub(super) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, self.len)?;
        self.hasher.update(bytes);
        self.len += bytes.len() as u64;
        if self.len - self.journal.synced >= SYNC_EVERY {
            self.file.sync_data()?;
            self.journal.synced = self.len;
            self.write_journal()?;
        }
        Ok(())
    }

    /// Verifies the digest, and renames the file.
    pub(super) fn finish(&mut self, to: &Path) -> io::Result<Finish> {
        let found = self.hasher.clone().finish();
        if found != self.digest {
            self.remove();
            return Ok(Finish::Mismatch(found));
        }
        self.check_file()?;
        self.file.sync_all()?;
        make_way(to)?;
        fs::rename(&self.path, to)?;
        if let Some(dir) = to.parent() {
            File::open(dir)?.sync_all()?;
        }
        forget(&journal_path(&self.path));
        Ok(Finish::Whole)
    }

    /// Checks that the name still leads to the file that was written, and that nobody cut it: the
    /// hash is of the bytes as they came.
    fn check_file(&self) -> io::Result<()> {
        let (mine, named) = (self.file.metadata()?, fs::symlink_metadata(&self.path)?);
        let file = |metadata: &fs::Metadata| (metadata.dev(), metadata.ino());
        match file(&mine) == file(&named) && mine.len() == self.len {
            true => Ok(()),
            false => Err(io::Error::other(format!(
                "{} was changed during its download: does something else write to the cache?",
                self.path.display()
            ))),
        }
    }

    /// Removes the file.
    pub(super) fn remove(&self) {
        discard_at(&self.path);
    }

    fn write_journal(&self) -> io::Result<()> {
        let path = journal_path(&self.path);
        let aside = path.with_extension("tmp");
        regular::create_anew(&aside)?.write_all(&serde_json::to_vec(&self.journal)?)?;
        fs::rename(&aside, &path)
    }
}

/// Returns where the part of a blob is.
pub(super) fn path_of(dir: &Path, digest: &BlobDigest) -> PathBuf {
    dir.join(format!("{}-{}", digest.algorithm().word(), digest.hex()))
}

/// Removes the part of a blob that has no download.
pub(super) fn discard(dir: &Path, digest: &BlobDigest) {
    discard_at(&path_of(dir, digest));
}

fn discard_at(path: &Path) {
    forget(path);
    forget(&journal_path(path));
}

/// Returns the parts in a directory, with their lengths. A part without a journal is
/// removed, and a journal without a part; files with other names are ignored.
pub(super) fn list(dir: &Path) -> io::Result<Vec<(BlobDigest, u64)>> {
    let mut parts = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let path = entry.path();
        let digest = |path: &Path| -> Option<BlobDigest> {
            let name = path.file_name()?.to_str()?;
            name.replacen('-', ":", 1).parse().ok()
        };
        let ending = path.extension().and_then(|end| end.to_str());
        match (digest(&path), ending) {
            (Some(digest), _) if journal_path(&path).exists() => {
                parts.push((digest, entry.metadata()?.len()));
            }
            (Some(_), _) => forget(&path),
            (None, Some("json" | "tmp")) if digest(&part_of(&path)).is_some() => {
                if ending == Some("tmp") || !part_of(&path).exists() {
                    forget(&path);
                }
            }
            (None, _) => log::warn!("unknown file {}: ignored", path.display()),
        }
    }
    Ok(parts)
}

fn journal_path(part: &Path) -> PathBuf {
    part.with_extension("json")
}

fn part_of(journal: &Path) -> PathBuf {
    journal.with_extension("")
}

fn read_journal(part: &Path) -> Option<Journal> {
    let text = regular::read(&journal_path(part), Links::Followed, JOURNAL_MAX).ok()?;
    serde_json::from_slice(&text).ok()
}

fn boot_id() -> String {
    fs::read_to_string(BOOT_ID)
        .map(|id| id.trim().to_owned())
        .unwrap_or_default()
}

/// Renames a directory in the place of a blob, which would be in the way for ever.
fn make_way(to: &Path) -> io::Result<()> {
    if !fs::symlink_metadata(to).is_ok_and(|there| there.is_dir()) {
        return Ok(());
    }
    let aside = to.with_extension("unknown");
    log::warn!(
        "{} is no blob: renamed to {}",
        to.display(),
        aside.display()
    );
    fs::rename(to, aside)
}

/// Removes a file that may be gone.
pub(super) fn forget(path: &Path) {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            log::warn!("cannot remove {}: {error}", path.display());
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::super::digest::Algorithm;
    use super::*;

    const BYTES: &[u8] = b"what a layer has in it";

    fn name() -> BlobDigest {
        BlobDigest::of(Algorithm::Sha256, BYTES)
    }

    fn begun(dir: &Path, bytes: &[u8]) -> Part {
        let mut part = Part::open(dir, &name()).unwrap();
        part.begin(BYTES.len() as u64, None).unwrap();
        part.append(bytes).unwrap();
        part
    }

    #[test]
    fn goes_on_where_a_killed_process_stopped() {
        let dir = tempfile::tempdir().unwrap();
        drop(begun(dir.path(), &BYTES[..9]));
        let mut part = Part::open(dir.path(), &name()).unwrap();
        assert_eq!(
            (part.len(), part.known_size()),
            (9, Some(BYTES.len() as u64))
        );
        part.append(&BYTES[9..]).unwrap();
        let whole = dir.path().join("whole");
        assert!(matches!(part.finish(&whole).unwrap(), Finish::Whole));
        assert_eq!(fs::read(whole).unwrap(), BYTES);
        assert!(list(dir.path()).unwrap().is_empty());
    }

    #[test]
    fn trusts_only_what_was_synced_before_a_crash_of_the_kernel() {
        let dir = tempfile::tempdir().unwrap();
        let mut part = begun(dir.path(), &BYTES[..9]);
        part.journal.boot = "another".to_owned();
        part.journal.synced = 4;
        part.write_journal().unwrap();
        assert_eq!(Part::open(dir.path(), &name()).unwrap().len(), 4);
    }

    #[test]
    fn a_file_without_a_journal_is_worth_nothing() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(path_of(dir.path(), &name()), b"left").unwrap();
        assert_eq!(Part::open(dir.path(), &name()).unwrap().len(), 0);
        drop(begun(dir.path(), b"x"));
        assert_eq!(list(dir.path()).unwrap(), [(name(), 1)]);
        forget(&journal_path(&path_of(dir.path(), &name())));
        assert!(list(dir.path()).unwrap().is_empty());
        assert!(!path_of(dir.path(), &name()).exists());
    }

    /// `nicfetch --store` may be somebody's directory.
    #[test]
    fn only_what_is_named_like_a_part_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        drop(begun(dir.path(), b"x"));
        let other = BlobDigest::of(Algorithm::Sha256, b"another");
        let other = path_of(dir.path(), &other);
        let left = [journal_path(&other), other.with_extension("tmp")];
        let mine = ["mine", "mine.json", "mine.tmp", "sha256-12"].map(|name| dir.path().join(name));
        for file in left.iter().chain(&mine) {
            fs::write(file, b"x").unwrap();
        }
        assert_eq!(list(dir.path()).unwrap(), [(name(), 1)]);
        assert!(left.iter().all(|file| !file.exists()));
        assert!(mine.iter().all(|file| file.exists()));
        assert!(path_of(dir.path(), &name()).exists());
    }

    #[test]
    fn wrong_bytes_do_not_get_the_name() {
        let dir = tempfile::tempdir().unwrap();
        let mut part = begun(dir.path(), &BYTES.to_ascii_uppercase());
        let whole = dir.path().join("whole");
        assert!(matches!(part.finish(&whole).unwrap(), Finish::Mismatch(_)));
        assert!(!whole.exists() && !path_of(dir.path(), &name()).exists());
    }
    #[test]
    fn a_file_that_was_cut_or_replaced_is_not_published() {
        let dir = tempfile::tempdir().unwrap();
        let whole = dir.path().join("whole");
        let path = path_of(dir.path(), &name());
        let mut part = begun(dir.path(), BYTES);
        part.file.set_len(5).unwrap();
        part.finish(&whole).unwrap_err();
        part.remove();
        let mut part = begun(dir.path(), BYTES);
        fs::remove_file(&path).unwrap();
        fs::write(&path, b"what another download wrote").unwrap();
        part.finish(&whole).unwrap_err();
        assert!(!whole.exists());
    }
}
