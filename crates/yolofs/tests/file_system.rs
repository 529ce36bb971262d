//! What the file system decides, apart from the answers that the model knows.

#![expect(clippy::unwrap_used, reason = "all of this is tests")]

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, RwLock};

use blocks::testing::{Fault, Faulty, MemAttrs, MemObserver, MemSource, Node, tree};
use blocks::{
    ACCESS_LIST, Access, AllAttrs, AttrSource, BackingFile, BlockSource, Caller, Event, FileId,
    FileKey, NodeKind, Observer, Residency, Seek, SourceError, SourceErrorKind, Sparse, Timestamp,
    Touch, Tree, Version, Warmth, WholeCopies,
};
use yolofs::{
    CachePath, Config, Diverted, FileSystem, FsError, Ledger, Mode, OpenDecision, PassedTo, Request,
};

const ME: Caller = Caller { pid: 42 };
const FILE: FileId = FileId(1);

fn names() -> Arc<Tree> {
    Arc::new(
        tree(&[
            Node::dir(&[("file", 1), ("link", 2)]),
            Node::file(10_000),
            Node::symlink("file"),
        ])
        .unwrap(),
    )
}

fn source(tree: &Tree) -> MemSource {
    let mut source = MemSource::default();
    source.insert(tree.key(FILE).unwrap(), vec![7; 10_000]);
    source
}

fn read(fs: &FileSystem, offset: u64, len: usize) -> Result<Vec<u8>, FsError> {
    let mut buf = vec![0; len];
    let read = fs.read(ME, FILE, offset, &mut buf, CachePath::Through)?;
    buf.truncate(read);
    Ok(buf)
}

/// A source whose reads panic.
struct Panicking;

impl BlockSource for Panicking {
    fn read_at(&self, _: &FileKey, _: u64, _: &mut [u8]) -> Result<usize, SourceError> {
        panic!("on purpose")
    }
}

#[test]
fn a_panic_is_an_error_of_one_request() {
    let fs = FileSystem::new(names(), Arc::new(Panicking), Config::default());
    assert!(matches!(read(&fs, 0, 10), Err(FsError::Panicked)));
    assert!(fs.getattr(FILE).is_ok());
    assert!(matches!(read(&fs, 0, 10), Err(FsError::Panicked)));
    let counters = fs.counters();
    assert_eq!((counters.reads_failed, counters.errors), (2, 2));
    assert_eq!(counters.requests(Request::Read), 2);
}

#[test]
fn a_source_that_fails_and_recovers_never_gives_wrong_bytes() {
    let tree = names();
    let faulty = Faulty::new(source(&tree), Fault::Fail, 1);
    let fs = FileSystem::new(tree, Arc::new(faulty), Config::default());
    assert_eq!(read(&fs, 9_000, 5_000).unwrap(), [7; 1_000]);
    let error = read(&fs, 0, 10).unwrap_err();
    assert!(matches!(&error, FsError::Source(error) if error.kind() == SourceErrorKind::Io));
    assert_eq!(fs.counters().bytes_read, 1_000);
}

/// A source whose file is another one at every look.
#[derive(Default)]
struct Restless(AtomicU64);

impl AttrSource for Restless {
    fn all_attrs(&self, file: FileId) -> Result<AllAttrs, SourceError> {
        let mut all = MemAttrs::of(&names()).all_attrs(file)?;
        if file == FILE {
            all.attr.size = self.0.fetch_add(1, Relaxed);
        }
        Ok(all)
    }
}

impl BlockSource for Restless {
    fn read_at(&self, file: &FileKey, _: u64, _: &mut [u8]) -> Result<usize, SourceError> {
        let now = Version {
            size: self.0.fetch_add(1, Relaxed),
            ..file.version
        };
        Err(SourceError::new(
            SourceErrorKind::Stale { now },
            "reading a restless file",
        ))
    }
}

#[test]
fn a_file_that_never_stops_changing_is_given_up() {
    let source = Arc::new(Restless::default());
    let fs = FileSystem::new(names(), Arc::clone(&source) as _, Config::default())
        .with_attrs(Arc::clone(&source) as _);
    let error = read(&fs, 0, 10).unwrap_err();
    assert!(is_stale(&error));
    assert!(source.0.load(Relaxed) < 100);
    assert_eq!(fs.counters().diverted_files, 1);
    assert_eq!(fs.diverted_files(), [FILE]);
}

/// A file of which a new version with this content was put into the source; its other attributes
/// are the same until they are changed.
struct Changed {
    fs: FileSystem,
    source: Arc<Changing>,
    attrs: Arc<MemAttrs>,
}

