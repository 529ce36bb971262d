//! What a mount shows: contents, names and attributes.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use blocks::testing::Node;
use blocks::{
    BlockSource, FileKey, NodeKind, Seek, SourceError, SourceErrorKind, Sparse, Timestamp,
};
use nix::libc::O_DIRECT;
use nix::sys::statvfs::FsFlags;
use nix::unistd::{Whence, lseek};
use tempfile::TempDir;
use yolofs::{Config, FileSystem, Mode, Request, Space, XattrAnswers};

use crate::rig::{Files, Mounted, pattern};
use testkit::undisturbed::undisturbed;

const MODES: [Mode; 2] = [Mode::Lower, Mode::Disk];

fn small_tree() -> Files {
    let nodes = vec![
        Node::dir(&[("etc", 1), ("hello", 2), ("link", 3), ("empty", 5)]),
        Node::dir(&[("passwd", 4)]),
        Node::file(0),
        Node::symlink("etc/passwd"),
        Node::file(0),
        Node::new(NodeKind::File),
    ];
    let contents = [
        (2, b"hello\n".to_vec()),
        (4, pattern(4, 1_000_000)),
        (5, vec![]),
    ];
    Files::new(nodes, &contents)
}

#[test]
fn contents_are_those_of_the_source() {
    for mode in MODES {
        let mounted = Mounted::new(small_tree().file_system(mode));
        assert_eq!(fs::read(mounted.path("hello")).unwrap(), b"hello\n");
        assert_eq!(
            fs::read(mounted.path("link")).unwrap(),
            pattern(4, 1_000_000)
        );
        assert_eq!(fs::read(mounted.path("empty")).unwrap(), b"");
        let missing = fs::read(mounted.path("nothing")).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
    }
}

#[test]
fn direct_readers_get_the_same_bytes() {
    for mode in MODES {
        let mounted = Mounted::new(small_tree().file_system(mode));
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(O_DIRECT)
            .open(mounted.path("etc/passwd"))
            .unwrap();
        let mut buf = vec![0; 8192];
        for offset in [0, 4096, 995_328] {
            let read = file.read_at(&mut buf, offset).unwrap();
            let from = usize::try_from(offset).unwrap();
            let all = pattern(4, 1_000_000);
            assert_eq!(buf[..read], all[from..all.len().min(from + 8192)]);
        }
    }
}

#[test]
fn attributes_are_shown_to_the_nanosecond() {
    let mut node = Node::file(0);
    node.attr.perm = 0o6751;
    (node.attr.uid, node.attr.gid, node.attr.nlink) = (1234, 70_000, 3);
    let time = |secs, nanos| Timestamp { secs, nanos };
    node.attr.atime = time(1, 999_999_999);
    node.attr.mtime = time(1_700_000_000, 123_456_789);
    node.attr.ctime = time(4_102_444_800, 1);
    node.attr.blocks = 77;
    let mut old = Node::file(0);
    old.attr.mtime = time(-1, 500_000_000);
    let nodes = vec![Node::dir(&[("file", 1), ("old", 2)]), node, old];
    let mounted =
        Mounted::new(Files::new(nodes, &[(1, pattern(1, 5000))]).file_system(Mode::Lower));
    let seen = fs::symlink_metadata(mounted.path("file")).unwrap();
    assert_eq!(seen.mode(), 0o106_751);
    assert_eq!((seen.uid(), seen.gid(), seen.nlink()), (1234, 70_000, 3));
    assert_eq!((seen.ino(), seen.size(), seen.blocks()), (2, 5000, 77));
    assert_eq!((seen.atime(), seen.atime_nsec()), (1, 999_999_999));
    assert_eq!(
        (seen.mtime(), seen.mtime_nsec()),
        (1_700_000_000, 123_456_789)
    );
    assert_eq!((seen.ctime(), seen.ctime_nsec()), (4_102_444_800, 1));
    let old = fs::symlink_metadata(mounted.path("old")).unwrap();
    assert_eq!((old.mtime(), old.mtime_nsec()), (-1, 500_000_000));
}

