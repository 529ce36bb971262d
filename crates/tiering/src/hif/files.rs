//! The seam to an image's files, and paths through them.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// Symbolic links that a path may lead through: the kernel's own limit.
const LINKS_MAX: usize = 40;

/// What has a name in an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// A file of so many bytes.
    File {
        /// Its length.
        len: u64,
    },
    /// A directory.
    Directory,
    /// A symbolic link.
    Link {
        /// The target.
        target: String,
    },
    /// Something else: a device, a socket.
    Other,
}

/// The files of an image, wherever they are.
///
/// Paths begin with a slash, and go through no symbolic link and no `..`. A name that is not
/// UTF-8 counts as missing.
pub trait ImageFiles {
    /// Returns the node at a path, or `None` if there is none.
    fn node(&self, path: &str) -> Option<Node>;

    /// Reads from `offset` of a file into `buf`, and returns how many bytes.
    ///
    /// # Errors
    /// If it is no file, or cannot be read.
    fn read_at(&self, path: &str, offset: u64, buf: &mut [u8]) -> io::Result<usize>;

    /// Returns the names in a directory; none if it is not a directory.
    fn names(&self, path: &str) -> Vec<String>;
}

/// Layers that were unpacked, the highest first, as overlayfs would show them; or one tree.
///
/// A directory that hides what lower layers have in it (an *opaque* one) is not known as such: so
/// a file may be found that the image does not show. That costs the room of that file.
#[derive(Clone, Debug)]
pub struct Layers {
    highest_first: Vec<PathBuf>,
}

impl Layers {
    /// Returns the image of these layers, the lowest first.
    #[must_use]
    pub fn new(lowest_first: &[PathBuf]) -> Self {
        Self {
            highest_first: lowest_first.iter().rev().cloned().collect(),
        }
    }

    /// Returns the layer that shows a path, from the lowest, counted from 0.
    #[must_use]
    pub fn layer_of(&self, path: &str) -> Option<usize> {
        let (layer, _) = self.find(path)?;
        Some(self.highest_first.len() - 1 - layer)
    }

    /// Returns which of the layers shows a path, and where it lies there.
    fn find(&self, path: &str) -> Option<(usize, PathBuf)> {
        for (layer, root) in self.highest_first.iter().enumerate() {
            match shown(root, path) {
                Shown::Here(at) => return Some((layer, at)),
                Shown::Below => {}
                Shown::Nowhere => return None,
            }
        }
        None
    }
}

/// What a layer says of a path.
enum Shown {
    Here(PathBuf),
    /// No entry: look at the layers below.
    Below,
    /// It was removed.
    Nowhere,
}

fn shown(root: &Path, path: &str) -> Shown {
    let mut at = root.to_owned();
    let mut parts = path.split('/').filter(|part| !part.is_empty()).peekable();
    while let Some(part) = parts.next() {
        at.push(part);
        let Ok(meta) = fs::symlink_metadata(&at) else {
            return Shown::Below;
        };
        let whiteout = meta.file_type().is_char_device() && meta.rdev() == 0;
        if whiteout || (parts.peek().is_some() && !meta.is_dir()) {
            return Shown::Nowhere;
        }
    }
    Shown::Here(at)
}

impl ImageFiles for Layers {
    fn node(&self, path: &str) -> Option<Node> {
        let (_, at) = self.find(path)?;
        let meta = fs::symlink_metadata(&at).ok()?;
        let kind = meta.file_type();
        Some(if kind.is_file() {
            Node::File { len: meta.len() }
        } else if kind.is_dir() {
            Node::Directory
        } else if kind.is_symlink() {
            let target = fs::read_link(&at).ok()?.into_os_string();
            Node::Link {
                target: target.into_string().ok()?,
            }
        } else {
            Node::Other
        })
    }

    fn read_at(&self, path: &str, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let (_, at) = self.find(path).ok_or(io::ErrorKind::NotFound)?;
        if !fs::symlink_metadata(&at)?.is_file() {
            return Err(io::ErrorKind::InvalidInput.into()); // a FIFO would wait for a writer
        }
        File::open(at)?.read_at(buf, offset)
    }

    fn names(&self, path: &str) -> Vec<String> {
        let mut names = std::collections::BTreeSet::new();
        for root in &self.highest_first {
            match shown(root, path) {
                Shown::Here(at) => {
                    let entries = fs::read_dir(at).into_iter().flatten().flatten();
                    names.extend(entries.filter_map(|entry| entry.file_name().into_string().ok()));
                }
                Shown::Below => {}
                Shown::Nowhere => break,
            }
        }
        names.into_iter().collect()
    }
}

/// Returns where a path leads after symbolic links, from `directory` if it is relative, and the node there.
pub(super) fn resolve(
    files: &dyn ImageFiles,
    directory: &str,
    path: &str,
) -> Option<(String, Node)> {
    let mut rest: VecDeque<String> = parts(path).collect();
    let mut at: Vec<String> = match path.starts_with('/') {
        true => Vec::new(),
        false => parts(directory).collect(),
    };
    let mut links = 0;
    while let Some(part) = rest.pop_front() {
        if part == ".." {
            at.pop();
            continue;
        }
        at.push(part);
        if let Node::Link { target } = files.node(&joined(&at))? {
            links += 1;
            if links > LINKS_MAX {
                return None;
            }
            at.pop();
            if target.starts_with('/') {
                at.clear();
            }
            parts(&target).rev().for_each(|part| rest.push_front(part));
        }
    }
    let path = joined(&at);
    let node = files.node(&path)?;
    Some((path, node))
}

fn parts(path: &str) -> impl DoubleEndedIterator<Item = String> {
    let parts = path.split('/').filter(|part| !matches!(*part, "" | "."));
    parts.map(str::to_owned)
}

fn joined(parts: &[String]) -> String {
    format!("/{}", parts.join("/"))
}

/// Returns the beginning of a file, at most `most` bytes.
pub(super) fn head(files: &dyn ImageFiles, path: &str, most: usize) -> Vec<u8> {
    let mut bytes = vec![0; most];
    let mut done = 0;
    while done < most {
        match files.read_at(path, done as u64, &mut bytes[done..]) {
            Ok(0) | Err(_) => break,
            Ok(read) => done += read.min(most - done),
        }
    }
    bytes.truncate(done);
    bytes
}
