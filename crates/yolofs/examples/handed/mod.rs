//! What `serve_handed` serves, and the tests compare with.

use std::sync::Arc;

use blocks::testing::{Node, tree};
use blocks::{FileId, Tree, TreeError};

/// A file of [`LARGE`] bytes.
pub(crate) const LARGE_FILE: FileId = FileId(1);
/// A file of [`HELD`] bytes, reads of which are held, one part after the other.
pub(crate) const HELD_FILE: FileId = FileId(2);
/// Bytes of a part of it.
pub(crate) const PART: u64 = 1 << 20;

const LARGE: u64 = 256 << 20;
const HELD: u64 = 64 * PART;
/// Directories, and files in each.
const DIRS: u32 = 120;
const FILES: u32 = 12;

/// The names: `held`, `large`, and `d<n>/f<n>`.
pub(crate) fn names() -> Result<Arc<Tree>, TreeError> {
    let dir_names: Vec<String> = (0..DIRS).map(|dir| format!("d{dir:03}")).collect();
    let file_names: Vec<String> = (0..FILES).map(|file| format!("f{file:02}")).collect();
    let place = |dir| HELD_FILE.0 + 1 + dir * (FILES + 1);
    let dirs = (0..).map(place).zip(&dir_names);
    let mut root: Vec<(&str, u32)> = dirs.map(|(at, name)| (name.as_str(), at)).collect();
    root.extend([("held", HELD_FILE.0), ("large", LARGE_FILE.0)]);
    let mut nodes = vec![Node::dir(&root), Node::file(LARGE), Node::file(HELD)];
    for dir in 0..DIRS {
        let files = (place(dir) + 1..).zip(&file_names);
        let files: Vec<(&str, u32)> = files.map(|(at, name)| (name.as_str(), at)).collect();
        nodes.push(Node::dir(&files));
        nodes.extend((0..FILES).map(|file| Node::file(u64::from(dir * 1000 + file))));
    }
    tree(&nodes).map(Arc::new)
}

/// Fills `buf` with the bytes of a file from `offset` on: every eight of them are their own place
/// and the number of the file.
pub(crate) fn fill(file: FileId, offset: u64, buf: &mut [u8]) {
    let word = |at: u64| (at ^ (u64::from(file.0) << 40)).to_le_bytes();
    let skip = usize::try_from(offset % 8).unwrap_or(0);
    let (head, rest) = buf.split_at_mut(buf.len().min((8 - skip) % 8));
    head.copy_from_slice(&word(offset - offset % 8)[skip..][..head.len()]);
    let start = offset + head.len() as u64;
    for (at, bytes) in (start..).step_by(8).zip(rest.chunks_mut(8)) {
        bytes.copy_from_slice(&word(at)[..bytes.len()]);
    }
}