#[test]
fn special_files_keep_their_kind_and_device() {
    let kinds = [
        NodeKind::CharDevice,
        NodeKind::BlockDevice,
        NodeKind::Fifo,
        NodeKind::Socket,
    ];
    let mut nodes = vec![Node::dir(&[("0", 1), ("1", 2), ("2", 3), ("3", 4)])];
    nodes.extend(kinds.map(Node::new));
    // Major 259, minor 65_793: both have bits in every part of the kernel's encoding.
    nodes[1].attr.rdev = (65_793 & 0xff) | (259 << 8) | ((65_793 & !0xff) << 12);
    let mounted = Mounted::new(Files::new(nodes, &[]).file_system(Mode::Lower));
    let seen = |name: &str| fs::symlink_metadata(mounted.path(name)).unwrap();
    assert_eq!(seen("0").rdev(), nix::sys::stat::makedev(259, 65_793));
    assert!(seen("0").file_type().is_char_device());
    assert!(seen("1").file_type().is_block_device());
    assert!(seen("2").file_type().is_fifo());
    assert!(seen("3").file_type().is_socket());
}

#[test]
fn extended_attributes_are_served_with_their_sizes() {
    let mut node = Node::file(0);
    let large = pattern(9, 60_000);
    node.xattrs = vec![
        (b"user.large".to_vec(), large.clone()),
        (b"trusted.overlay.opaque".to_vec(), b"y".to_vec()),
        (b"user.empty".to_vec(), vec![]),
    ];
    let nodes = vec![Node::dir(&[("file", 1)]), node];
    let mounted = Mounted::new(Files::new(nodes, &[]).file_system(Mode::Lower));
    let dir = File::open(mounted.mount().target()).unwrap();
    let get = |name: &[u8]| rawio::xattr::get_at(&dir, b"file", name).unwrap();
    assert_eq!(get(b"user.large"), Some(large));
    assert_eq!(get(b"user.empty"), Some(vec![]));
    assert_eq!(get(b"user.none"), None);
    let names = rawio::xattr::list_at(&dir, b"file").unwrap();
    assert_eq!(names, b"trusted.overlay.opaque\0user.empty\0user.large\0");
}

/// The names of attributes that programs ask for, and the two that an overlay asks for.
const ASKED: [&[u8]; 4] = [
    b"user.any",
    b"security.capability",
    b"trusted.any",
    b"system.posix_acl_access",
];
const BY_OVERLAYS: [&[u8]; 2] = [b"trusted.overlay.metacopy", b"trusted.overlay.opaque"];

/// What the system says of attributes of files in a directory: lengths, or errors.
fn said_of(dir: &Path, names: &[&[u8]]) -> Vec<Result<usize, i32>> {
    let dir = File::open(dir).unwrap();
    let mut said = Vec::new();
    for file in [&b"hello"[..], b"etc"] {
        let listed = rawio::xattr::names_at(&dir, file);
        let values = names
            .iter()
            .map(|name| rawio::xattr::value_at(&dir, file, name));
        said.extend(
            std::iter::once(listed)
                .chain(values)
                .map(|said| match said {
                    Ok(bytes) => Ok(bytes.len()),
                    Err(error) => Err(error.raw_os_error().unwrap()),
                }),
        );
    }
    said
}

/// A directory with the same names on the file system that the tests run on, which has attributes.
fn native() -> TempDir {
    let dir = tempfile::Builder::new().tempdir_in("/var/tmp").unwrap();
    fs::write(dir.path().join("hello"), b"").unwrap();
    fs::create_dir(dir.path().join("etc")).unwrap();
    dir
}

