//! The marker that distinguishes a store from other directories: docs/bootimg-format.md, section 9.
//!
//! A directory that a user names may be anything. Nothing is created in it, and nothing removed,
//! unless it is a store, or empty.

use std::fs;
use std::io::{self, Read as _};
use std::path::Path;

use rawio::private;

use super::{Places, has_content, is_own_entry};
use crate::StoreError;
use crate::durable::{Steps, TempFile};
use crate::reader::open_regular;
use crate::store::reading;

/// Name of the marker file.
pub(in crate::store) const MARKER: &str = "yolofs-store";

/// What it has, but for the number.
const WORDS: &str = "yolofs boot image store, version ";

/// The version of the store's layout.
const VERSION: u32 = 1;

/// Most that is read of it.
const MARKER_MAX: u64 = 64;

/// Directories that every store has that was ever written to, by any release.
pub(in crate::store) const OLDEST_PARTS: [&str; 5] = ["images", "segments", "names", "pins", "tmp"];

/// The kind of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) enum Kind {
    /// A store.
    Store,
    /// A store that was made before there were markers.
    Unmarked,
    /// Missing or empty: the first write makes a store of it.
    Nothing,
}

/// Looks what a directory is. Changes nothing.
///
/// # Errors
/// If it is something else, or a store of a later version, or cannot be read.
pub(in crate::store) fn look(dir: &Path) -> Result<Kind, StoreError> {
    match look_once(dir) {
        // One that is being made: its parts were not all there, and what marks it is being written by now.
        // Then they are all there.
        Err(StoreError::NotAStore { .. }) => look_once(dir),
        decided => decided,
    }
}

fn look_once(dir: &Path) -> Result<Kind, StoreError> {
    if let Some(version) = version(dir)? {
        if version == VERSION {
            return Ok(Kind::Store);
        }
        let path = dir.to_owned();
        return Err(StoreError::Version { path, version });
    }
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Kind::Nothing),
        entries => entries.map_err(reading(dir))?,
    };
    let mut foreign = None;
    for entry in entries {
        let name = entry.map_err(reading(dir))?.file_name();
        if !is_own_entry(&name) {
            foreign = Some(dir.join(name));
            break;
        }
    }
    let complete = OLDEST_PARTS.iter().all(|part| dir.join(part).is_dir());
    // An empty layout beside something else may be what earlier releases made of a directory that they
    // were only asked to look into. Who has one loses nothing.
    if complete && (foreign.is_none() || has_content(dir)?) {
        return Ok(Kind::Unmarked);
    }
    let full = || {
        let parts = OLDEST_PARTS.iter().map(|part| dir.join(part));
        let mut there = parts.filter(|part| part.symlink_metadata().is_ok());
        there.find(|part| !is_empty_dir(part))
    };
    match foreign.or_else(full) {
        Some(found) => Err(StoreError::NotAStore {
            path: dir.to_owned(),
            found,
        }),
        // Parts that somebody was killed over before there was anything in them.
        None => Ok(Kind::Nothing),
    }
}

/// Marks a store; for the holder of its lock.
pub(in crate::store) fn write(places: &Places, steps: &Steps) -> Result<(), StoreError> {
    let path = places.dir().join(MARKER);
    let put = || {
        let mut file = TempFile::create(&path, Some(&places.tmp()), steps)?;
        file.write(format!("{WORDS}{VERSION}\n").as_bytes())?;
        file.keep(&path)
    };
    put().map_err(|error| StoreError::io(&path, "marking the store with", error))
}

/// Returns the version that the marker tells; `None` without a marker, or if it is another's file.
fn version(dir: &Path) -> Result<Option<u32>, StoreError> {
    let path = dir.join(MARKER);
    let file = match open_regular(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        // A directory, or a pipe, which would be waited for.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Ok(None),
        // What is no directory has no files in it: reading it says so.
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => return Ok(None),
        file => file.map_err(reading(&path))?,
    };
    let mut text = Vec::new();
    let read = file.take(MARKER_MAX).read_to_end(&mut text);
    read.map_err(reading(&path))?;
    let text = std::str::from_utf8(&text).unwrap_or_default();
    let number = text
        .strip_prefix(WORDS)
        .and_then(|text| text.strip_suffix('\n'));
    Ok(number.and_then(|number| number.parse().ok()))
}

fn is_empty_dir(path: &Path) -> bool {
    fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none())
}

/// Makes the directories of a store, of which some may be there.
pub(in crate::store) fn make_parts(dir: &Path, parts: &[&str]) -> Result<(), StoreError> {
    for part in parts {
        let path = dir.join(part);
        let made = private::make_dir_alike(&path);
        made.map_err(|error| StoreError::io(path, "creating", error))?;
    }
    Ok(())
}
