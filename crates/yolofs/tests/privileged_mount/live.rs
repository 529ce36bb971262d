//! A source that changes while it is mounted, and says so.

use std::fs;
use std::ops::ControlFlow;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use blocks::testing::{Node, tree};
use blocks::{
    Attr, BlockSource, EntryRef, FileId, FileKey, Lifetime, Namespace, SourceError, Timestamp, Tree,
};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use yolofs::{Config, FileSystem};

use crate::rig::{ChangingSource, Mounted, eventually, pattern};

/// Names and attributes that are another tree from one moment to the next.
pub(crate) struct LiveNames(pub(crate) RwLock<Tree>, Lifetime);

impl LiveNames {
    /// Returns names that are asked each time.
    pub(crate) fn new(tree: Tree) -> Self {
        Self(RwLock::new(tree), Lifetime::For(Duration::ZERO))
    }

    /// Returns names of which the kernel is told that they stay.
    pub(crate) fn kept(tree: Tree) -> Self {
        Self(RwLock::new(tree), Lifetime::Forever)
    }

    fn now(&self) -> std::sync::RwLockReadGuard<'_, Tree> {
        self.0.read().unwrap()
    }
}

impl Namespace for LiveNames {
    fn lifetime(&self) -> Lifetime {
        self.1
    }

    fn lookup(&self, dir: FileId, name: &[u8]) -> Result<Option<FileId>, SourceError> {
        self.now().lookup(dir, name)
    }

    fn attr(&self, file: FileId) -> Result<Attr, SourceError> {
        self.now().attr(file)
    }

    fn parent(&self, dir: FileId) -> Result<FileId, SourceError> {
        self.now().parent(dir)
    }

    fn path(&self, file: FileId) -> Option<Vec<u8>> {
        self.now().path(file)
    }

    fn list(
        &self,
        dir: FileId,
        cursor: u64,
        visit: &mut dyn FnMut(EntryRef<'_>) -> ControlFlow<()>,
    ) -> Result<(), SourceError> {
        self.now().list(dir, cursor, visit)
    }

    fn target(&self, link: FileId) -> Result<Vec<u8>, SourceError> {
        self.now().target(link)
    }

    fn xattr(&self, file: FileId, name: &[u8]) -> Result<Option<Vec<u8>>, SourceError> {
        self.now().xattr(file, name)
    }

    fn xattr_names(&self, file: FileId) -> Result<Vec<u8>, SourceError> {
        self.now().xattr_names(file)
    }

    fn generation(&self, file: FileId) -> Option<u32> {
        let kept = self.1 == Lifetime::Forever;
        kept.then(|| self.now().generation(file))?
    }

    fn has_xattrs(&self) -> bool {
        self.now().has_xattrs()
    }

    fn has_access_lists(&self) -> bool {
        self.now().has_access_lists()
    }
}

/// A tree of one file under a name of its own for each generation.
fn generation(number: u8) -> (Tree, Vec<u8>) {
    let content = pattern(number.into(), 9_000 + usize::from(number));
    let mut file = Node::file(content.len() as u64);
    let changed = Timestamp {
        secs: number.into(),
        nanos: 0,
    };
    (file.attr.mtime, file.attr.ctime) = (changed, changed);
    let mut root = Node::dir(&[("file", 1), (&format!("only-{number}"), 1)]);
    (root.attr.mtime, root.attr.ctime) = (changed, changed);
    (tree(&[root, file]).unwrap(), content)
}

#[test]
fn every_change_is_seen_at_the_next_look() {
    let (first, content) = generation(0);
    let source = Arc::new(ChangingSource::default());
    let put = |tree: &Tree, content: &[u8]| {
        let key: FileKey = tree.key(FileId(1)).unwrap();
        source.0.write().unwrap().insert(key, content.to_vec());
    };
    put(&first, &content);
    let names = Arc::new(LiveNames::new(first));
    let fs = FileSystem::new(names.clone(), source.clone(), Config::default());
    let mounted = Mounted::new(fs);
    assert_eq!(fs::read(mounted.path("file")).unwrap(), content);
    for number in 1..20 {
        let (next, content) = generation(number);
        put(&next, &content);
        *names.0.write().unwrap() = next;
        assert_eq!(
            fs::read(mounted.path("file")).unwrap(),
            content,
            "generation {number}"
        );
        assert!(mounted.path(&format!("only-{number}")).exists());
        assert!(!mounted.path(&format!("only-{}", number - 1)).exists());
        let listed = fs::read_dir(mounted.mount().target())
            .unwrap()
            .last()
            .unwrap()
            .unwrap();
        assert_eq!(
            listed.file_name().to_str().unwrap(),
            format!("only-{number}")
        );
    }
    assert_eq!(mounted.mount().counters().diverted_files, 0);
}

/// A source whose file changes just when it is read.
struct ChangesUnderReads {
    names: Arc<LiveNames>,
    files: ChangingSource,
    next: RwLock<Option<(Tree, Vec<u8>)>>,
}

impl BlockSource for ChangesUnderReads {
    fn read_at(&self, file: &FileKey, offset: u64, buf: &mut [u8]) -> Result<usize, SourceError> {
        let next = self.next.write().unwrap().take();
        if let Some((tree, content)) = next {
            let key = tree.key(FileId(1)).unwrap();
            self.files.0.write().unwrap().insert(key, content);
            *self.names.0.write().unwrap() = tree;
        }
        self.files.read_at(file, offset, buf)
    }
}

#[test]
fn what_changed_under_a_read_is_remembered_until_the_kernel_has_forgotten() {
    let (first, _) = generation(0);
    let names = Arc::new(LiveNames::new(first));
    let source = Arc::new(ChangesUnderReads {
        names: Arc::clone(&names),
        files: ChangingSource::default(),
        next: RwLock::default(),
    });
    let fs = FileSystem::new(names, source.clone(), Config::default());
    let mounted = Mounted::new(fs);
    for number in 1..20 {
        let (tree, content) = generation(number);
        *source.next.write().unwrap() = Some((tree, content.clone()));
        let file = fs::File::open(mounted.path("file")).unwrap();
        posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
        drop(file);
        eventually("the new version is shown", || {
            fs::read(mounted.path("file")).is_ok_and(|read| read == content)
        });
        // The names know its version: what is kept here would be kept for ever.
        eventually("it is forgotten", || {
            mounted.mount().file_system().diverted_files().is_empty()
        });
        assert_eq!(mounted.mount().counters().diverted_files, u64::from(number));
    }
}
