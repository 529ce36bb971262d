//! Runs operations on the file system and on the model, and compares.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use blocks::testing::{Fault, Faulty, MemAttrs, MemCache, MemSource, tree};
use blocks::{
    AllAttrs, Attr, BLOCK_SIZE, BlockCache, BlockRange, BlockSource, CachedSource, Caller, FileId,
    FileKey, Lifetime, Lookup, NodeKind, Seek, SourceError, SourceErrorKind, Timestamp,
};
use proptest::sample::Index;
use yolofs::{Config, DirItem, FileSystem, FsError, Mode, Request, Space, XattrReply};

use crate::model::{Content, File, Model, Rights, Spec, State};
use crate::ops::Operation;

const NOBODY: Caller = Caller { pid: 0 };
const SPACE: Space = Space {
    block_size: 512,
    blocks: 6,
    blocks_free: 5,
    blocks_available: 4,
    inodes: 3,
    inodes_free: 2,
};

/// A source whose files change while it is read.
#[derive(Debug, Default)]
struct ChangingSource(RwLock<MemSource>);

impl BlockSource for ChangingSource {
    fn read_at(&self, file: &FileKey, offset: u64, buf: &mut [u8]) -> Result<usize, SourceError> {
        self.0.read().unwrap().read_at(file, offset, buf)
    }
}

/// A cache that works for so many calls only, and takes nothing by itself.
struct TiringCache(Faulty<Arc<MemCache>>);

impl BlockCache for TiringCache {
    fn get(&self, file: &FileKey, range: BlockRange, out: &mut [u8]) -> Lookup {
        self.0.get(file, range, out)
    }
}

pub(crate) struct Harness {
    model: Model,
    fs: FileSystem,
    source: Arc<ChangingSource>,
    attrs: Arc<MemAttrs>,
    cache: Arc<MemCache>,
    /// The changes that the file system has found out about, and that it has followed.
    known: HashMap<usize, State>,
    /// Files of which the cache has anything.
    recorded: HashSet<usize>,
    changes: i64,
    reads: u64,
    refused: u64,
}

impl Harness {
    pub(crate) fn new(specs: &[Spec], cache_calls: u64) -> Self {
        let model = Model::new(specs);
        let tree = Arc::new(tree(&model.nodes()).unwrap());
        let source = Arc::new(ChangingSource::default());
        for file in model.of_kind(NodeKind::File) {
            let key = tree.key(id(file)).unwrap();
            let bytes = model.files[file].scanned.content.bytes();
            source.0.write().unwrap().insert(key, bytes);
        }
        let cache = Arc::new(MemCache::default());
        let tiring = TiringCache(Faulty::new(Arc::clone(&cache), Fault::Busy, cache_calls));
        let stack = Arc::new(CachedSource::new(tiring, Arc::clone(&source)));
        let config = Config {
            mode: Mode::Lower,
            boot_files: HashSet::new(),
        };
        let attrs = Arc::new(MemAttrs::of(&tree));
        let fs = FileSystem::new(tree, stack, config)
            .with_attrs(Arc::clone(&attrs) as _)
            .with_space(|| Ok(SPACE));
        Self {
            model,
            fs,
            source,
            attrs,
            cache,
            known: HashMap::new(),
            recorded: HashSet::new(),
            changes: 0,
            reads: 0,
            refused: 0,
        }
    }