#[test]
fn what_has_no_extended_attributes_says_so_as_others_do() {
    let native = native();
    let mounted = Mounted::new(small_tree().file_system(Mode::Lower));
    for _ in 0..3 {
        let said = said_of(mounted.mount().target(), &ASKED);
        assert_eq!(said, said_of(native.path(), &ASKED));
    }
    let all = [&ASKED[..], &BY_OVERLAYS].concat();
    let fs = small_tree().file_system(Mode::Lower);
    let mounted = Mounted::new(fs.with_xattr_answers(XattrAnswers::Always));
    for _ in 0..3 {
        let said = said_of(mounted.mount().target(), &all);
        assert_eq!(said, said_of(native.path(), &all));
    }
}

#[test]
fn overlays_ask_a_tree_without_extended_attributes_once() {
    let mounted = Mounted::new(small_tree().file_system(Mode::Lower));
    let asked = || mounted.mount().counters().requests(Request::GetXattr);
    for _ in 0..3 {
        let said = said_of(mounted.mount().target(), &BY_OVERLAYS);
        // Lists are right all the same; the rest is what it costs.
        let no = Err(nix::libc::EOPNOTSUPP);
        assert_eq!(said, [Ok(0), no, no, Ok(0), no, no]);
        assert_eq!(asked(), 1);
    }
    let said = said_of(mounted.mount().target(), &ASKED);
    assert_eq!(said.iter().filter(|said| said.is_ok()).count(), 2);
    assert_eq!(asked(), 1);
}

#[test]
fn names_may_be_any_bytes_and_255_of_them() {
    let long = vec![b'n'; 255];
    let wild = b"\xff\xfe \n\\\x01".to_vec();
    let mut root = Node::dir(&[]);
    root.names = vec![(long.clone(), 1), (wild.clone(), 2)];
    let nodes = vec![root, Node::file(0), Node::file(0)];
    let files = Files::new(nodes, &[(1, b"long".to_vec()), (2, b"wild".to_vec())]);
    let mounted = Mounted::new(files.file_system(Mode::Lower));
    let read = |name: &[u8]| fs::read(mounted.mount().target().join(OsStr::from_bytes(name)));
    assert_eq!(read(&long).unwrap(), b"long");
    assert_eq!(read(&wild).unwrap(), b"wild");
    let too_long = read(&[b'n'; 256]).unwrap_err();
    assert_eq!(too_long.raw_os_error(), Some(nix::libc::ENAMETOOLONG));
    let mut listed: Vec<Vec<u8>> = fs::read_dir(mounted.mount().target())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_encoded_bytes())
        .collect();
    listed.sort();
    assert_eq!(listed, [long, wild]);
}

#[test]
fn a_directory_of_100_000_names_is_listed_once_and_whole() {
    undisturbed(|| {
        const COUNT: u32 = 100_000;
        let mut root = Node::dir(&[]);
        root.names = (1..=COUNT)
            .map(|i| (format!("entry-{i:06}").into_bytes(), i))
            .collect();
        let mut nodes = vec![root];
        nodes.resize_with(COUNT as usize + 1, || Node::file(0));
        let mounted = Mounted::new(Files::new(nodes, &[]).file_system(Mode::Lower));
        let list = || {
            let names = fs::read_dir(mounted.mount().target()).unwrap();
            let mut names: Vec<String> = names
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        };
        let expected: Vec<String> = (1..=COUNT).map(|i| format!("entry-{i:06}")).collect();
        assert_eq!(list(), expected);
        // Unless memory was short in between, which no kernel counts: then it remembers the next.
        let remembered = (0..5).any(|_| {
            let (again, requests) = mounted.requests_of(list);
            assert_eq!(again, expected);
            requests == 0
        });
        assert!(remembered, "the kernel remembers a listing");
        let last = fs::symlink_metadata(mounted.path("entry-100000")).unwrap();
        assert_eq!(last.ino(), 100_001);
    });
}