struct Changing(RwLock<MemSource>);

impl BlockSource for Changing {
    fn read_at(&self, file: &FileKey, offset: u64, buf: &mut [u8]) -> Result<usize, SourceError> {
        self.0.read().unwrap().read_at(file, offset, buf)
    }
}

fn changed(content: &[u8]) -> Changed {
    let tree = names();
    let key = tree.key(FILE).unwrap();
    let version = Version {
        size: content.len() as u64,
        ctime: Timestamp { secs: 1, nanos: 2 },
        ..key.version
    };
    let mut source = source(&tree);
    source.insert(FileKey { version, ..key }, content.to_vec());
    let source = Arc::new(Changing(RwLock::new(source)));
    let attrs = Arc::new(MemAttrs::of(&tree));
    attrs.set_version(FILE, version);
    let fs = FileSystem::new(tree, Arc::clone(&source) as _, Config::default())
        .with_attrs(Arc::clone(&attrs) as _);
    Changed { fs, source, attrs }
}

#[test]
fn attributes_follow_a_change_that_a_read_found() {
    let Changed { fs, attrs, .. } = changed(b"fresh");
    attrs.change(FILE, |all| {
        all.attr.nlink = 3;
        all.attr.perm = 0o755;
    });
    assert_eq!(fs.getattr(FILE).unwrap().size, 10_000);
    assert_eq!(read(&fs, 0, 100).unwrap(), b"fresh");
    let attr = fs.getattr(FILE).unwrap();
    assert_eq!((attr.size, attr.ctime.nanos), (5, 2));
    assert_eq!((attr.nlink, attr.perm), (3, 0o755));
    let entry = fs.lookup(ME, FileId::ROOT, b"file").unwrap();
    assert_eq!(entry.node.unwrap().attr, attr);
    assert_eq!(fs.counters().reads_diverted, 1);
}

#[test]
fn a_file_that_changes_again_is_followed_again() {
    let Changed { fs, source, attrs } = changed(b"fresh");
    assert_eq!(read(&fs, 0, 100).unwrap(), b"fresh");
    let key = names().key(FILE).unwrap();
    for (number, content) in (1..).zip([&b"fresher"[..], b"old", b"the last"]) {
        let version = Version {
            size: content.len() as u64,
            ctime: Timestamp {
                secs: 2,
                nanos: number,
            },
            ..key.version
        };
        let put = FileKey { version, ..key };
        source.0.write().unwrap().insert(put, content.to_vec());
        attrs.set_version(FILE, version);
        assert_eq!(read(&fs, 0, 100).unwrap(), content);
        let attr = fs.getattr(FILE).unwrap();
        assert_eq!(attr.version(), version);
    }
    assert_eq!(fs.counters().reads_diverted, 4);
    assert_eq!(fs.counters().diverted_files, 1);
}

/// Whoever has the file open by the rights that are shown reads whatever is given to anybody.
#[test]
fn what_was_replaced_by_what_fewer_may_read_is_given_to_nobody() {
    let access_list = || (ACCESS_LIST.to_vec(), b"a list".to_vec());
    type Change = fn(&mut AllAttrs);
    let changes: [(FileId, Change); 13] = [
        (FILE, |all| all.attr.perm = 0o600),
        (FILE, |all| all.attr.perm = 0o640),
        (FILE, |all| all.attr.perm = 0o4644),
        (FILE, |all| all.attr.perm = 0o2644),
        (FILE, |all| all.attr.uid = 1),
        (FILE, |all| all.attr.gid = 1),
        (FILE, |all| all.attr.kind = NodeKind::Dir),
        (FILE, |all| all.attr.kind = NodeKind::Symlink),
        (FILE, |all| all.attr.kind = NodeKind::CharDevice),
        (FILE, |all| {
            let capability = (b"security.capability".to_vec(), b"all".to_vec());
            all.xattrs.push(capability);
        }),
        (FileId::ROOT, |all| all.attr.perm = 0o700),
        (FileId::ROOT, |all| all.attr.uid = 1),
        (FileId::ROOT, |all| all.attr.gid = 1),
    ];
    for (number, (file, change)) in changes.into_iter().enumerate() {
        let Changed { fs, attrs, .. } = changed(b"fresh");
        let shown = fs.getattr(FILE).unwrap();
        let as_before = attrs.all_attrs(file).unwrap();
        attrs.change(file, change);
        for _ in 0..2 {
            let error = read(&fs, 0, 100).unwrap_err();
            assert!(is_stale(&error), "change {number}: {error}");
        }
        assert_eq!(fs.getattr(FILE).unwrap(), shown, "change {number}");
        assert_eq!(fs.counters().diverted_files, 0);
        // As soon as everybody may read it again, everybody may.
        attrs.change(file, |all| *all = as_before);
        assert_eq!(read(&fs, 0, 100).unwrap(), b"fresh", "change {number}");
    }
    for file in [FILE, FileId::ROOT] {
        let Changed { fs, attrs, .. } = changed(b"fresh");
        attrs.change(file, |all| all.xattrs.push(access_list()));
        assert!(is_stale(&read(&fs, 0, 100).unwrap_err()));
    }
}