    pub(crate) fn run(&mut self, operation: &Operation) {
        match operation {
            Operation::Lookup { dir, name } => self.lookup(self.any(*dir), name),
            Operation::LookupTooLong { dir } => {
                let result = self.fs.lookup(NOBODY, id(self.any(*dir)), &[b'x'; 256]);
                assert!(matches!(result, Err(FsError::NameTooLong)));
            }
            Operation::GetAttr { file } => {
                let file = self.any(*file);
                assert_eq!(self.fs.getattr(id(file)).unwrap(), self.attr(file));
            }
            Operation::ReadLink { file } => self.read_link(self.any(*file)),
            Operation::List { file, take, plus } => self.list(self.any(*file), *take, *plus),
            Operation::Read {
                file,
                offset,
                len,
                path,
            } => {
                let Some(file) = self.regular(*file) else {
                    return;
                };
                let mut buf = vec![0xAA; *len];
                let read = self.fs.read(NOBODY, id(file), *offset, &mut buf, *path);
                self.reads += 1;
                match read {
                    Ok(read) => {
                        self.notice(file, *offset, *len);
                        assert_eq!(
                            &buf[..read],
                            &slice(&self.shown(file).content.bytes(), *offset, *len)
                        );
                    }
                    Err(error) => self.refused(file, &error),
                }
            }
            Operation::Seek { file, offset, what } => self.seek(*file, *offset, *what),
            Operation::GetXattr { file, name, room } => {
                let file = self.any(*file);
                let value = self.shown(file).xattrs.get(name);
                let room = room.beside(value.map_or(0, Vec::len));
                let result = self.fs.getxattr(id(file), name, room);
                match value {
                    Some(value) => expect_fit(result, value, room),
                    None => assert!(matches!(result, Err(FsError::NoAttribute))),
                }
            }
            Operation::ListXattr { file, room } => {
                let file = self.any(*file);
                let mut names = self.shown(file).xattrs.keys().cloned().collect::<Vec<_>>();
                names.iter_mut().for_each(|name| name.push(0));
                let names = names.concat();
                let room = room.beside(names.len());
                expect_fit(self.fs.listxattr(id(file), room), &names, room);
            }
            Operation::Access { file, mask } => {
                let allowed = self.fs.access(id(self.any(*file)), *mask).is_ok();
                assert_eq!(allowed, mask & 2 == 0);
            }
            Operation::Open { file } => {
                assert!(self.fs.open(id(self.any(*file))).is_ok());
            }
            Operation::StatFs => assert_eq!(self.fs.statfs().unwrap(), SPACE),
            Operation::Change {
                file,
                content,
                rights,
            } => self.change(*file, *content, rights),
            Operation::ChangeDir { dir, rights } => self.change_dir(*dir, rights),
            Operation::Record { file, offset, len } => self.record(*file, *offset, *len),
        }
    }

    /// What must hold at the end.
    pub(crate) fn finish(&self) {
        let counters = self.fs.counters();
        assert_eq!(counters.requests(Request::Read), self.reads);
        let served = counters.reads_served + counters.reads_diverted;
        assert_eq!(served + self.refused, self.reads);
        assert_eq!(counters.reads_failed, self.refused);
        assert_eq!(counters.diverted_files, self.known.len() as u64);
    }

    fn lookup(&self, dir: usize, name: &[u8]) {
        let entry = self.fs.lookup(NOBODY, id(dir), name).unwrap();
        let found = entry.node.map(|node| (node.file, node.attr));
        let expected = self.file(dir).names.get(name);
        // What has changed once may change again.
        let lifetime = match expected.is_some_and(|file| self.known.contains_key(file)) {
            true => Lifetime::For(Duration::from_secs(1)),
            false => Lifetime::Forever,
        };
        assert_eq!(entry.lifetime, lifetime);
        assert_eq!(found, expected.map(|file| (id(*file), self.attr(*file))));
    }

    fn read_link(&self, file: usize) {
        let result = self.fs.readlink(NOBODY, id(file));
        if self.attr(file).kind == NodeKind::Symlink {
            assert_eq!(result.unwrap(), self.file(file).target);
        } else {
            assert!(result.is_err());
        }
    }

