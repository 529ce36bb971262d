//! A mount whose files can be written to: their content, and nothing else of them.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;

use blocks::testing::{MemFile, Node, tree};
use blocks::{BLOCK_SIZE, FileId};
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::libc::O_DIRECT;
use yolofs::{Config, FileSystem, Mode, Request};

use crate::rig::Mounted;

const SIZE: usize = 64 * BLOCK_SIZE;

/// A file that can be written to, and where it is mounted.
fn mounted(mode: Mode) -> (Mounted, Arc<MemFile>) {
    let mut nodes = vec![Node::dir(&[("disk", 1)]), Node::file(0)];
    nodes[1].attr.size = SIZE as u64;
    nodes[1].attr.perm = 0o600;
    let file = Arc::new(MemFile::new(FileId(1), vec![7; SIZE]));
    let config = Config {
        mode,
        ..Config::default()
    };
    let fs = FileSystem::new(Arc::new(tree(&nodes).unwrap()), file.clone(), config);
    (Mounted::new(fs.with_writer(file.clone())), file)
}

fn open(path: &Path, flags: i32) -> File {
    let mut options = OpenOptions::new();
    let opened = options
        .read(true)
        .write(true)
        .custom_flags(flags)
        .open(path);
    opened.unwrap()
}

/// Blocks at an address that `O_DIRECT` takes.
fn aligned(blocks: usize, byte: u8) -> (Vec<u8>, std::ops::Range<usize>) {
    let bytes = vec![byte; (blocks + 1) * BLOCK_SIZE];
    let start = bytes.as_ptr().align_offset(BLOCK_SIZE);
    (bytes, start..start + blocks * BLOCK_SIZE)
}

#[track_caller]
fn fails_with<T>(result: io::Result<T>, errno: Errno) {
    let error = result.err().and_then(|error| error.raw_os_error());
    assert_eq!(error, Some(errno as i32));
}

#[test]
fn what_is_written_is_read_and_flushed_when_it_is_asked_for() {
    for mode in [Mode::Lower, Mode::Disk] {
        let (mounted, file) = mounted(mode);
        let path = mounted.path("disk");
        let (direct, cached) = (open(&path, O_DIRECT), open(&path, 0));
        let (bytes, range) = aligned(3, 1);
        direct
            .write_all_at(&bytes[range], 2 * BLOCK_SIZE as u64)
            .unwrap();
        cached.write_all_at(&[2; 100], 10).unwrap();
        // Nobody keeps anything back.
        let content = file.content();
        let expected = |at: usize| match at {
            10..110 => 2,
            at if (2..5).contains(&(at / BLOCK_SIZE)) => 1,
            _ => 7,
        };
        let differs = (0..SIZE).find(|at| content[*at] != expected(*at));
        assert_eq!(differs, None, "{mode:?}");
        assert_eq!(fs::read(&path).unwrap(), content);
        assert_eq!(file.flushes(), 0);
        direct.sync_data().unwrap();
        assert_eq!(file.flushes(), 1);
        // What a loop device has discarded, and zeroed.
        let block = i64::try_from(BLOCK_SIZE).unwrap();
        for (at, flags) in [
            (2, FallocateFlags::FALLOC_FL_PUNCH_HOLE),
            (3, FallocateFlags::FALLOC_FL_ZERO_RANGE),
        ] {
            let flags = flags | FallocateFlags::FALLOC_FL_KEEP_SIZE;
            fallocate(&direct, flags, at * block, block).unwrap();
        }
        let content = file.content();
        assert!(
            content[2 * BLOCK_SIZE..4 * BLOCK_SIZE]
                .iter()
                .all(|byte| *byte == 0)
        );
        assert_eq!(content[4 * BLOCK_SIZE], 1);
        assert_eq!(fs::read(&path).unwrap(), content);
    }
}

#[test]
fn a_file_keeps_its_size_and_all_else_is_refused() {
    let (mounted, file) = mounted(Mode::Lower);
    let path = mounted.path("disk");
    let disk = open(&path, 0);
    fails_with(disk.write_at(&[1], SIZE as u64), Errno::EFBIG);
    fails_with(disk.set_len(1), Errno::EROFS);
    fails_with(File::create(mounted.path("new")), Errno::EROFS);
    fails_with(fs::remove_file(&path), Errno::EROFS);
    let reserve = fallocate(&disk, FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, 1);
    assert_eq!(reserve, Err(Errno::EOPNOTSUPP));
    file.fail();
    fails_with(disk.write_at(&[1], 0), Errno::EIO);
    fails_with(disk.sync_all(), Errno::EIO);
    assert_eq!(file.content(), vec![7; SIZE]);
}

/// The kernel asks for the privileges of a file before each write, unless it is told that there are none.
#[test]
fn a_write_is_one_request() {
    let (mounted, _) = mounted(Mode::Lower);
    let disk = open(&mounted.path("disk"), O_DIRECT);
    let (bytes, range) = aligned(1, 1);
    let counts = || {
        let counters = mounted.mount().counters();
        [Request::Write, Request::GetXattr].map(|request| counters.requests(request))
    };
    disk.write_all_at(&bytes[range.clone()], 0).unwrap();
    let [writes, questions] = counts();
    for block in 0..8 {
        disk.write_all_at(&bytes[range.clone()], block * BLOCK_SIZE as u64)
            .unwrap();
    }
    assert_eq!(counts(), [writes + 8, questions]);
}
