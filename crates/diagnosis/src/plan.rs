//! Files to write on this machine: shown first, written whole, and taken back as they were.

mod record;

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use serde::{Deserialize, Serialize};

use crate::bounded;
use record::Record;

pub use record::{Undone, undo};

/// The default path of the record of changes.
pub const DEFAULT_RECORD: &str = "/etc/yolofs/setup.json";

/// A file, and its new content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The file.
    pub path: PathBuf,
    /// Its former content; `None` if it did not exist.
    pub before: Option<String>,
    /// Its new content.
    pub after: String,
    /// What that is good for.
    pub why: String,
}

impl Change {
    /// Makes a change of the present file.
    ///
    /// # Errors
    /// If the file exists and cannot be read.
    pub fn to(path: &Path, after: String, why: &str) -> anyhow::Result<Self> {
        Ok(Self {
            path: path.to_owned(),
            before: bounded::read(path)?,
            after,
            why: why.to_owned(),
        })
    }

    fn is_needed(&self) -> bool {
        self.before.as_ref() != Some(&self.after)
    }
}

/// What a setup would do.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Plan {
    /// The inspected files and versions.
    pub sees: Vec<String>,
    /// The files that it would write; none if nothing has to change.
    pub changes: Vec<Change>,
    /// Notes for the user.
    pub notes: Vec<String>,
    /// Commands for afterwards: nothing is started or restarted by itself.
    pub then: Vec<String>,
}

impl Plan {
    /// Adds an inspected item.
    pub fn saw(&mut self, what: impl Into<String>) {
        self.sees.push(what.into());
    }

    /// Adds a file, unless it is as it should be already.
    pub fn change(&mut self, change: Change) {
        if change.is_needed() {
            self.changes.push(change);
        }
    }

    /// Adds a note.
    pub fn note(&mut self, what: impl Into<String>) {
        self.notes.push(what.into());
    }

    /// Adds a command for afterwards, once.
    pub fn then(&mut self, command: &str) {
        if !self.then.iter().any(|known| known == command) {
            self.then.push(command.to_owned());
        }
    }

    /// Adds what another plan has.
    pub fn join(&mut self, other: Self) {
        self.sees.extend(other.sees);
        self.changes.extend(other.changes);
        self.notes.extend(other.notes);
        for command in other.then {
            self.then(&command);
        }
    }

    /// Writes the files, after recording their former content.
    ///
    /// # Errors
    /// If a file cannot be written, or has changed since the plan was made. Files written until then are
    /// recorded, and can be undone.
    pub fn apply(&self, record: &Path) -> anyhow::Result<()> {
        for change in &self.changes {
            let now = bounded::read(&change.path)?;
            ensure!(
                now == change.before,
                "{} changed since it was looked at: run this again",
                change.path.display()
            );
        }
        let mut written_down = Record::read(record)?;
        for change in &self.changes {
            written_down.add(change.clone());
            written_down.write(record)?;
            write_whole(&change.path, &change.after)?;
        }
        Ok(())
    }
}

/// Writes a file whole or not at all, and makes its directory.
fn write_whole(path: &Path, text: &str) -> anyhow::Result<()> {
    let writing = || format!("writing {}", path.display());
    let dir = path.parent().with_context(writing)?;
    fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().with_context(writing)?);
    name.push(format!(".{}", std::process::id()));
    let aside = dir.join(name);
    let written = File::create(&aside)
        .and_then(|mut file| {
            // Who may read it stays: such files can have credentials.
            if let Ok(known) = fs::metadata(path) {
                file.set_permissions(known.permissions())?;
            }
            file.write_all(text.as_bytes())?;
            file.sync_all()
        })
        .and_then(|()| fs::rename(&aside, path))
        .and_then(|()| File::open(dir)?.sync_all());
    if written.is_err() {
        let _was_not_made = fs::remove_file(&aside);
    }
    written.with_context(writing)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn files_are_written_once_and_undone_as_they_were() {
        let dir = tempfile::tempdir().unwrap();
        let record = dir.path().join("etc/setup.json");
        let (edited, new) = (dir.path().join("a"), dir.path().join("sub/b"));
        fs::write(&edited, "old\n").unwrap();
        fs::set_permissions(&edited, fs::Permissions::from_mode(0o640)).unwrap();
        let plan = || {
            let mut plan = Plan::default();
            plan.change(Change::to(&edited, "new\n".to_owned(), "x").unwrap());
            plan.change(Change::to(&new, "b\n".to_owned(), "y").unwrap());
            plan
        };
        plan().apply(&record).unwrap();
        assert_eq!(fs::read_to_string(&edited).unwrap(), "new\n");
        assert_eq!(
            fs::metadata(&edited).unwrap().permissions().mode() & 0o777,
            0o640
        );
        assert!(
            plan().changes.is_empty(),
            "a second time there is nothing to do"
        );
        plan().apply(&record).unwrap();

        // What is written a second time is still undone to what was there at first.
        let mut again = Plan::default();
        again.change(Change::to(&edited, "newer\n".to_owned(), "x").unwrap());
        again.apply(&record).unwrap();
        let undone = undo(&record).unwrap();
        assert_eq!(undone.kept, Vec::<PathBuf>::new());
        assert_eq!(undone.restored, [new.clone(), edited.clone()]);
        assert_eq!(fs::read_to_string(&edited).unwrap(), "old\n");
        assert!(!new.exists() && !dir.path().join("sub").exists() && !record.exists());
        assert_eq!(undo(&record).unwrap().restored, Vec::<PathBuf>::new());
    }

    #[test]
    fn what_somebody_else_changed_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let record = dir.path().join("setup.json");
        let path = dir.path().join("a");
        let mut plan = Plan::default();
        plan.change(Change::to(&path, "ours\n".to_owned(), "x").unwrap());
        fs::write(&path, "theirs\n").unwrap();
        let error = plan.apply(&record).unwrap_err().to_string();
        assert!(error.contains("changed since"), "{error}");
        fs::remove_file(&path).unwrap();
        plan.apply(&record).unwrap();
        fs::write(&path, "edited by hand\n").unwrap();
        let undone = undo(&record).unwrap();
        assert_eq!(
            (undone.restored, undone.kept),
            (Vec::new(), vec![path.clone()])
        );
        assert_eq!(fs::read_to_string(&path).unwrap(), "edited by hand\n");
        // It is still known, for when that was seen to.
        fs::write(&path, "ours\n").unwrap();
        assert_eq!(undo(&record).unwrap().restored, [path]);
    }
}