    fn list(&self, dir: usize, take: usize, plus: bool) {
        if self.attr(dir).kind != NodeKind::Dir {
            let result = self
                .fs
                .readdir(NOBODY, id(dir), 0, &mut |_| ControlFlow::Break(()));
            assert!(matches!(result, Err(FsError::NotADirectory)));
            return;
        }
        let mut expected = vec![
            (b".".to_vec(), dir, NodeKind::Dir),
            (b"..".to_vec(), self.file(dir).parent, NodeKind::Dir),
        ];
        for (name, file) in &self.file(dir).names {
            expected.push((name.clone(), *file, self.attr(*file).kind));
        }
        let mut listed = Vec::new();
        let (mut start, mut offset) = (0, 0);
        loop {
            let before = listed.len();
            let mut add = |item: DirItem<'_>| {
                listed.push((item.name.to_vec(), item.file.index(), item.kind));
                offset = item.next;
                if listed.len() == before + take {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            };
            if plus {
                let mut check = |item: DirItem<'_>, attr| {
                    assert_eq!(attr, self.attr(item.file.index()));
                    add(item)
                };
                self.fs
                    .readdirplus(NOBODY, id(dir), start, &mut check)
                    .unwrap();
            } else {
                self.fs.readdir(NOBODY, id(dir), start, &mut add).unwrap();
            }
            if listed.len() == before {
                break;
            }
            assert!(listed.len() <= expected.len(), "the listing goes round");
            start = offset;
        }
        assert_eq!(listed, expected);
    }

    fn seek(&mut self, file: Index, offset: u64, what: Seek) {
        let Some(file) = self.regular(file) else {
            return;
        };
        // Nobody here knows holes: all of a file is data, as long as the tree says.
        let size = self.attr(file).size;
        let result = self.fs.lseek(id(file), offset, what);
        match what {
            _ if offset >= size => assert!(matches!(result, Err(FsError::BeyondEnd))),
            Seek::Data => assert_eq!(result.unwrap(), offset),
            Seek::Hole => assert_eq!(result.unwrap(), size),
        }
    }

    fn change(&mut self, file: Index, content: Content, rights: &Rights) {
        let Some(file) = self.regular(file) else {
            return;
        };
        self.changes += 1;
        let time = Timestamp {
            secs: self.changes,
            nanos: 1,
        };
        let File { now, scanned, .. } = &mut self.model.files[file];
        now.content = content;
        now.change_rights(rights, scanned);
        if !matches!(rights, Rights::Kind(_)) {
            now.attr.kind = NodeKind::File;
        }
        now.attr = Attr {
            size: content.len as u64,
            mtime: time,
            ctime: time,
            source_inode: scanned.attr.source_inode + 100_000,
            // Whatever it is: it is shown as it is.
            nlink: u32::from(content.seed),
            blocks: content.len as u64 / 100,
            ..now.attr
        };
        let key = FileKey {
            file: id(file),
            version: now.attr.version(),
        };
        self.source.0.write().unwrap().insert(key, content.bytes());
        self.tell_attrs(file);
    }

    fn change_dir(&mut self, dir: Index, rights: &Rights) {
        let dirs = self.model.of_kind(NodeKind::Dir);
        let dir = *dir.get(&dirs);
        let File { now, scanned, .. } = &mut self.model.files[dir];
        if !matches!(rights, Rights::Kind(_)) {
            now.change_rights(rights, scanned);
        }
        self.tell_attrs(dir);
    }

    fn tell_attrs(&self, file: usize) {
        let State { attr, xattrs, .. } = self.file(file).now.clone();
        let xattrs = xattrs.into_iter().collect();
        self.attrs
            .change(id(file), |all| *all = AllAttrs { attr, xattrs });
    }

    fn record(&mut self, file: Index, offset: u64, len: usize) {
        let Some(file) = self.regular(file) else {
            return;
        };
        let scanned = self.file(file).scanned.content;
        let whole = BlockRange::covering(0, scanned.len as u64);
        let range = BlockRange::covering(offset, len as u64).intersect(whole);
        if range.is_empty() {
            return;
        }
        let mut bytes = scanned.bytes();
        bytes.resize(usize::try_from(whole.byte_len()).unwrap(), 0);
        let bytes = slice(
            &bytes,
            range.bytes().start,
            usize::try_from(range.byte_len()).unwrap(),
        );
        assert_eq!(bytes.len() % BLOCK_SIZE, 0);
        let key = FileKey {
            file: id(file),
            version: self.file(file).scanned.attr.version(),
        };
        self.cache.put(&key, range, &bytes);
        self.recorded.insert(file);
    }

    /// After a read: has the file system found out that the file changed? It may only if it did,
    /// and it must if the bytes had to come from the source.
    fn notice(&mut self, file: usize, offset: u64, len: usize) {
        let before = self.attr(file);
        let version = self.fs.key(id(file)).unwrap().version;
        let now = self.file(file).now.clone();
        if version == before.version() {
            // The cache has blocks of the scanned version only.
            let cached = self.recorded.contains(&file) && !self.known.contains_key(&file);
            let from_source = len > 0 && offset < before.size && !cached;
            let changed = now.attr.version() != before.version();
            assert!(!changed || !from_source, "a change was not noticed");
        } else {
            assert_eq!(version, now.attr.version(), "a version that never was");
            assert!(
                self.is_open_to_the_same(file),
                "{:?} and {now:?}",
                self.shown(file)
            );
            self.known.insert(file, now);
        }
    }

    /// After a read that failed: the file must have changed, into one that is not for everybody who
    /// may have it open, and nothing of that is seen.
    fn refused(&mut self, file: usize, error: &FsError) {
        let FsError::Source(error) = error else {
            panic!("{error}");
        };
        assert!(matches!(error.kind(), SourceErrorKind::Stale { .. }));
        let now = self.file(file).now.attr.version();
        assert_ne!(self.attr(file).version(), now, "an error for nothing");
        assert!(!self.is_open_to_the_same(file), "{:?}", self.shown(file));
        assert_eq!(self.fs.getattr(id(file)).unwrap(), self.attr(file));
        self.refused += 1;
    }

    /// Whether everybody who may have a file open, as it is shown, may open it as it is now, whichever of its
    /// names was used.
    fn is_open_to_the_same(&self, file: usize) -> bool {
        let passed = |dir: &usize| {
            let dir = self.file(*dir);
            dir.scanned.is_passed_like(&dir.now)
        };
        let mut dirs = self.dirs_with(file);
        dirs.all(|dir| self.path_to(dir).iter().all(passed))
            && self.shown(file).is_followed_by(&self.file(file).now)
    }

    /// The directories that have a name of a file.
    fn dirs_with(&self, file: usize) -> impl Iterator<Item = usize> {
        let files = self.model.files.iter().enumerate();
        files
            .filter(move |(_, dir)| dir.names.values().any(|named| *named == file))
            .map(|(dir, _)| dir)
    }

    /// A directory and those above it.
    fn path_to(&self, dir: usize) -> Vec<usize> {
        let mut path = vec![dir];
        while path.last() != Some(&0) {
            path.extend(path.last().map(|dir| self.file(*dir).parent));
        }
        path
    }

    fn any(&self, index: Index) -> usize {
        index.index(self.model.files.len())
    }

    fn regular(&self, index: Index) -> Option<usize> {
        let files = self.model.of_kind(NodeKind::File);
        (!files.is_empty()).then(|| *index.get(&files))
    }

    fn file(&self, file: usize) -> &File {
        &self.model.files[file]
    }

    /// A file as far as the file system knows of changes.
    fn shown(&self, file: usize) -> &State {
        self.known.get(&file).unwrap_or(&self.file(file).scanned)
    }

    fn attr(&self, file: usize) -> Attr {
        self.shown(file).attr
    }
}

fn id(file: usize) -> FileId {
    FileId(u32::try_from(file).unwrap())
}

fn slice(bytes: &[u8], offset: u64, len: usize) -> Vec<u8> {
    bytes
        .iter()
        .skip(usize::try_from(offset).unwrap())
        .take(len)
        .copied()
        .collect()
}

fn expect_fit(result: Result<XattrReply, FsError>, bytes: &[u8], room: u32) {
    let len = u32::try_from(bytes.len()).unwrap();
    match result {
        Ok(XattrReply::Size(size)) => assert_eq!((room, size), (0, len)),
        Ok(XattrReply::Bytes(found)) => assert_eq!(found, bytes),
        Err(FsError::TooSmall) => assert!(0 < room && room < len),
        Err(error) => panic!("{error}"),
    }
}
