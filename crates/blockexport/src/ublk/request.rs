//! One request of the kernel.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::time::Duration;

use blocks::{BlockDevice, DeviceErrorKind, Durability, Space};
use nix::errno::Errno;
use rawio::ublk::{Operation, Request};

use super::REQUEST_MAX_BYTES;
use crate::budget::{Budget, Permit};
use crate::export::{Meter, Moved, guarded};

/// How long memory for a request is waited for.
const MEMORY_PATIENCE: Duration = Duration::from_secs(120);

/// What the requests of a device need.
pub(super) struct Served {
    pub(super) device: Arc<dyn BlockDevice>,
    pub(super) meter: Arc<Meter>,
    pub(super) budget: Budget,
}

/// Where the data of a request are in the character device.
#[derive(Clone, Copy)]
pub(super) struct Data<'a> {
    pub(super) file: &'a File,
    pub(super) position: u64,
}

impl Served {
    /// Executes a request, and returns what the kernel is to be told: bytes, or a negative error number.
    pub(super) fn answer(&self, request: &Request, data: Data<'_>) -> i32 {
        let result = self.perform(request, data);
        self.meter.note(result);
        match result {
            Ok(_) => i32::try_from(request.len).unwrap_or(i32::MAX),
            Err(kind) => -(error_number(kind) as i32),
        }
    }

    fn perform(&self, request: &Request, data: Data<'_>) -> Result<Moved, DeviceErrorKind> {
        let Request {
            operation,
            offset,
            len,
        } = *request;
        let end = offset.checked_add(len);
        let range = offset..end.ok_or(DeviceErrorKind::OutOfBounds)?;
        match operation {
            Operation::Read => self.read(offset, len, data),
            Operation::Write { durable } => self.write(offset, len, data, durability(durable)),
            Operation::Flush => guarded(|| self.device.flush()).map(|()| Moved::None),
            Operation::Discard => {
                guarded(|| self.device.trim(range, Durability::Flushed))?;
                Ok(Moved::Written(len))
            }
            Operation::Zero { keep, durable } => {
                let space = if keep { Space::Keep } else { Space::Release };
                guarded(|| self.device.write_zeroes(range, space, durability(durable)))?;
                Ok(Moved::Written(len))
            }
            Operation::Unknown(_) => Err(DeviceErrorKind::Unsupported),
        }
    }

    fn read(&self, offset: u64, len: u64, data: Data<'_>) -> Result<Moved, DeviceErrorKind> {
        let (mut buffer, _memory) = self.buffer(len)?;
        guarded(|| self.device.read_at(offset, &mut buffer))?;
        let passed = data.file.write_all_at(&buffer, data.position);
        passed.map_err(|error| lost(&error))?;
        Ok(Moved::Read(len))
    }

    fn write(
        &self,
        offset: u64,
        len: u64,
        data: Data<'_>,
        durability: Durability,
    ) -> Result<Moved, DeviceErrorKind> {
        let (mut buffer, _memory) = self.buffer(len)?;
        let passed = data.file.read_exact_at(&mut buffer, data.position);
        passed.map_err(|error| lost(&error))?;
        guarded(|| self.device.write_at(offset, &buffer, durability))?;
        Ok(Moved::Written(len))
    }

    fn buffer(&self, len: u64) -> Result<(Vec<u8>, Permit<'_>), DeviceErrorKind> {
        let size = usize::try_from(len).map_err(|_| DeviceErrorKind::OutOfBounds)?;
        if len == 0 || len > REQUEST_MAX_BYTES.into() {
            return Err(DeviceErrorKind::OutOfBounds);
        }
        let permit = self.budget.take(len, MEMORY_PATIENCE);
        Ok((vec![0; size], permit.ok_or(DeviceErrorKind::TimedOut)?))
    }
}

const fn durability(durable: bool) -> Durability {
    match durable {
        true => Durability::Durable,
        false => Durability::Flushed,
    }
}

/// The data of a request could not be passed to or from the kernel.
fn lost(error: &std::io::Error) -> DeviceErrorKind {
    log::warn!("the data of a request of a ublk device cannot be passed: {error}");
    DeviceErrorKind::Io
}

/// Returns the error that users see; the kernel knows few.
const fn error_number(kind: DeviceErrorKind) -> Errno {
    match kind {
        DeviceErrorKind::NoSpace => Errno::ENOSPC,
        DeviceErrorKind::TimedOut => Errno::ETIMEDOUT,
        DeviceErrorKind::Unsupported => Errno::EOPNOTSUPP,
        _ => Errno::EIO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blocks::testing::{Fault, Faulty, MemDevice};

    fn served(device: impl BlockDevice + 'static) -> Served {
        Served {
            device: Arc::new(device),
            meter: Arc::default(),
            budget: Budget::new(1 << 20),
        }
    }

    /// Executes a request whose data are in a file, as the kernel has them in its device.
    fn answer(served: &Served, operation: Operation, offset: u64, data: &mut [u8]) -> i32 {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(data, 4096).unwrap();
        let request = Request {
            operation,
            offset,
            len: data.len() as u64,
        };
        let place = Data {
            file: &file,
            position: 4096,
        };
        let result = served.answer(&request, place);
        file.read_exact_at(data, 4096).unwrap();
        result
    }

    #[test]
    fn data_go_both_ways_and_counts_tell() {
        let device = Arc::new(MemDevice::new(1 << 20, 512));
        let served = served(Arc::clone(&device));
        let write = Operation::Write { durable: true };
        assert_eq!(answer(&served, write, 1024, &mut vec![7; 1024]), 1024);
        device.crash();
        let mut data = vec![0; 2048];
        assert_eq!(answer(&served, Operation::Read, 512, &mut data), 2048);
        assert_eq!(data, [vec![0; 512], vec![7; 1024], vec![0; 512]].concat());
        let zero = Operation::Zero {
            keep: true,
            durable: true,
        };
        assert_eq!(answer(&served, zero, 1024, &mut vec![0; 512]), 512);
        assert_eq!(
            answer(&served, Operation::Discard, 1536, &mut vec![0; 512]),
            512
        );
        assert_eq!(answer(&served, Operation::Flush, 0, &mut []), 0);
        assert!(device.content().iter().all(|byte| *byte == 0));
        let counts = served.meter.counts();
        assert_eq!((counts.requests, counts.errors), (5, 0));
        assert_eq!((counts.bytes_read, counts.bytes_written), (2048, 2048));
    }

    #[test]
    fn errors_have_the_numbers_that_the_kernel_knows() {
        let size = 1 << 20;
        let served_of = |fault| served(Faulty::new(MemDevice::new(size, 512), fault, 0));
        let read =
            |served: &Served, offset| answer(served, Operation::Read, offset, &mut vec![0; 512]);
        assert_eq!(read(&served_of(Fault::Busy), 0), -(Errno::ETIMEDOUT as i32));
        let healthy = served(MemDevice::new(size, 512));
        assert_eq!(read(&healthy, size), -(Errno::EIO as i32));
        assert_eq!(read(&healthy, u64::MAX - 100), -(Errno::EIO as i32));
        let long = &mut vec![0; 1 << 20];
        assert_eq!(
            answer(&healthy, Operation::Read, 0, long),
            -(Errno::EIO as i32)
        );
        let unknown = answer(&healthy, Operation::Unknown(18), 0, &mut vec![0; 512]);
        assert_eq!(unknown, -(Errno::EOPNOTSUPP as i32));
        assert_eq!(healthy.meter.counts().errors, 4);
    }
}
