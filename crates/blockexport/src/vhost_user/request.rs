//! One request of a virtio-blk driver.

use std::io::{Read as _, Write as _};
use std::ops::Range;
use std::sync::Arc;

use blocks::{BlockDevice, DeviceErrorKind, Durability, Space};
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_ID_BYTES, VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_OK, VIRTIO_BLK_S_UNSUPP,
    VIRTIO_BLK_T_DISCARD, VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_GET_ID, VIRTIO_BLK_T_IN,
    VIRTIO_BLK_T_OUT, VIRTIO_BLK_T_WRITE_ZEROES, VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP,
};
use virtio_queue::{DescriptorChain, Reader, Writer};
use vm_memory::GuestMemoryMmap;

use super::{REQUEST_MAX_BYTES, SEGMENTS_MAX};
use crate::budget::Budget;
use crate::export::{Meter, Moved, guarded};

/// Virtio counts in these, whatever the block size is.
const SECTOR_BYTES: u64 = 512;

/// How long memory for a request is waited for.
const MEMORY_PATIENCE: std::time::Duration = std::time::Duration::from_secs(120);

pub(super) type Chain = DescriptorChain<Arc<GuestMemoryMmap>>;

/// What the requests of a device need.
pub(super) struct Served {
    pub(super) device: Arc<dyn BlockDevice>,
    pub(super) meter: Arc<Meter>,
    pub(super) budget: Budget,
    pub(super) serial: String,
}

impl Served {
    /// Executes the request of a chain of descriptors, writes the response to the guest's memory, and returns
    /// its length.
    ///
    /// `durability` is the driver's expectation for writes: without the feature of flushes, each is
    /// durable.
    pub(super) fn answer(
        &self,
        memory: &GuestMemoryMmap,
        chain: Chain,
        durability: Durability,
    ) -> u32 {
        let readers = chain.clone().reader(memory);
        let (Ok(mut reader), Ok(mut writer)) = (readers, chain.writer(memory)) else {
            log::warn!("the descriptors of a driver's request are invalid");
            self.meter.note(Err(DeviceErrorKind::Io));
            return 0;
        };
        let room = writer.available_bytes();
        let Some(mut status) = room.checked_sub(1).and_then(|at| writer.split_at(at).ok()) else {
            log::warn!("a driver's request has no place for its status");
            self.meter.note(Err(DeviceErrorKind::Io));
            return 0;
        };
        let result = self.perform(&mut reader, &mut writer, durability);
        self.meter.note(result);
        let code = match result {
            Ok(_) => VIRTIO_BLK_S_OK,
            Err(DeviceErrorKind::Unsupported) => VIRTIO_BLK_S_UNSUPP,
            Err(_) => VIRTIO_BLK_S_IOERR,
        };
        let written = writer.bytes_written() + 1;
        if let Err(error) = status.write_obj(u8::try_from(code).unwrap_or(u8::MAX)) {
            log::warn!("a status cannot be written to a guest: {error}");
        }
        u32::try_from(written).unwrap_or(u32::MAX)
    }

    fn perform(
        &self,
        reader: &mut Reader<'_>,
        writer: &mut Writer<'_>,
        durability: Durability,
    ) -> Result<Moved, DeviceErrorKind> {
        let mut head = [0; 16];
        reader
            .read_exact(&mut head)
            .map_err(|error| invalid(&error))?;
        let kind = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
        let [.., a, b, c, d, e, f, g, h] = head;
        let sector = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        let offset = sector.checked_mul(SECTOR_BYTES);
        let offset = offset.ok_or(DeviceErrorKind::OutOfBounds)?;
        match kind {
            VIRTIO_BLK_T_IN => self.read(offset, writer),
            VIRTIO_BLK_T_OUT => self.write(offset, reader, durability),
            VIRTIO_BLK_T_FLUSH => guarded(|| self.device.flush()).map(|()| Moved::None),
            VIRTIO_BLK_T_GET_ID => {
                let mut id = [0; VIRTIO_BLK_ID_BYTES as usize];
                let len = self.serial.len().min(id.len());
                id[..len].copy_from_slice(&self.serial.as_bytes()[..len]);
                let room = writer.available_bytes().min(id.len());
                writer
                    .write_all(&id[..room])
                    .map_err(|error| invalid(&error))?;
                Ok(Moved::None)
            }
            VIRTIO_BLK_T_DISCARD | VIRTIO_BLK_T_WRITE_ZEROES => {
                self.clear(kind == VIRTIO_BLK_T_DISCARD, reader, durability)
            }
            _ => Err(DeviceErrorKind::Unsupported),
        }
    }

