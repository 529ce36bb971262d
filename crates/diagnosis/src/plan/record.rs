//! The record of changes, written before they are made.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};

use super::Change;
use super::write::{Access, write_whole};
use crate::bounded;

/// The version of the record's form.
const VERSION: u32 = 1;

/// The changes that were made, in their order.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Record {
    version: u32,
    changes: Vec<Recorded>,
    /// The directories that setups made, each after the one that it is in. `None` in the record of a release that did not
    /// note them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    made: Option<Vec<PathBuf>>,
}

/// A change that was made, or was about to be made when this was written.
#[derive(Debug, Serialize, Deserialize)]
struct Recorded {
    #[serde(flatten)]
    change: Change,
    /// What a former setup had written there. It is still there if this one was interrupted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    written_before: Option<String>,
}

/// The result of an undo.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Undone {
    /// Files that are as they were before.
    pub restored: Vec<PathBuf>,
    /// Files that were changed since, and were not restored.
    pub kept: Vec<PathBuf>,
}

impl Recorded {
    /// Returns whether a content is one that a setup wrote.
    fn is_ours(&self, content: Option<&String>) -> bool {
        content.is_some_and(|content| {
            *content == self.change.after || Some(content) == self.written_before.as_ref()
        })
    }
}

impl Record {
    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        let Some(text) = bounded::read(path)? else {
            return Ok(Self {
                version: VERSION,
                changes: Vec::new(),
                made: Some(Vec::new()),
            });
        };
        let record: Self = serde_json::from_str(&text)
            .with_context(|| format!("{} is no record of changes", path.display()))?;
        if record.version != VERSION {
            bail!(
                "{} is of version {}, and this release knows {VERSION}",
                path.display(),
                record.version
            );
        }
        Ok(record)
    }

    /// Notes that the missing directories of a file are about to be made.
    pub(super) fn add_directories(&mut self, file: &Path) {
        let Some(made) = &mut self.made else { return };
        for dir in missing_directories(file) {
            if !made.contains(&dir) {
                made.push(dir);
            }
        }
    }

    /// Adds a change. For a file that was changed before, the first content is kept.
    pub(super) fn add(&mut self, mut change: Change) {
        let mut known = self.changes.iter_mut();
        match known.find(|known| known.change.path == change.path) {
            // Unless somebody else had a hand in it since.
            Some(known) if known.is_ours(change.before.as_ref()) => {
                known.written_before = change.before.take();
                change.before = known.change.before.take();
                known.change = change;
            }
            Some(known) => {
                *known = Recorded {
                    change,
                    written_before: None,
                };
            }
            None => self.changes.push(Recorded {
                change,
                written_before: None,
            }),
        }
    }

    pub(super) fn write(&self, path: &Path) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(self).context("writing down what changes")?;
        // The former content of files that not everybody may read is in it.
        write_whole(path, &format!("{text}\n"), Access::OwnerOnly)
    }
}

/// Undoes the changes, the latest first. Files that were changed since are not restored.
///
/// # Errors
/// If the record cannot be read, or a file cannot be restored.
pub fn undo(record: &Path) -> anyhow::Result<Undone> {
    let mut written_down = Record::read(record)?;
    let mut undone = Undone::default();
    let mut kept = Vec::new();
    for recorded in written_down.changes.drain(..).rev() {
        let change = &recorded.change;
        let now = bounded::read(&change.path)?;
        if now == change.before {
            // Written down, and never changed; or restored by hand.
        } else if recorded.is_ours(now.as_ref()) {
            restore(change)?;
            undone.restored.push(recorded.change.path);
        } else {
            undone.kept.push(change.path.clone());
            kept.insert(0, recorded);
        }
    }
    written_down.changes = kept;
    let done = written_down.changes.is_empty();
    if done {
        remove(record)?;
    }
    match &mut written_down.made {
        Some(made) => {
            remove_directories(made);
            made.retain(|dir| dir.exists());
        }
        // Which ones existed before is not known: the empty ones go, as with the release that wrote this.
        None => {
            let removed = undone.restored.iter().filter(|path| !path.exists());
            let removed = removed.map(PathBuf::as_path).chain([record]);
            let dirs = removed.filter_map(Path::parent).map(Path::to_owned);
            remove_directories(&dirs.collect::<Vec<_>>());
        }
    }
    if !done {
        written_down.write(record)?;
    }
    Ok(undone)
}

/// Returns the directories of a file that do not exist, the outermost first.
pub(super) fn missing_directories(path: &Path) -> Vec<PathBuf> {
    let dirs = path.ancestors().skip(1);
    let mut missing: Vec<PathBuf> = dirs
        .take_while(|dir| !dir.as_os_str().is_empty() && !dir.exists())
        .map(Path::to_owned)
        .collect();
    missing.reverse();
    missing
}

/// Removes those directories that are empty, the last first.
pub(super) fn remove_directories(dirs: &[PathBuf]) {
    for dir in dirs.iter().rev() {
        let _in_use = fs::remove_dir(dir);
    }
}

/// Writes the former content of a file, or removes it if there was none.
pub(super) fn restore(change: &Change) -> anyhow::Result<()> {
    match &change.before {
        Some(before) => write_whole(&change.path, before, Access::AsBefore),
        None => remove(&change.path),
    }
}

fn remove(path: &Path) -> anyhow::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.with_context(|| format!("removing {}", path.display())),
    }
}
