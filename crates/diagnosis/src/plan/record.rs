//! The record of changes, written before they are made.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};

use super::{Change, write_whole};
use crate::bounded;

/// The version of the record's form.
const VERSION: u32 = 1;

/// The changes that were made, in their order.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Record {
    version: u32,
    changes: Vec<Change>,
}

/// The result of an undo.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Undone {
    /// Files that are as they were before.
    pub restored: Vec<PathBuf>,
    /// Files that were changed since, and were not restored.
    pub kept: Vec<PathBuf>,
}

impl Record {
    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        let Some(text) = bounded::read(path)? else {
            return Ok(Self {
                version: VERSION,
                changes: Vec::new(),
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

    /// Adds a change. For a file that was changed before, the first content is kept.
    pub(super) fn add(&mut self, mut change: Change) {
        let mut known = self.changes.iter_mut();
        match known.find(|known| known.path == change.path) {
            // Unless somebody else had a hand in it since.
            Some(known) if change.before.as_ref() == Some(&known.after) => {
                change.before = known.before.take();
                *known = change;
            }
            Some(known) => *known = change,
            None => self.changes.push(change),
        }
    }

    pub(super) fn write(&self, path: &Path) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(self).context("writing down what changes")?;
        write_whole(path, &format!("{text}\n"))
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
    for change in written_down.changes.drain(..).rev() {
        let now = bounded::read(&change.path)?;
        if now == change.before {
            // Written down, and never changed; or restored by hand.
        } else if now.as_ref() == Some(&change.after) {
            restore(&change)?;
            undone.restored.push(change.path);
        } else {
            undone.kept.push(change.path.clone());
            kept.insert(0, change);
        }
    }
    written_down.changes = kept;
    if !written_down.changes.is_empty() {
        written_down.write(record)?;
    } else if record.exists() {
        remove(record)?;
    }
    Ok(undone)
}

fn restore(change: &Change) -> anyhow::Result<()> {
    match &change.before {
        Some(before) => write_whole(&change.path, before),
        None => {
            remove(&change.path)?;
            // The directory, if nobody else uses it.
            if let Some(dir) = change.path.parent() {
                let _in_use = fs::remove_dir(dir);
            }
            Ok(())
        }
    }
}

fn remove(path: &Path) -> anyhow::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.with_context(|| format!("removing {}", path.display())),
    }
}
