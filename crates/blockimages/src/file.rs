//! A device as the only file of a directory: what a mount of it shows.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use blocks::{
    Attr, BlockDevice, BlockSource, DeviceAccess, DeviceError, DeviceErrorKind, DirEntry,
    Durability, FileId, FileKey, FileWriter, Inode, NodeData, NodeKind, SourceError,
    SourceErrorKind, Space, Span, Timestamp, Tree, TreeError, TreeParts,
};
use nix::errno::Errno;

use crate::reads;

/// What the file is called.
pub const FILE_NAME: &str = "disk";

/// What fails when a read does.
const READING: &str = "reading a block image";

/// The file's place in the tree, behind the directory.
const FILE: FileId = FileId(1);

/// A device that is read as a file, and written to if it can be.
pub struct DeviceFile {
    device: Arc<dyn BlockDevice>,
}

impl std::fmt::Debug for DeviceFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeviceFile")
            .field("info", &self.device.info())
            .finish()
    }
}

impl DeviceFile {
    /// Returns what reads the device as a file, and the directory that has the file.
    ///
    /// # Errors
    /// If the tree cannot be made, which does not happen.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use blocks::{BlockSource as _, DeviceAccess};
    /// use blockimages::{DeviceFile, FILE_NAME, RawDevice};
    ///
    /// let dir = tempfile::tempdir()?;
    /// std::fs::write(dir.path().join("raw"), [7; 1024])?;
    /// let device = RawDevice::open(&dir.path().join("raw"), DeviceAccess::ReadOnly)?;
    /// let (file, tree) = DeviceFile::new(Arc::new(device))?;
    /// let key = tree.key(tree.resolve(FILE_NAME.as_bytes()).unwrap()).unwrap();
    /// let mut bytes = [0; 100];
    /// assert_eq!((file.read_at(&key, 1000, &mut bytes)?, bytes[23], bytes[24]), (24, 7, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(device: Arc<dyn BlockDevice>) -> Result<(Self, Tree), TreeError> {
        let info = device.info();
        let size = info.size;
        let now = Timestamp::default();
        let dir = Attr {
            kind: NodeKind::Dir,
            perm: 0o700,
            uid: 0,
            gid: 0,
            nlink: 2,
            rdev: 0,
            size: 4096,
            blocks: 8,
            atime: now,
            mtime: now,
            ctime: now,
            source_inode: 1,
        };
        let file = Attr {
            kind: NodeKind::File,
            perm: match info.access {
                DeviceAccess::ReadOnly => 0o400,
                DeviceAccess::ReadWrite => 0o600,
            },
            nlink: 1,
            size,
            blocks: size.div_ceil(512),
            source_inode: 2,
            ..dir
        };
        let one = Span { start: 0, len: 1 };
        let name = Span {
            start: 0,
            // Four characters.
            len: u32::try_from(FILE_NAME.len()).unwrap_or(u32::MAX),
        };
        let inode = |attr, data| Inode {
            attr,
            data,
            xattrs: Span::default(),
        };
        let tree = Tree::new(TreeParts {
            inodes: vec![
                inode(dir, NodeData::Dir { entries: one }),
                inode(file, NodeData::None),
            ],
            entries: vec![DirEntry { name, file: FILE }],
            xattrs: Vec::new(),
            bytes: FILE_NAME.as_bytes().to_vec(),
        })?;
        Ok((Self { device }, tree))
    }
}

impl BlockSource for DeviceFile {
    fn read_at(&self, file: &FileKey, offset: u64, buf: &mut [u8]) -> Result<usize, SourceError> {
        let (read, would_wait) = reads::would_wait(|| self.read(file.file, offset, buf));
        read.map_err(|error| match would_wait {
            // Another thread reads it then.
            true => SourceError::new(SourceErrorKind::WouldWait, READING).about(file.file),
            false => source_error(READING, &error),
        })
    }
}

