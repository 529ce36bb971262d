//! Reads of real files that stay, change and go.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use blocks::{
    BackingFile, BlockIndex, BlockRange, BlockSource, FileId, FileKey, Residency, Seek,
    SourceErrorKind, Sparse, Tree, Version,
};
use localfs::{DirSource, Prompt as _, SourceRoot, scan};
use nix::fcntl::{FcntlArg, OFlag, PosixFadviseAdvice, fcntl, openat, posix_fadvise};
use nix::sys::stat::{Mode, mkdirat};
use rawio::resident::Resident;

struct Fixture {
    dir: tempfile::TempDir,
    tree: Arc<Tree>,
    source: DirSource,
}

/// Scans what `fill` puts into a new directory on the disk that cargo builds on.
fn fixture(fill: impl Fn(&Path)) -> Fixture {
    fixture_in(Path::new(env!("CARGO_TARGET_TMPDIR")), fill)
}

fn fixture_in(parent: &Path, fill: impl Fn(&Path)) -> Fixture {
    let dir = tempfile::tempdir_in(parent).unwrap();
    fill(dir.path());
    tick(dir.path());
    let root = Arc::new(SourceRoot::open(dir.path()).unwrap());
    let tree = Arc::new(scan(&root, |_| ()).unwrap().tree);
    let source = DirSource::new(root, Arc::clone(&tree) as _);
    Fixture { dir, tree, source }
}

/// Returns when the clock of the file system has moved on: kernels before 6.13 give all changes
/// within a tick the same time.
fn tick(dir: &Path) {
    let probe = dir.with_extension("probe");
    let now = || {
        fs::write(&probe, b"").unwrap();
        std::os::unix::fs::MetadataExt::ctime_nsec(&fs::metadata(&probe).unwrap())
    };
    let start = now();
    while now() == start {}
    fs::remove_file(&probe).unwrap();
}

impl Fixture {
    fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    fn key(&self, name: &str) -> FileKey {
        self.tree
            .key(self.tree.resolve(name.as_bytes()).unwrap())
            .unwrap()
    }

    fn read(&self, key: &FileKey) -> Result<Vec<u8>, SourceErrorKind> {
        let mut buf = vec![0xEE; 1 << 20];
        let read = self
            .source
            .read_at(key, 0, &mut buf)
            .map_err(|error| error.kind())?;
        buf.truncate(read);
        Ok(buf)
    }

    /// The version the disk has now, as a fresh scan sees it.
    fn version_now(&self, name: &str) -> Version {
        let root = SourceRoot::open(self.dir.path()).unwrap();
        let tree = scan(&root, |_| ()).unwrap().tree;
        tree.key(tree.resolve(name.as_bytes()).unwrap())
            .unwrap()
            .version
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i % 251).try_into().unwrap()).collect()
}

#[test]
fn reads_are_those_of_the_file_at_any_offset() {
    let bytes = pattern(20_000);
    let fixture = fixture(|dir| fs::write(dir.join("f"), &bytes).unwrap());
    let key = fixture.key("f");
    for offset in [0, 1, 4095, 4096, 19_999, 20_000, 50_000, u64::MAX] {
        for len in [0, 1, 4096, 30_000] {
            let mut buf = vec![0xEE; len];
            let read = fixture.source.read_at(&key, offset, &mut buf).unwrap();
            let from = usize::try_from(offset).unwrap().min(bytes.len());
            let want = &bytes[from..bytes.len().min(from.saturating_add(len))];
            assert_eq!(&buf[..read], want, "{offset} {len}");
        }
    }
}

