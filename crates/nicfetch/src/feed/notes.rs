//! Records of images on the disk, for the next process.
//!
//! ```text
//! STORE/feed/<hash of the name>             {"name": …, "digest": …, "done": …}
//! STORE/feed/tried-<hash of the digest>     {"digest": …, "name": …, "tries": …, "failed": …}
//! ```

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use blocks::ContentId;
use mirror::WholeImage;
use parking_lot::Mutex;
use rawio::regular::{self, Links};
use serde::{Deserialize, Serialize};

/// Automatic attempts at an image. One may have failed for another reason: a
/// full disk, or a process that was killed because of other work.
pub(super) const TRIES: u32 = 2;
/// What the files are called that say how often something was tried.
const TRIED: &str = "tried-";

/// The reason for a failed attempt without another record.
pub(super) const DIED: &str = "nicfetch ended while it was being taken";
/// Bytes of a record.
const NOTE_MAX: u64 = 64 << 10;
/// Characters of a failure that are noted.
const WHY_MAX: usize = 500;

/// The record of a name.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct Note {
    pub(super) name: String,
    /// The manifest's digest.
    pub(super) digest: String,
    pub(super) done: bool,
    /// Attempts that were begun, as an earlier release has counted them: by names.
    #[serde(default, skip_serializing)]
    tries: u32,
    /// Why the last of them failed.
    #[serde(default, skip_serializing)]
    failed: Option<String>,
}

/// The record of the attempts at an image.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct Tried {
    /// The manifest's digest.
    pub(super) digest: String,
    /// One of its names.
    pub(super) name: String,
    /// Attempts that were begun.
    pub(super) tries: u32,
    /// Why the last attempt failed, if it has come to an end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) failed: Option<String>,
}

impl Note {
    /// Of an image that is to be taken.
    pub(super) fn of(image: &WholeImage) -> Self {
        Self {
            name: image.name.clone(),
            digest: image.digest.clone(),
            done: false,
            tries: 0,
            failed: None,
        }
    }

    /// Of one that was taken.
    pub(super) fn done(image: &WholeImage) -> Self {
        let done = true;
        Self {
            done,
            ..Self::of(image)
        }
    }

    /// Returns which image it is about.
    pub(super) fn image(&self) -> WholeImage {
        WholeImage {
            name: self.name.clone(),
            digest: self.digest.clone(),
        }
    }

    /// Returns the attempts that an earlier release has counted.
    fn tried(self) -> Option<Tried> {
        let counts = !self.done && self.tries > 0;
        counts.then_some(Tried {
            digest: self.digest,
            name: self.name,
            tries: self.tries,
            failed: self.failed,
        })
    }
}

impl Tried {
    /// Of an image that was not tried yet.
    pub(super) fn none_of(image: &WholeImage) -> Self {
        Self {
            digest: image.digest.clone(),
            name: image.name.clone(),
            tries: 0,
            failed: None,
        }
    }

    /// Returns whether it was tried so often that it is not tried again by itself.
    pub(super) const fn is_set_aside(&self) -> bool {
        self.tries >= TRIES
    }

    /// Returns why the last attempt failed.
    pub(super) fn why(&self) -> &str {
        self.failed.as_deref().unwrap_or(DIED)
    }
}

/// The directory of the records.
#[derive(Debug)]
pub(super) struct Notes {
    dir: PathBuf,
    /// Held while a record is written.
    turn: Mutex<()>,
}

impl Notes {
    /// Opens the records in `dir`, which is created if it is missing.
    pub(super) fn open(dir: PathBuf) -> io::Result<Self> {
        rawio::private::keep(&dir)?;
        let turn = Mutex::new(());
        Ok(Self { dir, turn })
    }

    /// Returns the records of names of earlier processes.
    pub(super) fn read(&self) -> io::Result<Vec<Note>> {
        let files = self.files()?.into_iter();
        let notes = files.filter(|(name, _)| !name.starts_with(TRIED));
        Ok(notes.filter_map(|(_, path)| read(&path)).collect())
    }

    /// Returns the records of attempts of earlier processes.
    pub(super) fn tried(&self) -> io::Result<Vec<Tried>> {
        let files = self.files()?.into_iter();
        let tried = files.filter(|(name, _)| name.starts_with(TRIED));
        let tried = tried.filter_map(|(_, path)| read(&path));
        let before = self.read()?.into_iter().filter_map(Note::tried);
        Ok(before.chain(tried).collect())
    }