#[test]
fn rights_that_one_version_gave_are_not_taken_by_the_next() {
    let Changed { fs, source, attrs } = changed(b"fresh");
    attrs.change(FILE, |all| all.attr.perm = 0o666);
    assert_eq!(read(&fs, 0, 100).unwrap(), b"fresh");
    let mut version = attrs.all_attrs(FILE).unwrap().attr.version();
    version.ctime.secs = 9;
    attrs.set_version(FILE, version);
    // As it was when it was scanned, but by now somebody may have it open to write.
    attrs.change(FILE, |all| all.attr.perm = 0o644);
    let key = FileKey {
        file: FILE,
        version,
    };
    source.0.write().unwrap().insert(key, b"other".to_vec());
    assert!(is_stale(&read(&fs, 0, 100).unwrap_err()));
    assert_eq!(fs.getattr(FILE).unwrap().perm, 0o666);
    attrs.change(FILE, |all| all.attr.perm = 0o777);
    assert_eq!(read(&fs, 0, 100).unwrap(), b"other");
}

#[test]
fn a_change_of_a_source_that_cannot_say_its_attributes_is_given_to_nobody() {
    let tree = names();
    let key = tree.key(FILE).unwrap();
    let version = Version {
        size: 5,
        ..key.version
    };
    let mut source = source(&tree);
    source.insert(FileKey { version, ..key }, b"fresh".to_vec());
    let fs = FileSystem::new(tree, Arc::new(source), Config::default());
    assert!(is_stale(&read(&fs, 0, 100).unwrap_err()));
    assert_eq!(fs.getattr(FILE).unwrap().size, 10_000);
}

fn is_stale(error: &FsError) -> bool {
    matches!(error, FsError::Source(error) if matches!(error.kind(), SourceErrorKind::Stale { .. }))
}

/// What a server wrote down for the next one, if there was room.
#[derive(Default)]
struct Page {
    full: AtomicBool,
    noted: Mutex<Vec<Diverted>>,
}

impl Ledger for Page {
    fn note(&self, diverted: &Diverted) -> io::Result<()> {
        if self.full.load(Relaxed) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.noted.lock().unwrap().push(*diverted);
        Ok(())
    }
}

#[test]
fn a_change_is_written_down_before_it_is_seen_and_the_next_server_begins_with_it() {
    let tree = names();
    let old = tree.key(FILE).unwrap();
    let version = Version {
        size: 5,
        ctime: Timestamp { secs: 1, nanos: 2 },
        ..old.version
    };
    let mut source = source(&tree);
    source.insert(FileKey { version, ..old }, b"fresh".to_vec());
    let source = Arc::new(source);
    let attrs = Arc::new(MemAttrs::of(&tree));
    attrs.set_version(FILE, version);
    let fs = || {
        let fs = FileSystem::new(Arc::clone(&tree) as _, source.clone(), Config::default());
        fs.with_attrs(attrs.clone())
    };
    let page = Arc::new(Page::default());
    let first = fs().with_ledger(page.clone(), &[]);
    page.full.store(true, Relaxed);
    let error = read(&first, 0, 100).unwrap_err();
    let failed = |error: &SourceError| error.kind() == SourceErrorKind::Io;
    assert!(matches!(&error, FsError::Source(error) if failed(error)));
    assert_eq!(first.getattr(FILE).unwrap().size, 10_000);
    assert!(first.diverted_files().is_empty());
    page.full.store(false, Relaxed);
    assert_eq!(read(&first, 0, 100).unwrap(), b"fresh");
    let noted = page.noted.lock().unwrap().clone();
    let expected = Diverted {
        file: FILE,
        from: old.version,
        now: version,
        attr: Some(attrs.all_attrs(FILE).unwrap().attr),
        believed: 10_000,
    };
    assert_eq!(noted, [expected]);
    // It knows before anybody has read.
    let next = fs().with_ledger(page.clone(), &noted);
    assert_eq!(next.getattr(FILE).unwrap(), first.getattr(FILE).unwrap());
    assert_eq!(next.key(FILE).unwrap().version, version);
    assert_eq!(next.diverted_files(), [FILE]);
    assert_eq!(page.noted.lock().unwrap().len(), 1);
}

