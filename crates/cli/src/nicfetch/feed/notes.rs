//! What is noted of images on the disk, so that the next process knows of it.
//!
//! ```text
//! STORE/feed/<hash of the name>   {"name": …, "digest": …, "done": …, "tries": …, "failed": …}
//! ```

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use blocks::ContentId;
use nicfetch::mirror::WholeImage;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::TRIES;

/// Why an attempt failed of which nothing else is noted.
pub(super) const DIED: &str = "nicfetch ended while it was being taken";
/// Characters of a failure that are noted.
const WHY_MAX: usize = 500;

/// What is noted of an image.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct Note {
    pub(super) name: String,
    /// Of its manifest.
    pub(super) digest: String,
    pub(super) done: bool,
    /// Attempts that were begun; releases before the one that counted them noted none.
    #[serde(default)]
    pub(super) tries: u32,
    /// Why the last attempt failed, if it has come to an end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) failed: Option<String>,
}

impl Note {
    /// Of an image that is to be taken, after so many attempts.
    pub(super) fn of(image: &WholeImage, tries: u32) -> Self {
        Self {
            name: image.name.clone(),
            digest: image.digest.clone(),
            done: false,
            tries,
            failed: None,
        }
    }

    /// Of one that was taken.
    pub(super) fn done(image: &WholeImage) -> Self {
        let done = true;
        Self {
            done,
            ..Self::of(image, 0)
        }
    }

    /// Returns whether it was tried so often that it is not tried again by itself.
    pub(super) const fn is_set_aside(&self) -> bool {
        !self.done && self.tries >= TRIES
    }

    /// Returns why the last attempt failed.
    pub(super) fn why(&self) -> &str {
        self.failed.as_deref().unwrap_or(DIED)
    }
}

/// The directory of the notes.
#[derive(Debug)]
pub(super) struct Notes {
    dir: PathBuf,
    /// Held while a note is written.
    turn: Mutex<()>,
}

impl Notes {
    /// Opens the notes in `dir`, which is made if it is not there.
    pub(super) fn open(dir: PathBuf) -> io::Result<Self> {
        rawio::private::keep(&dir)?;
        let turn = Mutex::new(());
        Ok(Self { dir, turn })
    }

    /// Returns what earlier processes have noted.
    pub(super) fn read(&self) -> io::Result<Vec<Note>> {
        let mut notes = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let path = entry?.path();
            if path.extension().is_some() {
                continue; // was being written when the power went
            }
            match serde_json::from_slice(&fs::read(&path)?) {
                Ok(note) => notes.push(note),
                Err(_) => log::warn!("{} is no note of an image: left alone", path.display()),
            }
        }
        Ok(notes)
    }

    /// Notes what becomes of an image, whole or not at all, also if the power goes.
    pub(super) fn write(&self, note: &Note) -> io::Result<()> {
        let failed = note.failed.as_ref();
        let failed = failed.map(|why| why.chars().take(WHY_MAX).collect());
        let note = Note {
            failed,
            ..note.clone()
        };
        let path = self.path(&note.name);
        let aside = path.with_extension("new");
        let _turn = self.turn.lock();
        let mut file = File::create(&aside)?;
        file.write_all(&serde_json::to_vec(&note)?)?;
        file.sync_all()?;
        fs::rename(&aside, &path)?;
        File::open(&self.dir)?.sync_all()
    }

    /// Forgets an image.
    pub(super) fn remove(&self, name: &str) -> io::Result<()> {
        match fs::remove_file(self.path(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        Path::new(&self.dir).join(ContentId::of(name.as_bytes()).to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_of_earlier_releases_are_read_and_attempts_outlive_the_process() {
        let dir = tempfile::tempdir().unwrap();
        let notes = Notes::open(dir.path().to_owned()).unwrap();
        let old = r#"{"name": "a", "digest": "sha256:1", "done": false}"#;
        fs::write(dir.path().join(ContentId::of(b"a").to_string()), old).unwrap();
        let note = notes.read().unwrap().remove(0);
        assert_eq!(
            (note.tries, note.is_set_aside(), note.why()),
            (0, false, DIED)
        );
        let tried = Note {
            tries: TRIES,
            failed: Some("x".repeat(10_000)),
            ..note
        };
        notes.write(&tried).unwrap();
        let found = notes.read().unwrap();
        assert_eq!(found.len(), 1, "a name has one");
        assert!(found[0].is_set_aside() && found[0].why().len() == WHY_MAX);
        notes.remove("a").unwrap();
        notes.remove("a").unwrap();
        assert_eq!(notes.read().unwrap(), []);
    }
}
