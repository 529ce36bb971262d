//! Disk mode: files without boot data are passed through to the source.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use blocks::testing::{MemAttrs, MemObserver, Node};
use blocks::{AttrSource, BackingFile, FileId, FileKey, Timestamp, Version, WholeCopies};
use nix::errno::Errno;
use tempfile::TempDir;
use yolofs::{Config, FileSystem, Mode, Request};

use crate::rig::{Files, Mounted, eventually, pattern};

/// The source's files on this machine, by their numbers.
struct Backing(PathBuf);

impl BackingFile for Backing {
    fn open_backing(&self, file: &FileKey) -> io::Result<OwnedFd> {
        Ok(File::open(self.0.join(file.file.0.to_string()))?.into())
    }
}

/// A disk with boot data and one without, both of them files of `dir` too.
fn disks(dir: &TempDir) -> (Files, FileSystem) {
    let nodes = vec![
        Node::dir(&[("boot", 1), ("cold", 2)]),
        Node::file(0),
        Node::file(0),
    ];
    let contents = [(1, pattern(1, 500_000)), (2, pattern(2, 500_000))];
    for (file, content) in &contents {
        fs::write(dir.path().join(file.to_string()), content).unwrap();
    }
    let files = Files::new(nodes, &contents);
    let config = Config {
        mode: Mode::Disk,
        boot_files: HashSet::from([FileId(1)]),
    };
    let backing = Arc::new(Backing(dir.path().to_owned()));
    let fs = FileSystem::new(files.tree.clone(), files.source.clone(), config);
    (files, fs.with_backing(backing))
}

#[test]
fn a_file_without_boot_data_is_passed_through() {
    let dir = TempDir::new().unwrap();
    let (files, fs) = disks(&dir);
    let mounted = Mounted::new(fs);
    for _ in 0..20 {
        let first = File::open(mounted.path("cold")).unwrap();
        assert_eq!(
            std::fs::read(mounted.path("cold")).unwrap(),
            pattern(2, 500_000)
        );
        drop(first);
    }
    let counters = mounted.mount().counters();
    assert_eq!(
        (counters.requests(Request::Read), files.source.reads()),
        (0, 0)
    );
    assert_eq!(counters.requests(Request::Open), 40);
    assert_eq!(
        std::fs::read(mounted.path("boot")).unwrap(),
        pattern(1, 500_000)
    );
    assert!(mounted.mount().counters().requests(Request::Read) > 0);
}

/// What opens count is what closes take back, also where an open is refused by rights that are no
/// longer those that are shown.
#[test]
fn an_open_that_is_refused_leaves_nothing_open() {
    let dir = TempDir::new().unwrap();
    let (files, fs) = disks(&dir);
    let attrs = Arc::new(MemAttrs::of(&files.tree));
    let mounted = Mounted::new(fs.with_attrs(attrs.clone()));
    let cold = mounted.path("cold");
    let first = File::open(&cold).unwrap();
    let version = attrs.all_attrs(FileId(2)).unwrap().attr.version();
    attrs.set_version(
        FileId(2),
        Version {
            ctime: Timestamp { secs: 1, nanos: 1 },
            ..version
        },
    );
    attrs.change(FileId(2), |all| all.attr.perm = 0o600);
    for _ in 0..3 {
        let refused = File::open(&cold).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(Errno::ESTALE as i32));
    }
    attrs.set_version(FileId(2), version);
    attrs.change(FileId(2), |all| all.attr.perm = 0o644);
    drop(first);
    let releases = || mounted.mount().counters().requests(Request::Release);
    eventually("the only open file is closed", || releases() == 1);
    // It is decided anew what the file is opened as: the source has it no more.
    fs::remove_file(dir.path().join("2")).unwrap();
    assert_eq!(fs::read(&cold).unwrap(), pattern(2, 500_000));
    assert!(mounted.mount().counters().requests(Request::Read) > 0);
}

#[test]
fn a_file_that_the_kernel_will_not_pass_through_is_served() {
    // A directory cannot back a file: the kernel refuses it.
    struct Wrong;
    impl BackingFile for Wrong {
        fn open_backing(&self, _: &FileKey) -> io::Result<OwnedFd> {
            Ok(File::open("/")?.into())
        }
    }
    /// It is not there any more.
    struct Gone;
    impl BackingFile for Gone {
        fn open_backing(&self, _: &FileKey) -> io::Result<OwnedFd> {
            Err(io::ErrorKind::NotFound.into())
        }
    }
    for backing in [Arc::new(Wrong) as Arc<dyn BackingFile>, Arc::new(Gone)] {
        let dir = TempDir::new().unwrap();
        let (_, fs) = disks(&dir);
        let mounted = Mounted::new(fs.with_backing(backing));
        for _ in 0..2 {
            assert_eq!(
                std::fs::read(mounted.path("cold")).unwrap(),
                pattern(2, 500_000)
            );
        }
        assert!(mounted.mount().counters().requests(Request::Read) > 0);
    }
}

/// Copies on faster memory, by the numbers of their files. What they have in them is other than
/// what the source has, so that it can be told which was read.
struct Copies {
    dir: TempDir,
    /// How often somebody looked for one.
    asked: AtomicU64,
}

