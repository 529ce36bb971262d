//! Runs operations on the file system and on the model, and compares.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::{Arc, RwLock};

use blocks::testing::{Fault, Faulty, MemCache, MemSource, tree};
use blocks::{
    Attr, BLOCK_SIZE, BlockCache, BlockRange, BlockSource, CachedSource, Caller, FileId, FileKey,
    Lifetime, Lookup, NodeKind, Seek, SourceError, Timestamp, Version,
};
use proptest::sample::Index;
use yolofs::{Config, DirItem, FileSystem, FsError, Mode, Request, Space, XattrReply};

use crate::model::{Content, File, Model, Spec};
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
    cache: Arc<MemCache>,
    /// The changes that the file system has found out about.
    known: HashMap<usize, (Content, Version)>,
    /// Files of which the cache has anything.
    recorded: HashSet<usize>,
    changes: i64,
    reads: u64,
}

impl Harness {
    pub(crate) fn new(specs: &[Spec], cache_calls: u64) -> Self {
        let model = Model::new(specs);
        let tree = Arc::new(tree(&model.nodes()).unwrap());
        let source = Arc::new(ChangingSource::default());
        for file in model.of_kind(NodeKind::File) {
            let key = tree.key(id(file)).unwrap();
            let bytes = model.files[file].scanned.bytes();
            source.0.write().unwrap().insert(key, bytes);
        }
        let cache = Arc::new(MemCache::default());
        let tiring = TiringCache(Faulty::new(Arc::clone(&cache), Fault::Busy, cache_calls));
        let stack = Arc::new(CachedSource::new(tiring, Arc::clone(&source)));
        let config = Config {
            mode: Mode::Lower,
            boot_files: HashSet::new(),
        };
        Self {
            model,
            fs: FileSystem::new(tree, stack, config).with_space(|| Ok(SPACE)),
            source,
            cache,
            known: HashMap::new(),
            recorded: HashSet::new(),
            changes: 0,
            reads: 0,
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
                let read = self
                    .fs
                    .read(NOBODY, id(file), *offset, &mut buf, *path)
                    .unwrap();
                self.reads += 1;
                self.notice(file, *offset, *len);
                assert_eq!(
                    &buf[..read],
                    &slice(&self.content(file).bytes(), *offset, *len)
                );
            }
            Operation::Seek { file, offset, what } => self.seek(*file, *offset, *what),
            Operation::GetXattr { file, name, room } => {
                let file = self.any(*file);
                let value = self.file(file).xattrs.get(name);
                let room = room.beside(value.map_or(0, Vec::len));
                let result = self.fs.getxattr(id(file), name, room);
                match value {
                    Some(value) => expect_fit(result, value, room),
                    None => assert!(matches!(result, Err(FsError::NoAttribute))),
                }
            }
            Operation::ListXattr { file, room } => {
                let file = self.any(*file);
                let mut names = self.file(file).xattrs.keys().cloned().collect::<Vec<_>>();
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
            Operation::Change { file, content } => self.change(*file, *content),
            Operation::Record { file, offset, len } => self.record(*file, *offset, *len),
        }
    }

    /// What must hold at the end.
    pub(crate) fn finish(&self) {
        let counters = self.fs.counters();
        assert_eq!(counters.requests(Request::Read), self.reads);
        assert_eq!(counters.reads_served + counters.reads_diverted, self.reads);
        assert_eq!(counters.reads_failed, 0);
        assert_eq!(counters.diverted_files, self.known.len() as u64);
    }

    fn lookup(&self, dir: usize, name: &[u8]) {
        let entry = self.fs.lookup(NOBODY, id(dir), name).unwrap();
        assert_eq!(entry.lifetime, Lifetime::Forever);
        let found = entry.node.map(|node| (node.file, node.attr));
        let expected = self.file(dir).names.get(name);
        assert_eq!(found, expected.map(|file| (id(*file), self.attr(*file))));
    }

    fn read_link(&self, file: usize) {
        let result = self.fs.readlink(NOBODY, id(file));
        if self.file(file).attr.kind == NodeKind::Symlink {
            assert_eq!(result.unwrap(), self.file(file).target);
        } else {
            assert!(result.is_err());
        }
    }

    fn list(&self, dir: usize, take: usize, plus: bool) {
        if self.file(dir).attr.kind != NodeKind::Dir {
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
            expected.push((name.clone(), *file, self.file(*file).attr.kind));
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

    fn change(&mut self, file: Index, content: Content) {
        let Some(file) = self.regular(file) else {
            return;
        };
        self.changes += 1;
        let time = Timestamp {
            secs: self.changes,
            nanos: 1,
        };
        let version = Version {
            size: content.len as u64,
            mtime: time,
            ctime: time,
            inode: self.file(file).attr.source_inode + 100_000,
        };
        let key = FileKey {
            file: id(file),
            version,
        };
        let mut source = self.source.0.write().unwrap();
        source.insert(key, content.bytes());
        self.model.files[file].changed = Some((content, version));
    }

    fn record(&mut self, file: Index, offset: u64, len: usize) {
        let Some(file) = self.regular(file) else {
            return;
        };
        let scanned = self.file(file).scanned;
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
            version: self.file(file).attr.version(),
        };
        self.cache.put(&key, range, &bytes);
        self.recorded.insert(file);
    }

    /// After a read: has the file system found out that the file changed? It may only if it did,
    /// and it must if the bytes had to come from the source.
    fn notice(&mut self, file: usize, offset: u64, len: usize) {
        let before = self.attr(file);
        let version = self.fs.key(id(file)).unwrap().version;
        match self.file(file).changed {
            Some((content, now)) if now == version => {
                self.known.insert(file, (content, now));
            }
            changed => {
                assert_eq!(version, before.version(), "a version that never was");
                // The cache has blocks of the scanned version only.
                let cached = self.recorded.contains(&file) && !self.known.contains_key(&file);
                let from_source = len > 0 && offset < before.size && !cached;
                assert!(
                    changed.is_none() || !from_source,
                    "a change was not noticed"
                );
            }
        }
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

    /// The attributes of a file, as far as the file system knows of changes.
    fn attr(&self, file: usize) -> Attr {
        let attr = self.file(file).attr;
        match self.known.get(&file) {
            Some((_, version)) => Attr {
                size: version.size,
                mtime: version.mtime,
                ctime: version.ctime,
                source_inode: version.inode,
                blocks: version.size.div_ceil(512),
                ..attr
            },
            None => attr,
        }
    }

    fn content(&self, file: usize) -> Content {
        let known = self.known.get(&file).map(|(content, _)| *content);
        known.unwrap_or(self.file(file).scanned)
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
