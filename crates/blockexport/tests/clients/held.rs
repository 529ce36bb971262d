//! A device that holds writes back until it is told otherwise.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use blocks::{BlockDevice, DeviceAccess, DeviceError, DeviceInfo, Durability, Space};

pub(crate) const SIZE: u64 = 1 << 20;

/// A disk in a file, on which writes to the second half are never done as long as there is a file
/// beside it.
pub(crate) struct Held {
    disk: File,
    held: PathBuf,
}

impl Held {
    pub(crate) fn open(disk: &Path) -> Self {
        Self {
            disk: File::options().read(true).write(true).open(disk).unwrap(),
            held: disk.with_extension("held"),
        }
    }
}

impl BlockDevice for Held {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            access: DeviceAccess::ReadWrite,
            ..DeviceInfo::read_only(SIZE, 512)
        }
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        let read = self.disk.read_exact_at(buf, offset);
        read.map_err(|error| DeviceError::from_io("reading", error))
    }

    fn write_at(&self, offset: u64, data: &[u8], _: Durability) -> Result<(), DeviceError> {
        while offset >= SIZE / 2 && self.held.exists() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let wrote = self.disk.write_all_at(data, offset);
        wrote.map_err(|error| DeviceError::from_io("writing", error))
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn trim(&self, _: Range<u64>, _: Durability) -> Result<(), DeviceError> {
        Ok(())
    }

    fn write_zeroes(&self, _: Range<u64>, _: Space, _: Durability) -> Result<(), DeviceError> {
        Ok(())
    }
}