impl DeviceFile {
    fn read(&self, file: FileId, offset: u64, buf: &mut [u8]) -> Result<usize, DeviceError> {
        let info = self.device.info();
        let end = info.size.min(offset.saturating_add(buf.len() as u64));
        let Some(len) = end.checked_sub(offset).filter(|_| file == FILE) else {
            return Ok(0);
        };
        let len = usize::try_from(len).unwrap_or(buf.len());
        let block = u64::from(info.block_size);
        if offset.is_multiple_of(block) && end.is_multiple_of(block) {
            let read = self.device.read_at(offset, &mut buf[..len]);
            return read.map(|()| len);
        }
        // Whole blocks, of which a part is wanted.
        let start = offset / block * block;
        let whole = end.next_multiple_of(block).min(info.size) - start;
        let mut blocks = vec![0; usize::try_from(whole).unwrap_or(0)];
        self.device.read_at(start, &mut blocks)?;
        let skip = usize::try_from(offset - start).unwrap_or(0);
        buf[..len].copy_from_slice(&blocks[skip..skip + len]);
        Ok(len)
    }
}

impl FileWriter for DeviceFile {
    /// Whole blocks are written. Of blocks that are changed in part the rest is read before; who writes to one block at
    /// once in two ways has to see to it that these take turns, as the kernel does for writers of one file.
    fn write_at(&self, file: FileId, offset: u64, data: &[u8]) -> Result<(), SourceError> {
        expect(file)?;
        let failed = |error| source_error("writing to a block image", &error);
        let block = u64::from(self.device.info().block_size);
        let end = offset + data.len() as u64;
        if offset.is_multiple_of(block) && end.is_multiple_of(block) {
            let written = self.device.write_at(offset, data, Durability::Flushed);
            return written.map_err(failed);
        }
        let (start, end) = (offset / block * block, end.next_multiple_of(block));
        let mut blocks = vec![0; usize::try_from(end - start).unwrap_or(0)];
        self.device.read_at(start, &mut blocks).map_err(failed)?;
        let skip = usize::try_from(offset - start).unwrap_or(0);
        blocks[skip..skip + data.len()].copy_from_slice(data);
        let written = self.device.write_at(start, &blocks, Durability::Flushed);
        written.map_err(failed)
    }

    fn clear(&self, file: FileId, range: Range<u64>) -> Result<(), SourceError> {
        expect(file)?;
        let space = Space::Release;
        let cleared = self.device.write_zeroes(range, space, Durability::Flushed);
        cleared.map_err(|error| source_error("zeroing a block image", &error))
    }

    fn flush(&self, file: FileId) -> Result<(), SourceError> {
        expect(file)?;
        let flushed = self.device.flush();
        flushed.map_err(|error| source_error("flushing a block image", &error))
    }
}

/// Fails if a number is not that of the only file.
fn expect(file: FileId) -> Result<(), SourceError> {
    match file {
        FILE => Ok(()),
        _ => Err(SourceError::new(SourceErrorKind::NotFound, "writing").about(file)),
    }
}

/// Returns what a reader or writer of the file is told of an error of the device.
fn source_error(doing: &'static str, error: &DeviceError) -> SourceError {
    let first = std::error::Error::source(error);
    let causes = std::iter::successors(first, |error| error.source());
    let causes: String = causes.map(|cause| format!(": {cause}")).collect();
    log::warn!("{error}{causes}");
    let told = match error.kind() {
        DeviceErrorKind::TimedOut => return SourceError::new(SourceErrorKind::TimedOut, doing),
        DeviceErrorKind::NoSpace => Errno::ENOSPC,
        DeviceErrorKind::Misaligned | DeviceErrorKind::OutOfBounds => Errno::EINVAL,
        DeviceErrorKind::ReadOnly => Errno::EROFS,
        _ => Errno::EIO,
    };
    SourceError::from_io(doing, io::Error::from(told)).about(FILE)
}