#[test]
fn every_kind_of_change_is_stale_and_names_the_version_of_now() {
    type Change = fn(&Path);
    let changes: [(&str, Change); 5] = [
        ("append", |f| {
            File::options()
                .append(true)
                .open(f)
                .unwrap()
                .write_all(b"x")
                .unwrap();
        }),
        ("truncate", |f| {
            File::options()
                .write(true)
                .open(f)
                .unwrap()
                .set_len(10)
                .unwrap();
        }),
        ("same size and time", |f| {
            let before = fs::metadata(f).unwrap().modified().unwrap();
            let file = File::options().write(true).open(f).unwrap();
            file.write_all_at(b"other", 0).unwrap();
            file.set_modified(before).unwrap();
        }),
        ("replaced", |f| {
            let new = f.with_extension("new");
            fs::write(&new, fs::read(f).unwrap()).unwrap();
            fs::rename(new, f).unwrap();
        }),
        ("chmod", |f| {
            fs::set_permissions(f, Permissions::from_mode(0o600)).unwrap();
        }),
    ];
    for (what, change) in changes {
        for opened_before in [false, true] {
            let fixture = fixture(|dir| fs::write(dir.join("f"), pattern(9000)).unwrap());
            let old = fixture.key("f");
            if opened_before {
                assert_eq!(fixture.read(&old).unwrap(), pattern(9000));
            }
            change(&fixture.path("f"));
            let now = fixture.version_now("f");
            assert_eq!(
                fixture.read(&old),
                Err(SourceErrorKind::Stale { now }),
                "{what}"
            );
            let new = FileKey {
                version: now,
                ..old
            };
            assert_eq!(
                fixture.read(&new).unwrap(),
                fs::read(fixture.path("f")).unwrap()
            );
        }
    }
}

#[test]
fn what_took_the_place_of_a_file_is_never_read() {
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("f"), b"secret").unwrap();
    type Replace<'a> = &'a dyn Fn(&Path);
    let replace: [(&str, Replace<'_>); 4] = [
        ("nothing", &|_| ()),
        ("directory", &|f| fs::create_dir(f).unwrap()),
        ("link", &|f| symlink(outside.path().join("f"), f).unwrap()),
        // Opened like a file, this one would wait for a writer for ever.
        ("pipe", &|f| nix::unistd::mkfifo(f, Mode::S_IRUSR).unwrap()),
    ];
    for (what, replace) in replace {
        let fixture = fixture(|dir| fs::write(dir.join("f"), b"bytes").unwrap());
        fs::remove_file(fixture.path("f")).unwrap();
        replace(&fixture.path("f"));
        assert_eq!(
            fixture.read(&fixture.key("f")),
            Err(SourceErrorKind::NotFound),
            "{what}"
        );
    }
    let fixture = fixture(|dir| {
        fs::create_dir(dir.join("d")).unwrap();
        fs::write(dir.join("d/f"), b"bytes").unwrap();
    });
    fs::rename(fixture.path("d"), fixture.path("moved")).unwrap();
    symlink(outside.path(), fixture.path("d")).unwrap();
    assert_eq!(
        fixture.read(&fixture.key("d/f")),
        Err(SourceErrorKind::NotFound)
    );
    let nowhere = FileKey {
        file: FileId(99),
        version: Version::default(),
    };
    assert_eq!(fixture.read(&nowhere), Err(SourceErrorKind::NotFound));
}

#[test]
fn bytes_of_a_file_that_is_being_changed_never_count_as_the_old_version() {
    const LEN: usize = 1 << 20;
    let fixture = fixture(|dir| fs::write(dir.join("f"), vec![b'a'; LEN]).unwrap());
    let file = File::options().write(true).open(fixture.path("f")).unwrap();
    for round in 0..50_u8 {
        let (old, new) = (b'a' + round, b'a' + round + 1);
        tick(fixture.dir.path());
        let key = FileKey {
            version: fixture.version_now("f"),
            ..fixture.key("f")
        };
        let (reading, changed) = (AtomicBool::new(false), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                while !reading.load(Ordering::SeqCst) {
                    std::hint::spin_loop();
                }
                // From the end: a reader that is under way must run into it.
                for at in (0..LEN).step_by(LEN / 16).rev() {
                    file.write_all_at(&[new; LEN / 16], at as u64).unwrap();
                }
                changed.store(true, Ordering::SeqCst);
            });
            let mut buf = vec![0; LEN];
            loop {
                let over = changed.load(Ordering::SeqCst);
                let answer = fixture.source.read_at(&key, 0, &mut buf);
                reading.store(true, Ordering::SeqCst);
                match answer {
                    Ok(read) => {
                        assert!(!over, "the change was over before the read began");
                        assert_eq!(read, LEN);
                        assert!(buf.iter().all(|byte| *byte == old), "bytes of two versions");
                    }
                    Err(error) => {
                        assert!(matches!(error.kind(), SourceErrorKind::Stale { .. }));
                        break;
                    }
                }
            }
        });
    }
}