    fn read(&self, offset: u64, writer: &mut Writer<'_>) -> Result<Moved, DeviceErrorKind> {
        let len = writer.available_bytes();
        let _memory = self.memory(len)?;
        let mut data = vec![0; len];
        guarded(|| self.device.read_at(offset, &mut data))?;
        writer.write_all(&data).map_err(|error| invalid(&error))?;
        Ok(Moved::Read(len as u64))
    }

    fn write(
        &self,
        offset: u64,
        reader: &mut Reader<'_>,
        durability: Durability,
    ) -> Result<Moved, DeviceErrorKind> {
        let len = reader.available_bytes();
        let _memory = self.memory(len)?;
        // Copied first: the guest may change its memory at any time.
        let mut data = vec![0; len];
        reader
            .read_exact(&mut data)
            .map_err(|error| invalid(&error))?;
        guarded(|| self.device.write_at(offset, &data, durability))?;
        Ok(Moved::Written(len as u64))
    }

    /// Discards ranges, or zeroes them.
    fn clear(
        &self,
        discard: bool,
        reader: &mut Reader<'_>,
        durability: Durability,
    ) -> Result<Moved, DeviceErrorKind> {
        let mut bytes = 0;
        for _ in 0..SEGMENTS_MAX {
            if reader.available_bytes() == 0 {
                break;
            }
            let mut segment = [0; 16];
            reader
                .read_exact(&mut segment)
                .map_err(|error| invalid(&error))?;
            let (range, flags) = segment_of(&segment).ok_or(DeviceErrorKind::OutOfBounds)?;
            let unmap = flags & VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP != 0;
            if flags & !VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP != 0 || discard && unmap {
                return Err(DeviceErrorKind::Unsupported);
            }
            bytes += range.end - range.start;
            let space = if unmap { Space::Release } else { Space::Keep };
            guarded(|| match discard {
                true => self.device.trim(range, durability),
                false => self.device.write_zeroes(range, space, durability),
            })?;
        }
        if reader.available_bytes() > 0 {
            return Err(DeviceErrorKind::OutOfBounds);
        }
        Ok(Moved::Written(bytes))
    }

    fn memory(&self, len: usize) -> Result<crate::budget::Permit<'_>, DeviceErrorKind> {
        if len == 0 || len > REQUEST_MAX_BYTES {
            return Err(DeviceErrorKind::OutOfBounds);
        }
        let taken = self.budget.take(len as u64, MEMORY_PATIENCE);
        taken.ok_or(DeviceErrorKind::TimedOut)
    }
}

/// Decodes a range to be cleared, and its flags.
fn segment_of(bytes: &[u8; 16]) -> Option<(Range<u64>, u32)> {
    let (sector, rest) = bytes.split_first_chunk()?;
    let (sectors, rest) = rest.split_first_chunk()?;
    let start = u64::from_le_bytes(*sector).checked_mul(SECTOR_BYTES)?;
    let len = u64::from(u32::from_le_bytes(*sectors)) * SECTOR_BYTES;
    let flags = u32::from_le_bytes(*rest.first_chunk()?);
    Some((start..start.checked_add(len)?, flags))
}

/// The chain is shorter than what it says, or lies outside of the guest's memory.
fn invalid(error: &std::io::Error) -> DeviceErrorKind {
    log::warn!("a driver's request is invalid: {error}");
    DeviceErrorKind::OutOfBounds
}
