//! A raw disk image, or any file, as a device.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use blocks::{
    BlockDevice, Content, DeviceAccess, DeviceError, DeviceErrorKind, DeviceExtent, DeviceInfo,
    Durability, Space,
};
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, Flock, FlockArg, fallocate};
use nix::unistd::{Whence, lseek};
use parking_lot::Mutex;

use crate::ImageError;
use crate::disk_file;
use crate::error::file;

const BLOCK_BYTES: u32 = 512;

/// A file, of which this process is the only writer.
#[derive(Debug)]
pub struct RawDevice {
    file: Flock<File>,
    /// As it was opened.
    opened: DeviceInfo,
    size: AtomicU64,
    /// Looking for holes moves the file's position. Held for changes of its size, too.
    seeking: Mutex<()>,
}

impl RawDevice {
    /// Opens a file, and locks it: several processes may read it, or one may write.
    ///
    /// Bytes behind its last whole block of 512 bytes are not part of the device.
    ///
    /// # Errors
    /// If it cannot be opened, or another process has a conflicting lock.
    pub fn open(path: &Path, access: DeviceAccess) -> Result<Self, ImageError> {
        let write = access == DeviceAccess::ReadWrite;
        let opened = disk_file::open_with(path, File::options().read(true).write(write));
        let opened = opened.map_err(file("opening", path))?;
        let lock = match access {
            DeviceAccess::ReadOnly => FlockArg::LockSharedNonblock,
            DeviceAccess::ReadWrite => FlockArg::LockExclusiveNonblock,
        };
        let locked = Flock::lock(opened, lock);
        let opened = locked.map_err(|(_, error)| file("locking", path)(error.into()))?;
        let end = lseek(&*opened, 0, Whence::SeekEnd);
        let end = end.map_err(|error| file("getting the size of", path)(error.into()))?;
        let size =
            u64::try_from(end).unwrap_or(0) / u64::from(BLOCK_BYTES) * u64::from(BLOCK_BYTES);
        let info = DeviceInfo {
            access,
            trim: write,
            write_zeroes: write,
            ..DeviceInfo::read_only(size, BLOCK_BYTES)
        };
        Ok(Self {
            file: opened,
            opened: info,
            size: AtomicU64::new(size),
            seeking: Mutex::new(()),
        })
    }

    fn ended(&self, doing: &'static str, durability: Durability) -> Result<(), DeviceError> {
        match durability {
            Durability::Flushed => Ok(()),
            Durability::Durable => self.sync(doing),
        }
    }

    fn sync(&self, doing: &'static str) -> Result<(), DeviceError> {
        let synced = self.file.sync_data();
        synced.map_err(|error| DeviceError::from_io(doing, error))
    }

    fn allocate(&self, range: &Range<u64>, flags: FallocateFlags) -> Result<(), Errno> {
        let (start, len) = (signed(range.start)?, signed(range.end - range.start)?);
        fallocate(
            &*self.file,
            flags | FallocateFlags::FALLOC_FL_KEEP_SIZE,
            start,
            len,
        )
    }

    /// Writes zeros where the file system knows no shorter way.
    fn fill(&self, range: &Range<u64>) -> std::io::Result<()> {
        static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
        let mut at = range.start;
        while at < range.end {
            let len = usize::try_from(range.end - at)
                .unwrap_or(usize::MAX)
                .min(ZEROS.len());
            self.file.write_all_at(&ZEROS[..len], at)?;
            at += len as u64;
        }
        Ok(())
    }
}

fn signed(number: u64) -> Result<i64, Errno> {
    i64::try_from(number).map_err(|_| Errno::EFBIG)
}

