//! Conversion of numbers, attributes, kinds, times and lifetimes to those of FUSE.

use std::time::{Duration, SystemTime};

use blocks::{Attr, Caller, FileId, Lifetime, NodeKind, Timestamp};
use fuser::{FileAttr, FileType, INodeNo};

use crate::fs::{FsError, node_id};

/// As good as for ever: 136 years. The kernel turns it into a number of its clock's ticks, which
/// much larger numbers of seconds would overflow on some kernels.
const FOREVER: Duration = Duration::from_secs(u32::MAX as u64);

/// The block size that `stat` tells programs to read with.
const IO_BLOCK_BYTES: u32 = 4096;

/// The attributes of nothing: number 0 says that there is no file.
pub(super) const NO_NODE: FileAttr = FileAttr {
    ino: INodeNo(0),
    size: 0,
    blocks: 0,
    atime: SystemTime::UNIX_EPOCH,
    mtime: SystemTime::UNIX_EPOCH,
    ctime: SystemTime::UNIX_EPOCH,
    crtime: SystemTime::UNIX_EPOCH,
    kind: FileType::RegularFile,
    perm: 0,
    nlink: 0,
    uid: 0,
    gid: 0,
    rdev: 0,
    blksize: IO_BLOCK_BYTES,
    flags: 0,
};

/// The file that the kernel means by a number.
pub(super) fn file(ino: INodeNo) -> Result<FileId, FsError> {
    let index = ino.0.checked_sub(1).and_then(|i| u32::try_from(i).ok());
    index.map(FileId).ok_or(FsError::UnknownNode(ino.0))
}

pub(super) fn node(file: FileId) -> INodeNo {
    INodeNo(node_id(file))
}

pub(super) fn caller(req: &fuser::Request) -> Caller {
    Caller { pid: req.pid() }
}

pub(super) const fn lifetime(lifetime: Lifetime) -> Duration {
    match lifetime {
        Lifetime::Forever => FOREVER,
        Lifetime::For(duration) => duration,
    }
}

pub(super) fn file_attr(file: FileId, attr: &Attr) -> FileAttr {
    FileAttr {
        ino: node(file),
        size: attr.size,
        blocks: attr.blocks,
        atime: system_time(attr.atime),
        mtime: system_time(attr.mtime),
        ctime: system_time(attr.ctime),
        kind: file_type(attr.kind),
        perm: attr.perm,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        ..NO_NODE
    }
}

pub(super) const fn file_type(kind: NodeKind) -> FileType {
    match kind {
        NodeKind::File => FileType::RegularFile,
        NodeKind::Dir => FileType::Directory,
        NodeKind::Symlink => FileType::Symlink,
        NodeKind::CharDevice => FileType::CharDevice,
        NodeKind::BlockDevice => FileType::BlockDevice,
        NodeKind::Fifo => FileType::NamedPipe,
        NodeKind::Socket => FileType::Socket,
    }
}

/// A moment that the system cannot express (no file system has such) becomes 1970.
fn system_time(time: Timestamp) -> SystemTime {
    let whole = Duration::from_secs(time.secs.unsigned_abs());
    let whole = if time.secs < 0 {
        SystemTime::UNIX_EPOCH.checked_sub(whole)
    } else {
        SystemTime::UNIX_EPOCH.checked_add(whole)
    };
    whole
        .and_then(|whole| whole.checked_add(Duration::from_nanos(u64::from(time.nanos))))
        .unwrap_or(SystemTime::UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_were_never_given_out_name_no_file() {
        assert_eq!(file(INodeNo(1)).unwrap(), FileId::ROOT);
        let last = FileId(u32::MAX);
        assert_eq!(file(node(last)).unwrap(), last);
        for number in [0, u64::from(u32::MAX) + 2, u64::MAX] {
            assert!(matches!(file(INodeNo(number)), Err(FsError::UnknownNode(n)) if n == number));
        }
    }

    #[test]
    fn moments_before_1970_keep_their_nanoseconds() {
        let time = |secs, nanos| system_time(Timestamp { secs, nanos });
        let before = SystemTime::UNIX_EPOCH - Duration::from_millis(250);
        assert_eq!(time(-1, 750_000_000), before);
        assert_eq!(time(0, 0), SystemTime::UNIX_EPOCH);
        assert_eq!(
            time(i64::MIN, 0),
            SystemTime::UNIX_EPOCH
                .checked_sub(Duration::from_secs(1 << 63))
                .unwrap_or(SystemTime::UNIX_EPOCH)
        );
    }
}