impl WholeCopies for Copies {
    fn open_copy(&self, file: &FileKey) -> io::Result<Option<OwnedFd>> {
        self.asked.fetch_add(1, Relaxed);
        match File::open(self.path(file.file.0)) {
            Ok(file) => Ok(Some(file.into())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Copies {
    fn new() -> Arc<Self> {
        let dir = TempDir::new().unwrap();
        let asked = AtomicU64::new(0);
        Arc::new(Self { dir, asked })
    }

    fn asked(&self) -> u64 {
        self.asked.load(Relaxed)
    }

    fn path(&self, file: u32) -> PathBuf {
        self.dir.path().join(file.to_string())
    }

    fn add(&self, file: u32) {
        fs::write(self.path(file), copied(file)).unwrap();
    }
}

fn copied(file: u32) -> Vec<u8> {
    pattern(u64::from(file) + 100, 500_000)
}

#[test]
fn a_file_is_passed_through_to_its_copy_whether_or_not_it_has_boot_data() {
    let dir = TempDir::new().unwrap();
    let (files, fs) = disks(&dir);
    let copies = Copies::new();
    copies.add(1);
    copies.add(2);
    let mounted = Mounted::new(fs.with_copies(copies));
    for (name, number) in [("boot", 1), ("cold", 2)] {
        let file = File::open(mounted.path(name)).unwrap();
        assert_eq!(fs::read(mounted.path(name)).unwrap(), copied(number));
        // Mapped pages are those of the copy, too.
        let mut mapped = vec![0; 500_000];
        let map = rawio::mapped::MappedFile::map(&file).unwrap();
        assert_eq!(map.copy(0, &mut mapped), mapped.len());
        assert_eq!(mapped, copied(number));
    }
    let counters = mounted.mount().counters();
    assert_eq!((counters.copy_opens, counters.copies_failed), (4, 0));
    assert_eq!(counters.requests(Request::Read), 0);
    assert_eq!(files.source.reads(), 0);
}

#[test]
fn a_copy_that_cannot_be_used_is_passed_over() {
    let dir = TempDir::new().unwrap();
    let (files, fs) = disks(&dir);
    let copies = Copies::new();
    // The kernel passes no file through to a directory.
    fs::create_dir(copies.path(1)).unwrap();
    fs::create_dir(copies.path(2)).unwrap();
    let mounted = Mounted::new(fs.with_copies(copies));
    let read = |name| fs::read(mounted.path(name)).unwrap();
    assert_eq!(read("cold"), pattern(2, 500_000));
    let counters = mounted.mount().counters();
    assert_eq!(
        counters.requests(Request::Read),
        0,
        "the source takes its place"
    );
    assert_eq!(read("boot"), pattern(1, 500_000));
    let counters = mounted.mount().counters();
    assert_eq!((counters.copy_opens, counters.copies_failed), (0, 2));
    assert!(files.source.reads() > 0);
}

#[test]
fn a_file_stays_what_it_was_opened_as_until_nobody_has_it_open() {
    let dir = TempDir::new().unwrap();
    let (_, fs) = disks(&dir);
    let copies = Copies::new();
    let mounted = Mounted::new(fs.with_copies(copies.clone()));
    let read = || fs::read(mounted.path("boot")).unwrap();
    let open = || File::open(mounted.path("boot")).unwrap();
    // The kernel tells of the last close a moment after it.
    let all_closed = |opens: u64| {
        eventually("every file is closed", || {
            mounted.mount().counters().requests(Request::Release) == opens
        });
    };

    let first = open();
    copies.add(1);
    let opens = || mounted.mount().counters().requests(Request::Open);
    assert_eq!(
        read(),
        pattern(1, 500_000),
        "it is open through the page cache"
    );
    drop(first);
    all_closed(opens());

    let first = open();
    assert_eq!(read(), copied(1));
    fs::remove_file(copies.path(1)).unwrap();
    assert_eq!(read(), copied(1), "what is open lasts");
    drop(first);
    all_closed(opens());
    assert_eq!(read(), pattern(1, 500_000));
}

#[test]
fn what_is_open_already_is_opened_without_looking_for_its_copy() {
    let dir = TempDir::new().unwrap();
    let (_, fs) = disks(&dir);
    let copies = Copies::new();
    copies.add(1);
    let mounted = Mounted::new(fs.with_copies(copies.clone()));
    let first = File::open(mounted.path("boot")).unwrap();
    let asked = copies.asked();
    for _ in 0..10 {
        assert_eq!(fs::read(mounted.path("boot")).unwrap(), copied(1));
    }
    assert_eq!(copies.asked(), asked);
    let counters = mounted.mount().counters();
    assert_eq!(counters.requests(Request::Open), 11);
    assert_eq!(counters.copy_opens, 11);
    drop(first);
}

#[test]
fn directories_are_opened_unasked() {
    let dir = TempDir::new().unwrap();
    let (_, fs) = disks(&dir);
    let mounted = Mounted::new(fs);
    for _ in 0..5 {
        assert_eq!(fs::read_dir(mounted.path("")).unwrap().count(), 2);
    }
    let counters = mounted.mount().counters();
    assert!(counters.requests(Request::OpenDir) <= 1, "{counters:?}");
    assert_eq!(counters.requests(Request::ReleaseDir), 0);
}

#[test]
fn nothing_is_passed_by_a_recorder() {
    let dir = TempDir::new().unwrap();
    let (_, fs) = disks(&dir);
    let recorder = Arc::new(MemObserver::default());
    let mounted = Mounted::new(fs.with_observer(recorder.clone()));
    assert_eq!(
        std::fs::read(mounted.path("cold")).unwrap(),
        pattern(2, 500_000)
    );
    let read: u64 = recorder
        .take()
        .into_iter()
        .filter_map(|(_, event)| match event {
            blocks::Event::Read(access) => Some(access.len),
            blocks::Event::Touch(_) => None,
        })
        .sum();
    assert_eq!(read, 123 * 4096, "every page once, and none ahead");
}