/// A source that knows one hole and what it has in memory.
struct Knowing;

impl Sparse for Knowing {
    fn seek(&self, _: &FileKey, offset: u64, what: Seek) -> Result<Option<u64>, SourceError> {
        Ok((what == Seek::Data && offset < 4096).then_some(4096))
    }
}

impl Residency for Knowing {
    fn is_resident(&self, _: &FileKey, offset: u64, len: u64) -> Option<bool> {
        (len > 1).then_some(offset < 4096)
    }
}

impl BackingFile for Knowing {
    fn open_backing(&self, _: &FileKey) -> io::Result<OwnedFd> {
        Ok(File::open("/")?.into())
    }
}

#[test]
fn holes_are_those_that_the_source_knows() {
    let mut file = Node::file(10_000);
    file.attr.blocks = 12;
    let tree = Arc::new(tree(&[Node::dir(&[("file", 1)]), file]).unwrap());
    let source = Arc::new(MemSource::default());
    let fs = FileSystem::new(tree, source, Config::default()).with_sparse(Arc::new(Knowing));
    assert_eq!(fs.lseek(FILE, 5, Seek::Data).unwrap(), 4096);
    assert!(matches!(
        fs.lseek(FILE, 4096, Seek::Data),
        Err(FsError::BeyondEnd)
    ));
}

#[test]
fn a_file_as_large_as_the_space_it_takes_has_no_holes_to_ask_for() {
    let tree = names();
    let source = Arc::new(source(&tree));
    let fs = FileSystem::new(tree, source, Config::default()).with_sparse(Arc::new(Knowing));
    assert_eq!(fs.lseek(FILE, 5, Seek::Data).unwrap(), 5);
    assert_eq!(fs.lseek(FILE, 5, Seek::Hole).unwrap(), 10_000);
    let beyond = fs.lseek(FILE, 10_000, Seek::Data);
    assert!(matches!(beyond, Err(FsError::BeyondEnd)));
}

#[test]
fn an_observer_is_told_what_was_asked_by_whom() {
    let tree = names();
    let recorder = Arc::new(MemObserver::default());
    let fs = FileSystem::new(
        Arc::clone(&tree) as _,
        Arc::new(source(&tree)),
        Config::default(),
    )
    .with_observer(Arc::clone(&recorder) as Arc<dyn Observer>)
    .with_residency(Arc::new(Knowing));
    assert!(fs.is_recording());
    fs.lookup(ME, FileId::ROOT, b"file").unwrap();
    fs.lookup(ME, FileId::ROOT, b"nothing").unwrap();
    fs.readlink(ME, FileId(2)).unwrap();
    for offset in [0, 2] {
        fs.readdir(ME, FileId::ROOT, offset, &mut |_| ControlFlow::Continue(()))
            .unwrap();
    }
    read(&fs, 0, 8192).unwrap();
    read(&fs, 8192, 8192).unwrap();
    read(&fs, 0, 1).unwrap();
    fs.getattr(FILE).unwrap();
    let lookup = |name: &[u8]| {
        Event::Touch(Touch::Lookup {
            dir: FileId::ROOT,
            name: name.to_vec(),
        })
    };
    let access = |offset, len, warmth| {
        Event::Read(Access {
            file: FILE,
            offset,
            len,
            warmth,
        })
    };
    let expected = [
        lookup(b"file"),
        lookup(b"nothing"),
        Event::Touch(Touch::ReadLink { link: FileId(2) }),
        Event::Touch(Touch::List { dir: FileId::ROOT }),
        access(0, 8192, Warmth::Warm),
        access(8192, 8192, Warmth::Cold),
        access(0, 1, Warmth::Unknown),
    ];
    assert_eq!(recorder.take(), expected.map(|event| (ME, event)));
}