#[test]
fn open_files_are_bounded_and_threads_share_them() {
    const FILES: usize = 600;
    let fixture = fixture(|dir| {
        for i in 0..FILES {
            fs::write(dir.join(format!("{i}")), format!("bytes of {i}")).unwrap();
        }
    });
    thread::scope(|scope| {
        for thread in 0..4 {
            let fixture = &fixture;
            scope.spawn(move || {
                for i in (0..3 * FILES).map(|i| (i * 7 + thread * 150) % FILES) {
                    let bytes = fixture.read(&fixture.key(&format!("{i}"))).unwrap();
                    assert_eq!(bytes, format!("bytes of {i}").as_bytes());
                    assert!(fixture.source.open_files() <= 256);
                }
            });
        }
    });
    assert_eq!(fixture.source.open_files(), 256);
}

#[test]
fn a_file_deeper_than_any_path_is_read() {
    const DEPTH: usize = 1200;
    let fixture = fixture(|dir| {
        let mut at = File::open(dir).unwrap();
        for _ in 0..DEPTH {
            mkdirat(&at, "deeper", Mode::S_IRWXU).unwrap();
            let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
            at = openat(&at, "deeper", flags, Mode::empty()).unwrap().into();
        }
        let flags = OFlag::O_CREAT | OFlag::O_WRONLY;
        let file = openat(&at, "f", flags, Mode::S_IRUSR).unwrap();
        File::from(file).write_all(b"bottom").unwrap();
    });
    let key = fixture.key(&("deeper/".repeat(DEPTH) + "f"));
    assert_eq!(fixture.read(&key).unwrap(), b"bottom");
}

#[test]
fn reading_leaves_no_trace_in_access_times() {
    use std::os::unix::fs::MetadataExt;
    let fixture = fixture(|dir| {
        fs::write(dir.join("f"), b"bytes").unwrap();
        // Older than the change: even with `relatime` a read would move it.
        let file = File::open(dir.join("f")).unwrap();
        let times = fs::FileTimes::new().set_accessed(std::time::UNIX_EPOCH);
        file.set_times(times).unwrap();
    });
    assert_eq!(fixture.read(&fixture.key("f")).unwrap(), b"bytes");
    assert_eq!(fs::metadata(fixture.path("f")).unwrap().atime(), 0);
}

#[test]
fn residency_tells_memory_from_disk() {
    let fixture = fixture(|dir| fs::write(dir.join("f"), pattern(1 << 20)).unwrap());
    let key = fixture.key("f");
    let ask = |offset, len| fixture.source.is_resident(&key, offset, len);
    assert_eq!(
        ask(0, 1 << 20),
        Some(true),
        "`None` is the answer of a file system that cannot say: build on ext4, xfs or btrfs"
    );
    assert_eq!(
        ask((1 << 20) - 10, 4096),
        Some(true),
        "the end of the file counts as there"
    );
    let file = File::open(fixture.path("f")).unwrap();
    file.sync_all().unwrap();
    posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
    assert_eq!(ask(0, 1), Some(false));
    let stale = FileKey {
        version: Version::default(),
        ..key
    };
    assert_eq!(fixture.source.is_resident(&stale, 0, 1), None);
}

/// Pages of a file that are in memory.
fn in_memory(path: &Path) -> u64 {
    let file = File::open(path).unwrap();
    let len = file.metadata().unwrap().len();
    Resident::look(&file, 0..len).unwrap().count()
}

