//! Comparing two directory trees, byte for byte and attribute for attribute.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use blocks::{Attr, FileId, NodeKind, Tree};
use localfs::SourceRoot;
use nix::errno::Errno;
use nix::unistd::{Whence, lseek};

/// Which attributes must be equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Times {
    /// Times of change, to the nanosecond.
    Compared,
    /// Times of the last change of content: the trees were made one after the other.
    Modified,
    /// None: the trees were changed one after the other.
    Ignored,
}

/// Panics unless both trees have the same names, attributes, links, extended attributes and
/// contents.
pub fn assert_twins(a: &Path, b: &Path, times: Times) {
    let (one, other) = (scan(a), scan(b));
    let mut pairs = HashMap::new();
    let mut waiting = vec![(FileId::ROOT, FileId::ROOT, a.to_path_buf(), b.to_path_buf())];
    let mut compared = 0;
    while let Some((x, y, path_a, path_b)) = waiting.pop() {
        let known = pairs.insert(x, y);
        assert!(
            known.is_none_or(|known| known == y),
            "{}: linked differently",
            path_a.display()
        );
        if known.is_some() {
            continue;
        }
        compared += 1;
        assert_eq!(
            attr(&one, x, times),
            attr(&other, y, times),
            "{}",
            path_a.display()
        );
        assert!(
            one.xattrs(x).eq(other.xattrs(y)),
            "{}: extended attributes differ",
            path_a.display()
        );
        assert_eq!(
            one.link_target(x),
            other.link_target(y),
            "{}",
            path_a.display()
        );
        let names = |tree: &Tree, dir| -> Vec<Vec<u8>> {
            tree.entries(dir).map(|(name, _)| name.to_vec()).collect()
        };
        assert_eq!(names(&one, x), names(&other, y), "{}", path_a.display());
        for ((name, below_x), (_, below_y)) in one.entries(x).zip(other.entries(y)) {
            let name = std::ffi::OsStr::from_bytes(name);
            waiting.push((below_x, below_y, path_a.join(name), path_b.join(name)));
        }
        if one
            .inode(x)
            .is_some_and(|inode| inode.attr.kind == NodeKind::File)
        {
            assert_same_content(&path_a, &path_b);
        }
    }
    assert_eq!(
        compared,
        one.len(),
        "{}: some files have no name",
        a.display()
    );
    assert_eq!(one.len(), other.len(), "{}: hard links differ", a.display());
}

fn scan(path: &Path) -> Tree {
    let root = SourceRoot::open(path).unwrap();
    let scan = localfs::scan(&root, |_| {}).unwrap();
    assert!(
        scan.report.is_clean(),
        "{}: {:?}",
        path.display(),
        scan.report
    );
    scan.tree
}

/// What must be equal: not where the source keeps the file, nor when it was last read.
fn attr(tree: &Tree, file: FileId, times: Times) -> Attr {
    let mut attr = tree.inode(file).unwrap().attr;
    attr.source_inode = 0;
    attr.atime = blocks::Timestamp::default();
    if times != Times::Compared {
        attr.ctime = attr.atime;
    }
    if times == Times::Ignored {
        attr.mtime = attr.atime;
        attr.blocks = 0;
        if attr.kind == NodeKind::Dir {
            attr.size = 0; // overlayfs shows that of whichever layer is on top
        }
    }
    attr
}

/// Compares files of any size: the places of their holes, and what is between.
pub fn assert_same_content(a: &Path, b: &Path) {
    let (one, other) = (File::open(a).unwrap(), File::open(b).unwrap());
    let (mut x, mut y) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    let mut at = 0;
    while let Some(data) = seek(&one, at, Whence::SeekData) {
        assert_eq!(
            seek(&other, at, Whence::SeekData),
            Some(data),
            "{}: data",
            b.display()
        );
        at = seek(&one, data, Whence::SeekHole).unwrap();
        assert_eq!(
            seek(&other, data, Whence::SeekHole),
            Some(at),
            "{}: holes",
            b.display()
        );
        let mut from = data;
        while from < at {
            let len = x.len().min(usize::try_from(at - from).unwrap());
            let offset = u64::try_from(from).unwrap();
            one.read_exact_at(&mut x[..len], offset).unwrap();
            other.read_exact_at(&mut y[..len], offset).unwrap();
            assert!(
                x[..len] == y[..len],
                "{} and {} differ",
                a.display(),
                b.display()
            );
            from += i64::try_from(len).unwrap();
        }
    }
    assert_eq!(
        seek(&other, at, Whence::SeekData),
        None,
        "{}: longer",
        b.display()
    );
}

/// Returns the next data or hole from `at` on; `None` behind the last data.
fn seek(file: &File, at: i64, what: Whence) -> Option<i64> {
    match lseek(file, at, what) {
        Ok(found) => Some(found),
        Err(Errno::ENXIO) => None,
        Err(error) => panic!("seeking: {error}"),
    }
}