impl BlockDevice for RawDevice {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            size: self.size.load(SeqCst),
            ..self.opened
        }
    }

    fn grow(&self, size: u64) -> Result<(), DeviceError> {
        let doing = "making a file larger";
        let failed = |error| DeviceError::from_io(doing, error).at(size);
        {
            // Two at a time could make it smaller.
            let _alone = self.seeking.lock();
            self.info().check_growth(doing, size)?;
            self.file.set_len(size).map_err(failed)?;
            self.size.store(size, SeqCst);
        }
        self.file.sync_all().map_err(failed)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        let doing = "reading a file";
        self.info().check(doing, offset, buf.len() as u64)?;
        let read = self.file.read_exact_at(buf, offset);
        read.map_err(|error| DeviceError::from_io(doing, error).at(offset))
    }

    fn write_at(
        &self,
        offset: u64,
        data: &[u8],
        durability: Durability,
    ) -> Result<(), DeviceError> {
        let doing = "writing a file";
        self.info().check_writable(doing)?;
        self.info().check(doing, offset, data.len() as u64)?;
        let wrote = self.file.write_all_at(data, offset);
        wrote.map_err(|error| DeviceError::from_io(doing, error).at(offset))?;
        self.ended(doing, durability)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        match self.opened.access {
            DeviceAccess::ReadOnly => Ok(()),
            DeviceAccess::ReadWrite => self.sync("flushing a file"),
        }
    }

    fn trim(&self, range: Range<u64>, durability: Durability) -> Result<(), DeviceError> {
        let doing = "trimming a file";
        self.info().check_writable(doing)?;
        self.info().check_range(doing, &range)?;
        match self.allocate(&range, FallocateFlags::FALLOC_FL_PUNCH_HOLE) {
            // It is a hint: where it is not supported, the content stays.
            Ok(()) | Err(Errno::EOPNOTSUPP) => self.ended(doing, durability),
            Err(error) => Err(DeviceError::from_io(doing, error.into()).at(range.start)),
        }
    }

    fn write_zeroes(
        &self,
        range: Range<u64>,
        space: Space,
        durability: Durability,
    ) -> Result<(), DeviceError> {
        let doing = "zeroing a file";
        self.info().check_writable(doing)?;
        self.info().check_range(doing, &range)?;
        let flags = match space {
            Space::Release => FallocateFlags::FALLOC_FL_PUNCH_HOLE,
            Space::Keep => FallocateFlags::FALLOC_FL_ZERO_RANGE,
        };
        let zeroed = match self.allocate(&range, flags) {
            Err(Errno::EOPNOTSUPP) => self.fill(&range),
            other => other.map_err(Into::into),
        };
        zeroed.map_err(|error| DeviceError::from_io(doing, error).at(range.start))?;
        self.ended(doing, durability)
    }

    fn extents(&self, range: Range<u64>, limit: usize) -> Result<Vec<DeviceExtent>, DeviceError> {
        let doing = "looking for holes in a file";
        self.info().check_range(doing, &range)?;
        let failed = |error: Errno| DeviceError::from_io(doing, error.into());
        let block = u64::from(self.opened.block_size);
        let _seeking = self.seeking.lock();
        let seek = |at: u64, whence| -> Result<u64, DeviceError> {
            let found = signed(at).and_then(|at| lseek(&*self.file, at, whence));
            match found {
                Ok(found) => Ok(u64::try_from(found).unwrap_or(range.end).min(range.end)),
                // There is nothing of that kind up to the end.
                Err(Errno::ENXIO) => Ok(range.end),
                Err(error) => Err(failed(error)),
            }
        };
        let (mut extents, mut at) = (Vec::new(), range.start);
        while at < range.end && extents.len() < limit.max(1) {
            // Data may begin within a block: that block is data.
            let data = (seek(at, Whence::SeekData)? / block * block).max(at);
            let (end, content) = match data > at {
                true => (data, Content::Hole),
                false => {
                    let hole = seek(at, Whence::SeekHole)?;
                    (hole.next_multiple_of(block).min(range.end), Content::Data)
                }
            };
            if end <= at {
                let kind = DeviceErrorKind::Io;
                return Err(DeviceError::new(kind, doing).at(at));
            }
            extents.push(DeviceExtent {
                len: end - at,
                content,
            });
            at = end;
        }
        Ok(extents)
    }
}