#[test]
fn who_keeps_the_bytes_himself_leaves_the_source_as_it_was() {
    let bytes = pattern((8 << 20) + 100);
    let fixture = fixture(|dir| fs::write(dir.join("f"), &bytes).unwrap());
    let (key, path) = (fixture.key("f"), fixture.path("f"));
    let file = File::open(&path).unwrap();
    file.sync_all().unwrap();
    posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
    assert_eq!(in_memory(&path), 0);
    // Somebody else has a part of it in memory, and keeps it.
    posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_RANDOM).unwrap();
    file.read_exact_at(&mut [0; 16 * 4096], 1 << 20).unwrap();
    assert_eq!(in_memory(&path), 16);
    let mut buf = vec![0; 128 << 10];
    let mut cold = 0;
    for offset in (0..bytes.len() as u64).step_by(buf.len()) {
        let now = fixture.source.read_once_now(&key, offset, &mut buf);
        cold += u64::from(now.is_none());
        let read = fixture.source.read_once(&key, offset, &mut buf).unwrap();
        let start = usize::try_from(offset).unwrap();
        assert!(buf[..read] == bytes[start..start + read]);
    }
    // On a busy machine the kernel has read ahead for some of them.
    assert!(cold > 0);
    assert_eq!(in_memory(&path), 16);
    // Read as anybody reads, it stays.
    let mut all = vec![0; bytes.len()];
    let read = fixture.source.read_at(&key, 0, &mut all).unwrap();
    assert!(all[..read] == bytes);
    assert_eq!(in_memory(&path), 2049);
}

#[test]
fn advice_never_fails_and_ends_with_the_source() {
    let fixture = fixture(|dir| fs::write(dir.join("f"), pattern(1 << 20)).unwrap());
    let key = fixture.key("f");
    let all = BlockRange::with_len(BlockIndex(0), 256);
    let far = BlockRange::with_len(BlockIndex(u64::MAX - 1), 1);
    for _ in 0..1000 {
        fixture.source.advise(&key, &[all, far]);
        fixture.source.advise(
            &FileKey {
                file: FileId(77),
                ..key
            },
            &[all; 5000],
        );
    }
    assert_eq!(fixture.read(&key).unwrap(), pattern(1 << 20));
    drop(fixture);
}

#[test]
fn a_backing_file_is_of_the_version_and_may_wait() {
    let fixture = fixture(|dir| fs::write(dir.join("f"), b"bytes").unwrap());
    let key = fixture.key("f");
    let fd = fixture.source.open_backing(&key).unwrap();
    let flags = OFlag::from_bits_retain(fcntl(&fd, FcntlArg::F_GETFL).unwrap());
    assert!(!flags.contains(OFlag::O_NONBLOCK));
    let mut buf = [0; 5];
    File::from(fd).read_exact_at(&mut buf, 0).unwrap();
    assert_eq!(&buf, b"bytes");
    fs::write(fixture.path("f"), b"other").unwrap();
    assert!(fixture.source.open_backing(&key).is_err());
}

#[test]
fn holes_are_where_the_file_system_has_them() {
    const MIB: u64 = 1 << 20;
    // Not every disk's file system has holes; tmpfs has, and every Linux has a tmpfs there.
    let fixture = fixture_in(Path::new("/dev/shm"), |dir| {
        let file = File::create(dir.join("f")).unwrap();
        file.set_len(8 * MIB).unwrap();
        file.write_all_at(&pattern(4096), 2 * MIB).unwrap();
    });
    let key = fixture.key("f");
    let seek = |offset, what| fixture.source.seek(&key, offset, what).unwrap();
    let data = seek(0, Seek::Data).unwrap();
    assert!((1..=2 * MIB).contains(&data));
    let hole = seek(2 * MIB, Seek::Hole).unwrap();
    assert!((2 * MIB + 4096..8 * MIB).contains(&hole));
    assert_eq!(seek(hole, Seek::Data), None);
    assert_eq!(seek(hole, Seek::Hole), Some(hole));
    assert_eq!(seek(8 * MIB, Seek::Hole), None);
    assert_eq!(seek(u64::MAX, Seek::Data), None);
    let stale = FileKey {
        version: Version::default(),
        ..key
    };
    assert!(fixture.source.seek(&stale, 0, Seek::Data).is_err());
}