#[test]
fn only_files_of_disks_without_boot_data_are_passed_through() {
    let tree = names();
    let decide = |mode, boot: &[FileId], recording: bool| {
        let config = Config {
            mode,
            boot_files: boot.iter().copied().collect::<HashSet<_>>(),
        };
        let source = Arc::new(source(&tree));
        let mut fs =
            FileSystem::new(Arc::clone(&tree) as _, source, config).with_backing(Arc::new(Knowing));
        if recording {
            fs = fs.with_observer(Arc::new(MemObserver::default()));
        }
        matches!(fs.open(FILE).unwrap(), OpenDecision::Passthrough(_))
    };
    assert!(decide(Mode::Disk, &[], false));
    assert!(decide(Mode::Disk, &[FileId(2)], false));
    assert!(!decide(Mode::Disk, &[FILE], false));
    assert!(!decide(Mode::Disk, &[], true));
    assert!(!decide(Mode::Lower, &[], false));
}

/// Who has a copy, has none, or has lost it.
enum Copies {
    Kept,
    None,
    Lost,
}

impl WholeCopies for Copies {
    fn open_copy(&self, _: &FileKey) -> io::Result<Option<OwnedFd>> {
        match self {
            Self::Kept => Ok(Some(File::open("/")?.into())),
            Self::None => Ok(None),
            Self::Lost => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

#[test]
fn a_whole_copy_comes_before_boot_data_and_the_source() {
    let tree = names();
    let decide = |mode, boot: &[FileId], copies, recording: bool| {
        let config = Config {
            mode,
            boot_files: boot.iter().copied().collect::<HashSet<_>>(),
        };
        let mut fs = FileSystem::new(Arc::clone(&tree) as _, Arc::new(source(&tree)), config)
            .with_backing(Arc::new(Knowing))
            .with_copies(Arc::new(copies));
        if recording {
            fs = fs.with_observer(Arc::new(MemObserver::default()));
        }
        let offered = match fs.open(FILE).unwrap() {
            OpenDecision::Cached => Vec::new(),
            OpenDecision::Passthrough(offered) => offered,
        };
        let to: Vec<PassedTo> = offered.iter().map(|backing| backing.to).collect();
        (to, fs.counters().copies_failed)
    };
    use PassedTo::{Copy, Source};
    let disk = |boot, copies| decide(Mode::Disk, boot, copies, false);
    assert_eq!(disk(&[], Copies::Kept), (vec![Copy, Source], 0));
    assert_eq!(disk(&[FILE], Copies::Kept), (vec![Copy], 0));
    assert_eq!(disk(&[FILE], Copies::None), (vec![], 0));
    assert_eq!(disk(&[FILE], Copies::Lost), (vec![], 1));
    assert_eq!(disk(&[], Copies::Lost), (vec![Source], 1));
    assert_eq!(
        decide(Mode::Disk, &[], Copies::Kept, true),
        (vec![], 0),
        "a recorder hears all"
    );
    assert_eq!(decide(Mode::Lower, &[], Copies::Kept, false), (vec![], 0));
}

#[test]
fn programs_and_empty_files_are_never_passed_through() {
    let offered = |content: &[u8], perm| {
        let mut file = Node::file(content.len() as u64);
        file.attr.perm = perm;
        let tree = Arc::new(tree(&[Node::dir(&[("file", 1)]), file]).unwrap());
        let mut source = MemSource::default();
        source.insert(tree.key(FILE).unwrap(), content.to_vec());
        let config = Config {
            mode: Mode::Disk,
            ..Config::default()
        };
        let fs = FileSystem::new(tree, Arc::new(source), config)
            .with_backing(Arc::new(Knowing))
            .with_copies(Arc::new(Copies::Kept));
        match fs.open(FILE).unwrap() {
            OpenDecision::Cached => 0,
            OpenDecision::Passthrough(offered) => offered.len(),
        }
    };
    assert_eq!(offered(b"\x7fELF and more", 0o755), 0);
    assert_eq!(offered(b"#!/bin/sh", 0o100), 0);
    assert_eq!(offered(b"", 0o644), 0);
    assert_eq!(offered(b"\x7fELF and more", 0o644), 2, "a library");
    assert_eq!(offered(b"#!", 0o644), 2, "nobody may run it");
    assert_eq!(offered(b"QFI and more", 0o777), 2, "a disk image");
    assert_eq!(offered(b"x", 0o777), 2, "no magic at all");
}

#[test]
fn a_source_that_does_not_tell_its_space_fails_only_that() {
    let tree = names();
    let source = Arc::new(source(&tree));
    let fs = FileSystem::new(tree, source, Config::default())
        .with_space(|| Err(io::ErrorKind::PermissionDenied.into()));
    assert!(matches!(fs.statfs(), Err(FsError::Space(_))));
    assert!(fs.getattr(FILE).is_ok());
    assert_eq!(fs.counters().errors, 1);
}