#[test]
fn names_that_are_not_there_are_asked_for_once() {
    undisturbed(|| {
        let mounted = Mounted::new(small_tree().file_system(Mode::Lower));
        for _ in 0..3 {
            assert!(!mounted.path("nothing").exists());
        }
        assert_eq!(mounted.mount().counters().requests(Request::Lookup), 1);
    });
}

#[test]
fn opening_and_closing_costs_no_request() {
    undisturbed(|| {
        let mounted = Mounted::new(small_tree().file_system(Mode::Lower));
        fs::read(mounted.path("hello")).unwrap();
        let (_, requests) = mounted.requests_of(|| {
            for _ in 0..10 {
                assert_eq!(fs::read(mounted.path("hello")).unwrap(), b"hello\n");
            }
        });
        assert_eq!(requests, 0);
    });
}

/// Six GiB, of which one MiB behind the fifth is data: its own offset, over and over.
struct Huge;

impl Huge {
    const SIZE: u64 = 6 << 30;
    const DATA: std::ops::Range<u64> = 5 << 30..(5 << 30) + (1 << 20);
}

impl BlockSource for Huge {
    fn read_at(&self, file: &FileKey, offset: u64, buf: &mut [u8]) -> Result<usize, SourceError> {
        let left = usize::try_from(file.version.size.saturating_sub(offset)).unwrap();
        let len = buf.len().min(left);
        for (at, byte) in (offset..).zip(&mut buf[..len]) {
            let data = (at & !7).to_le_bytes()[usize::try_from(at & 7).unwrap()];
            *byte = if Self::DATA.contains(&at) { data } else { 0 };
        }
        Ok(len)
    }
}

impl Sparse for Huge {
    fn seek(&self, file: &FileKey, offset: u64, what: Seek) -> Result<Option<u64>, SourceError> {
        if offset >= file.version.size {
            return Ok(None);
        }
        Ok(match what {
            Seek::Data if offset < Self::DATA.end => Some(offset.max(Self::DATA.start)),
            Seek::Data => None,
            Seek::Hole if Self::DATA.contains(&offset) => Some(Self::DATA.end),
            Seek::Hole => Some(offset),
        })
    }
}

#[test]
fn files_beyond_4_gib_are_read_and_their_holes_found() {
    for mode in MODES {
        let mut huge = Node::file(Huge::SIZE);
        huge.attr.blocks = (Huge::DATA.end - Huge::DATA.start) / 512;
        let tree = blocks::testing::tree(&[Node::dir(&[("huge", 1)]), huge]);
        let config = Config {
            mode,
            ..Config::default()
        };
        let fs = FileSystem::new(Arc::new(tree.unwrap()), Arc::new(Huge), config)
            .with_sparse(Arc::new(Huge));
        let mounted = Mounted::new(fs);
        let file = File::open(mounted.path("huge")).unwrap();
        assert_eq!(file.metadata().unwrap().len(), Huge::SIZE);
        let mut word = [0; 8];
        file.read_exact_at(&mut word, Huge::DATA.start + 4096)
            .unwrap();
        assert_eq!(u64::from_le_bytes(word), Huge::DATA.start + 4096);
        file.read_exact_at(&mut word, Huge::SIZE - 8).unwrap();
        assert_eq!(word, [0; 8]);
        let seek = |offset: u64, whence| lseek(&file, i64::try_from(offset).unwrap(), whence);
        let (start, end) = (Huge::DATA.start, Huge::DATA.end);
        let signed = |offset: u64| i64::try_from(offset).unwrap();
        assert_eq!(seek(0, Whence::SeekData).unwrap(), signed(start));
        assert_eq!(seek(start, Whence::SeekHole).unwrap(), signed(end));
        assert_eq!(seek(7, Whence::SeekHole).unwrap(), 7);
        assert_eq!(seek(end, Whence::SeekData), Err(nix::errno::Errno::ENXIO));
        assert_eq!(
            seek(Huge::SIZE, Whence::SeekHole),
            Err(nix::errno::Errno::ENXIO)
        );
    }
}