    fn files(&self) -> io::Result<Vec<(String, PathBuf)>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if !name.contains('.') {
                files.push((name, entry.path()));
            } // else it was being written when the power went
        }
        Ok(files)
    }

    /// Writes the record of a name, atomically and durably.
    pub(super) fn write(&self, note: &Note) -> io::Result<()> {
        self.write_to(&self.path(&note.name), note)
    }

    /// Writes the record of the attempts at an image.
    pub(super) fn write_tried(&self, tried: &Tried) -> io::Result<()> {
        let failed = tried.failed.as_ref();
        let failed = failed.map(|why| why.chars().take(WHY_MAX).collect());
        let tried = Tried {
            failed,
            ..tried.clone()
        };
        self.write_to(&self.tried_path(&tried.digest), &tried)
    }

    fn write_to(&self, path: &Path, note: &impl Serialize) -> io::Result<()> {
        let aside = path.with_extension("new");
        let _turn = self.turn.lock();
        let mut file = regular::create_anew(&aside)?;
        file.write_all(&serde_json::to_vec(note)?)?;
        file.sync_all()?;
        fs::rename(&aside, path)?;
        File::open(&self.dir)?.sync_all()
    }

    /// Removes the record of a name.
    pub(super) fn remove(&self, name: &str) -> io::Result<()> {
        remove(&self.path(name))
    }

    /// Removes the records of the attempts at an image, including those of an earlier release by names.
    pub(super) fn remove_tried(&self, digest: &str) -> io::Result<()> {
        remove(&self.tried_path(digest))
    }

    fn tried_path(&self, digest: &str) -> PathBuf {
        let hash = ContentId::of(digest.as_bytes());
        self.dir.join(format!("{TRIED}{hash}"))
    }

    fn path(&self, name: &str) -> PathBuf {
        Path::new(&self.dir).join(ContentId::of(name.as_bytes()).to_string())
    }
}

/// Reads a note; one that cannot be read is left alone.
fn read<T: for<'a> Deserialize<'a>>(path: &Path) -> Option<T> {
    let read = regular::read(path, Links::Followed, NOTE_MAX).map_err(|error| error.to_string());
    let read = read.and_then(|text| {
        serde_json::from_slice(&text).map_err(|_| "it is no note of an image".to_owned())
    });
    read.inspect_err(|why| log::warn!("{} is left alone: {why}", path.display()))
        .ok()
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_outlive_the_process_also_those_that_earlier_releases_noted() {
        let dir = tempfile::tempdir().unwrap();
        let notes = Notes::open(dir.path().to_owned()).unwrap();
        for (name, old) in [
            ("a", r#"{"name": "a", "digest": "sha256:1", "done": false}"#),
            (
                "b",
                r#"{"name": "b", "digest": "sha256:2", "done": false, "tries": 2, "failed": "so"}"#,
            ),
        ] {
            fs::write(
                dir.path().join(ContentId::of(name.as_bytes()).to_string()),
                old,
            )
            .unwrap();
        }
        assert_eq!(notes.read().unwrap().len(), 2);
        let tried = notes.tried().unwrap();
        assert_eq!((tried.len(), tried[0].why()), (1, "so"));
        assert!(tried[0].is_set_aside());
        let image = notes.read().unwrap().remove(0).image();
        let mut tried = Tried::none_of(&image);
        tried.tries = TRIES;
        tried.failed = Some("x".repeat(10_000));
        notes.write_tried(&tried).unwrap();
        notes.write_tried(&tried).unwrap();
        let found = notes.tried().unwrap();
        let found = found.iter().find(|found| found.why().len() == WHY_MAX);
        assert!(found.is_some_and(Tried::is_set_aside));
        assert_eq!(notes.read().unwrap().len(), 2, "they are no names");
        notes.remove_tried(&tried.digest).unwrap();
        notes.remove_tried(&tried.digest).unwrap();
        for name in ["a", "a", "b"] {
            notes.remove(name).unwrap();
        }
        assert_eq!(
            (notes.read().unwrap().len(), notes.tried().unwrap().len()),
            (0, 0)
        );
    }

    /// Who broke into nicfetch may have put anything there.
    #[test]
    fn a_pipe_in_the_place_of_a_record_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let notes = Notes::open(dir.path().to_owned()).unwrap();
        let image = WholeImage {
            name: "a".to_owned(),
            digest: "sha256:1".to_owned(),
        };
        notes.write(&Note::of(&image)).unwrap();
        let aside = notes.path(&image.name).with_extension("new");
        let other = ["b", "tried-b"].map(|name| dir.path().join(name));
        for path in other.into_iter().chain([aside]) {
            nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        }
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            notes.write(&Note::of(&image)).unwrap();
            let found = (notes.read().unwrap().len(), notes.tried().unwrap().len());
            tell.send(found).unwrap();
        });
        let found = told.recv_timeout(std::time::Duration::from_secs(30));
        assert_eq!(found.expect("it waits for the pipe"), (1, 0));
    }
}
