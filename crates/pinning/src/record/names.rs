//! Resolves the device and inode numbers in a trace to files.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::ensure;
use nix::sys::stat::{major, minor};

use super::line::Key;
use crate::pages::PAGE;

/// The most files that are looked at.
const FILES_MAX: usize = 4_000_000;

/// Returns the regular files below some directories, each by one of its paths. Files that disappear during
/// the scan are left out; so are mounts below.
///
/// # Errors
/// If there are too many.
pub(super) fn files_below(
    roots: &[PathBuf],
    wanted: impl Fn(&Key) -> bool,
) -> anyhow::Result<HashMap<Key, PathBuf>> {
    let mut found = HashMap::new();
    let mut looked_at = 0;
    let mut seen = HashSet::new();
    let mut left: Vec<PathBuf> = roots
        .iter()
        .rev()
        .filter_map(|root| root.canonicalize().ok())
        .collect();
    while let Some(dir) = left.pop() {
        let Ok(about) = dir.metadata() else { continue };
        if !seen.insert((about.dev(), about.ino())) {
            continue;
        }
        let Ok(entries) = fs::read_dir(&dir) else {
            continue;
        };
        for entry in entries.flatten() {
            let Ok(file) = entry.metadata() else { continue };
            looked_at += 1;
            ensure!(
                looked_at <= FILES_MAX,
                "there are more than {FILES_MAX} files: name fewer directories (`under`)"
            );
            let key = key_of(&file);
            if file.is_dir() && file.dev() == about.dev() {
                left.push(entry.path());
            } else if file.is_file() && file.len() > 0 && wanted(&key) {
                found.entry(key).or_insert_with(|| entry.path());
            }
        }
    }
    Ok(found)
}

/// Returns the numbers of a file that was looked at.
pub(super) fn key_of(file: &fs::Metadata) -> Key {
    let number = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    Key {
        device: (number(major(file.dev())), number(minor(file.dev()))),
        inode: file.ino(),
    }
}

/// Returns whether two paths lead to one file.
pub(super) fn is_same(path: &Path, key: &Key) -> bool {
    path.metadata().is_ok_and(|file| key_of(&file) == *key)
}

/// Returns the bytes of whole pages, cut at the end of the file.
pub(super) fn bytes_of(pages: &std::ops::Range<u64>, size: u64) -> std::ops::Range<u64> {
    (pages.start * PAGE).min(size)..(pages.end * PAGE).min(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_is_found_once_and_links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let below = dir.path().join("a/b");
        fs::create_dir_all(&below).unwrap();
        fs::write(below.join("file"), "x").unwrap();
        fs::write(below.join("empty"), "").unwrap();
        fs::hard_link(below.join("file"), below.join("again")).unwrap();
        std::os::unix::fs::symlink("/", below.join("out")).unwrap();
        let roots = [dir.path().to_owned(), below.clone(), "/nonexistent".into()];
        let found = files_below(&roots, |_| true).unwrap();
        let key = key_of(&fs::metadata(below.join("file")).unwrap());
        assert_eq!(found.keys().copied().collect::<Vec<_>>(), [key]);
        assert!(is_same(&found[&key], &key));
    }
}