#[test]
fn programs_and_scripts_run_from_the_mount() {
    let mut program = Node::file(0);
    program.attr.perm = 0o755;
    let nodes = vec![
        Node::dir(&[("cat", 1), ("script", 2)]),
        program.clone(),
        program,
    ];
    let script = b"#!/bin/sh\necho \"ran with $1\"\n".to_vec();
    for mode in MODES {
        let cat = fs::read("/bin/cat").unwrap();
        let files = Files::new(nodes.clone(), &[(1, cat), (2, script.clone())]);
        let mounted = Mounted::new(files.file_system(mode));
        let output = Command::new(mounted.path("cat"))
            .arg(mounted.path("script"))
            .output()
            .unwrap();
        assert_eq!(output.stdout, script);
        let output = Command::new(mounted.path("script"))
            .arg("this")
            .output()
            .unwrap();
        assert_eq!(output.stdout, b"ran with this\n");
    }
}

#[test]
fn a_mapped_file_has_the_same_bytes() {
    let mounted = Mounted::new(small_tree().file_system(Mode::Lower));
    let code = "import mmap, sys\n\
                file = open(sys.argv[1], 'rb')\n\
                sys.stdout.buffer.write(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)[:])";
    let output = Command::new("python3")
        .args(["-c", code])
        .arg(mounted.path("etc/passwd"))
        .output()
        .unwrap();
    assert_eq!(output.stdout, pattern(4, 1_000_000));
}

#[test]
fn the_space_is_that_of_the_source() {
    let fs = small_tree().file_system(Mode::Lower).with_space(|| {
        Ok(Space {
            block_size: 4096,
            blocks: 1000,
            blocks_free: 500,
            blocks_available: 400,
            inodes: 30,
            inodes_free: 20,
        })
    });
    let mounted = Mounted::new(fs);
    let seen = nix::sys::statvfs::statvfs(mounted.mount().target()).unwrap();
    assert_eq!((seen.block_size(), seen.fragment_size()), (4096, 4096));
    assert_eq!((seen.blocks(), seen.blocks_free()), (1000, 500));
    assert_eq!(
        (seen.blocks_available(), seen.files(), seen.files_free()),
        (400, 30, 20)
    );
    assert_eq!(seen.name_max(), 255);
    assert!(seen.flags().contains(FsFlags::ST_RDONLY));
    let powers = FsFlags::ST_NOSUID | FsFlags::ST_NODEV;
    assert!(seen.flags().contains(powers));
    assert!(!seen.flags().contains(FsFlags::ST_NOEXEC));
    // Image trees have set-user-id programs and devices.
    let files = small_tree();
    let honoured = Mounted::honouring_privileges(files.file_system(Mode::Lower));
    let seen = nix::sys::statvfs::statvfs(honoured.mount().target()).unwrap();
    assert!(seen.flags().contains(FsFlags::ST_RDONLY));
    assert!(!seen.flags().intersects(powers | FsFlags::ST_NOEXEC));
}

/// A source that fails.
struct Broken;

impl BlockSource for Broken {
    fn read_at(&self, _: &FileKey, _: u64, _: &mut [u8]) -> Result<usize, SourceError> {
        Err(SourceError::new(
            SourceErrorKind::Io,
            "reading on purpose in vain",
        ))
    }
}

#[test]
fn a_source_that_fails_is_an_error_and_no_more() {
    let files = small_tree();
    let fs = FileSystem::new(files.tree.clone(), Arc::new(Broken), Config::default());
    let mounted = Mounted::new(fs);
    let error = fs::read(mounted.path("hello")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(nix::libc::EIO));
    assert!(mounted.path("etc/passwd").exists());
    assert!(mounted.mount().counters().reads_failed > 0);
}
