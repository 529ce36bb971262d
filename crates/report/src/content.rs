//! What a boot reads: which files, where, of which kind.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::kind::FileKind;
use crate::sum::sum;

/// Most files and directories that are listed one by one: what a person looks through.
const LISTED_MAX: usize = 200;

/// What a boot reads, the largest parts one by one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Content {
    /// Files of which something is read.
    pub files: u64,
    /// Bytes that are read of them.
    pub bytes: u64,
    /// Directories that they are in.
    pub directories: u64,
    /// The files of which most is read, that one first.
    pub top_files: Vec<FileShare>,
    /// The directories of which most is read, that one first.
    pub top_directories: Vec<DirectoryShare>,
    /// All kinds, the one of which most is read first.
    pub kinds: Vec<KindShare>,
}

/// The reads of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileShare {
    /// Its path, without a leading slash.
    pub path: String,
    /// Index of its layer, from the bottom.
    pub layer: usize,
    /// Its kind.
    pub kind: FileKind,
    /// Bytes that are read.
    pub bytes: u64,
    /// Bytes of all of it.
    pub size: u64,
    /// Milliseconds from the start of the boot to the first use.
    pub first_ms: u64,
}

/// The reads of the files of a directory, without those below it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectoryShare {
    /// Its path, without a leading slash; empty for the root.
    pub path: String,
    /// Bytes that are read.
    pub bytes: u64,
    /// Files that they are in.
    pub files: u64,
}

/// The reads of files of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KindShare {
    /// The kind.
    pub kind: FileKind,
    /// Bytes that are read.
    pub bytes: u64,
    /// Files that they are in.
    pub files: u64,
}

impl Content {
    /// Sums the reads of files, in any order.
    #[must_use]
    pub fn of(mut files: Vec<FileShare>) -> Self {
        // Equal ones go by name, so that equal data make equal pages.
        files.sort_by(|a, b| {
            (Reverse(a.bytes), &a.path, a.layer).cmp(&(Reverse(b.bytes), &b.path, b.layer))
        });
        let directories = shares(&files, |file| directory(&file.path));
        let kinds = shares(&files, |file| file.kind);
        Self {
            files: files.len() as u64,
            bytes: sum(files.iter().map(|file| file.bytes)),
            directories: directories.len() as u64,
            top_directories: directories
                .into_iter()
                .take(LISTED_MAX)
                .map(|(path, (bytes, files))| DirectoryShare {
                    path: path.to_owned(),
                    bytes,
                    files,
                })
                .collect(),
            kinds: kinds
                .into_iter()
                .map(|(kind, (bytes, files))| KindShare { kind, bytes, files })
                .collect(),
            top_files: files.into_iter().take(LISTED_MAX).collect(),
        }
    }
}

/// Returns bytes and files by what `key` makes of a file, most bytes first.
fn shares<'a, K: Ord + Copy>(
    files: &'a [FileShare],
    key: impl Fn(&'a FileShare) -> K,
) -> Vec<(K, (u64, u64))> {
    let mut shares: BTreeMap<K, (u64, u64)> = BTreeMap::new();
    for file in files {
        let (bytes, count) = shares.entry(key(file)).or_default();
        *bytes = bytes.saturating_add(file.bytes);
        *count += 1;
    }
    let mut shares: Vec<_> = shares.into_iter().collect();
    shares.sort_by_key(|(_, (bytes, _))| Reverse(*bytes));
    shares
}

fn directory(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(directory, _)| directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, kind: FileKind, bytes: u64) -> FileShare {
        FileShare {
            path: path.to_owned(),
            layer: 0,
            kind,
            bytes,
            size: bytes * 2,
            first_ms: 0,
        }
    }

    #[test]
    fn the_largest_come_first_and_sums_are_whole() {
        let content = Content::of(vec![
            file("usr/lib/b.so", FileKind::Library, 30),
            file("init", FileKind::Program, 50),
            file("usr/lib/a.so", FileKind::Library, 30),
        ]);
        let paths: Vec<_> = content.top_files.iter().map(|file| &*file.path).collect();
        assert_eq!(paths, ["init", "usr/lib/a.so", "usr/lib/b.so"]);
        assert_eq!(
            (content.files, content.bytes, content.directories),
            (3, 110, 2)
        );
        let first = &content.top_directories[0];
        assert_eq!((&*first.path, first.bytes, first.files), ("usr/lib", 60, 2));
        assert_eq!(content.top_directories[1].path, "");
        assert_eq!(content.kinds[0].kind, FileKind::Library);
        assert_eq!((content.kinds[1].bytes, content.kinds[1].files), (50, 1));
    }

    #[test]
    fn lists_are_bounded_and_counts_are_not() {
        let many = (0..10_000).map(|n| file(&format!("d{n}/f"), FileKind::Data, n));
        let content = Content::of(many.collect());
        assert_eq!((content.files, content.directories), (10_000, 10_000));
        assert_eq!(content.top_files.len(), LISTED_MAX);
        assert_eq!(content.top_directories.len(), LISTED_MAX);
        assert_eq!(content.top_files[0].bytes, 9999);
    }
}
