//! Which file of one tree is which of another.

use blocks::{FileId, Inode, NodeKind, Tree, Version};

use crate::DropReason;

/// Where the files of an image are in the tree of now.
#[derive(Debug)]
pub(super) struct Matching {
    /// By file id of the image.
    verdicts: Vec<Result<FileId, DropReason>>,
    pub(super) names_added: u64,
    pub(super) names_removed: u64,
}

/// What makes a file of another tree the same file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sameness {
    /// Its version: it was not written to since. For serving content.
    Version {
        /// When the content of the other tree's files was read, in seconds since 1970; 0 if unknown.
        /// A release that did not support file systems with whole seconds may have read a file before its last
        /// change within that second.
        read_at: i64,
    },
    /// Its path, kind and length: the same file in a copy of the source. For hints.
    Shape,
}

impl Matching {
    pub(super) fn of(old: &Tree, new: &Tree, sameness: Sameness) -> Self {
        let mut matching = Self {
            verdicts: vec![Err(DropReason::Gone); old.len()],
            names_added: 0,
            names_removed: 0,
        };
        if same_names(old, new) {
            matching.by_id(old, new, sameness);
        } else {
            matching.by_path(old, new, sameness);
        }
        matching.settle(new.len());
        matching
    }

    /// Returns the matching file, or why there is none.
    pub(super) fn verdict(&self, file: FileId) -> Result<FileId, DropReason> {
        let verdict = self.verdicts.get(file.index());
        verdict.copied().unwrap_or(Err(DropReason::Gone))
    }

    /// Returns which file it is now, if it is one.
    pub(super) fn file(&self, file: FileId) -> Option<FileId> {
        self.verdict(file).ok()
    }

    fn by_id(&mut self, old: &Tree, new: &Tree, sameness: Sameness) {
        for ((file, was), (_, is)) in old.files().zip(new.files()) {
            self.verdicts[file.index()] = compare(was, is, sameness).map(|()| file);
        }
    }

    /// Walks down both trees at once; their names are sorted.
    fn by_path(&mut self, old: &Tree, new: &Tree, sameness: Sameness) {
        let mut dirs = vec![(FileId::ROOT, FileId::ROOT)];
        self.verdicts[FileId::ROOT.index()] = Ok(FileId::ROOT);
        while let Some((old_dir, new_dir)) = dirs.pop() {
            let mut old_names = old.entries(old_dir).peekable();
            let mut new_names = new.entries(new_dir).peekable();
            loop {
                let order = match (old_names.peek(), new_names.peek()) {
                    (None, None) => break,
                    (Some(_), None) => std::cmp::Ordering::Less,
                    (None, Some(_)) => std::cmp::Ordering::Greater,
                    (Some((a, _)), Some((b, _))) => a.cmp(b),
                };
                let was = order.is_le().then(|| old_names.next()).flatten();
                let is = order.is_ge().then(|| new_names.next()).flatten();
                match (was, is) {
                    (Some((_, was)), Some((_, is))) => {
                        let pair = old.inode(was).zip(new.inode(is));
                        if pair.is_some_and(|pair| self.pair(was, is, pair, sameness)) {
                            dirs.push((was, is));
                        } else {
                            self.names_removed += names_below(old, was);
                            self.names_added += names_below(new, is);
                        }
                    }
                    (Some((_, was)), None) => self.names_removed += 1 + names_below(old, was),
                    (None, Some((_, is))) => self.names_added += 1 + names_below(new, is),
                    (None, None) => break,
                }
            }
        }
    }

    /// Notes that two files have the same path, and returns whether both are directories.
    fn pair(
        &mut self,
        was: FileId,
        is: FileId,
        (a, b): (&Inode, &Inode),
        sameness: Sameness,
    ) -> bool {
        let verdict = &mut self.verdicts[was.index()];
        match (compare(a, b, sameness), &*verdict) {
            // One path of a file with several is enough, and the first that matches stays.
            (_, Ok(_)) => {}
            (Ok(()), Err(_)) => *verdict = Ok(is),
            // That it changed says more than that another of its names is gone.
            (Err(reason), Err(_)) => *verdict = Err(reason),
        }
        a.attr.kind == NodeKind::Dir && b.attr.kind == NodeKind::Dir
    }

    /// Sees to it that no file of the new tree is two of the old: a version that lies about its
    /// inode could bring that about.
    fn settle(&mut self, new_len: usize) {
        let mut taken = vec![false; new_len];
        for verdict in &mut self.verdicts {
            if let Ok(file) = *verdict
                && std::mem::replace(&mut taken[file.index()], true)
            {
                *verdict = Err(DropReason::Changed);
            }
        }
    }
}

/// Returns whether the file that was is the file that is.
fn compare(was: &Inode, is: &Inode, sameness: Sameness) -> Result<(), DropReason> {
    if was.attr.kind != is.attr.kind {
        return Err(DropReason::OtherKind);
    }
    // Only the content of regular files is served from the image.
    let same = was.attr.kind != NodeKind::File
        || match sameness {
            Sameness::Version { read_at } => {
                let version = was.attr.version();
                version == is.attr.version() && !may_hide_a_change(&version, read_at)
            }
            Sameness::Shape => was.attr.size == is.attr.size,
        };
    if same {
        Ok(())
    } else {
        Err(DropReason::Changed)
    }
}

/// Returns whether a file system that keeps whole seconds may have given the same version to what was
/// read at some moment and to what was written after it.
fn may_hide_a_change(version: &Version, read_at: i64) -> bool {
    let settled = version.tick().as_secs().cast_signed() + 1;
    read_at != 0 && version.ctime.nanos == 0 && version.ctime.secs.saturating_add(settled) > read_at
}

/// Returns whether every path means the same file id in both trees, as in scans of a source
/// whose names did not change.
fn same_names(old: &Tree, new: &Tree) -> bool {
    let (a, b) = (old.parts(), new.parts());
    let shapes = a.inodes.iter().map(|inode| inode.data);
    a.inodes.len() == b.inodes.len()
        && shapes.eq(b.inodes.iter().map(|inode| inode.data))
        && a.entries == b.entries
        && a.bytes == b.bytes
}

/// Returns the number of names below a file: 0 unless it is a directory.
fn names_below(tree: &Tree, file: FileId) -> u64 {
    let mut names = 0;
    let mut dirs = vec![file];
    while let Some(dir) = dirs.pop() {
        for (_, child) in tree.entries(dir) {
            names += 1;
            dirs.push(child); // has no entries unless it is a directory
        }
    }
    names
}
