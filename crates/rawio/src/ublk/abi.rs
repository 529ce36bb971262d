//! The kernel's structures (`include/uapi/linux/ublk_cmd.h`), as bytes.

use std::io;

/// Requests of a queue at most, as the layout of the character device has it.
const QUEUE_DEPTH_MAX: u64 = 4096;
/// Where the data of requests begin in the character device.
const DATA_START: u64 = 0x8000_0000;
const TAG_SHIFT: u32 = 25;
const QUEUE_SHIFT: u32 = 41;

/// `struct ublksrv_io_desc`.
pub(super) const REQUEST_BYTES: usize = 24;
/// `struct ublksrv_ctrl_dev_info`.
pub(super) const INFO_BYTES: usize = 64;
/// `struct ublk_params`, up to and with `struct ublk_param_discard`.
pub(super) const PARAMS_BYTES: usize = 60;

pub(super) const USER_RECOVERY: u64 = 1 << 3;
pub(super) const USER_RECOVERY_REISSUE: u64 = 1 << 4;
pub(super) const CMD_IOCTL_ENCODE: u64 = 1 << 6;
pub(super) const USER_COPY: u64 = 1 << 7;

const PARAMS_BASIC: u32 = 1;
const PARAMS_DISCARD: u32 = 2;
const READ_ONLY: u32 = 1;
const VOLATILE_CACHE: u32 = 4;
const FUA: u32 = 8;

/// The kernel has this number for "any" device and "no" queue.
pub(super) const ANY_DEVICE: u32 = u32::MAX;

/// Returns where in a character device the data of a request are.
#[must_use]
pub const fn data_position(queue: u16, tag: u16) -> u64 {
    DATA_START + ((queue as u64) << QUEUE_SHIFT) + ((tag as u64) << TAG_SHIFT)
}

/// Returns where in a character device the requests of a queue are.
pub(super) const fn requests_position(queue: u16) -> u64 {
    queue as u64 * QUEUE_DEPTH_MAX * REQUEST_BYTES as u64
}

/// A device to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewDevice {
    /// Queues; the kernel makes no more of them than there are processors.
    pub queues: u16,
    /// Requests in flight of each queue.
    pub depth: u16,
    /// Bytes of a request at most.
    pub request_max_bytes: u32,
    /// A number by which its maker knows it again; the kernel only keeps it.
    pub mark: u64,
}

impl NewDevice {
    pub(super) fn to_bytes(self) -> [u8; INFO_BYTES] {
        let flags = USER_RECOVERY | USER_RECOVERY_REISSUE | CMD_IOCTL_ENCODE | USER_COPY;
        let mut bytes = [0; INFO_BYTES];
        bytes[0..2].copy_from_slice(&self.queues.to_ne_bytes());
        bytes[2..4].copy_from_slice(&self.depth.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.request_max_bytes.to_ne_bytes());
        bytes[12..16].copy_from_slice(&ANY_DEVICE.to_ne_bytes());
        bytes[24..32].copy_from_slice(&flags.to_ne_bytes());
        bytes[32..40].copy_from_slice(&self.mark.to_ne_bytes());
        bytes
    }
}

/// A device that there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadeDevice {
    /// Its number: `N` in `/dev/ublkbN`.
    pub id: u32,
    /// Its queues.
    pub queues: u16,
    /// Requests in flight of each queue.
    pub depth: u16,
    /// Whether it is served.
    pub state: DeviceState,
    /// The process that serves it, or did so last; 0 before the first.
    pub pid: i32,
    /// What its maker gave it.
    pub mark: u64,
}

/// Whether a device is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceState {
    /// It was not started, or is being ended.
    Dead,
    /// It is served.
    Live,
    /// Its process ended; requests wait for the next one.
    Quiesced,
    /// Its process ended; requests fail. Devices of this module are never in this state.
    Failing,
}

impl MadeDevice {
    /// # Errors
    /// If the kernel has a state that this does not know.
    pub(super) fn from_bytes(bytes: &[u8; INFO_BYTES]) -> io::Result<Self> {
        let half = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        let state = match half(4) {
            0 => DeviceState::Dead,
            1 => DeviceState::Live,
            2 => DeviceState::Quiesced,
            3 => DeviceState::Failing,
            other => {
                let unknown = format!("a ublk device in the state {other}, which is not known");
                return Err(io::Error::other(unknown));
            }
        };
        Ok(Self {
            id: word(bytes, 12),
            queues: half(0),
            depth: half(2),
            state,
            pid: word(bytes, 16).cast_signed(),
            mark: long(bytes, 32),
        })
    }
}

/// What users of a device see of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Bytes, a multiple of the block size.
    pub size: u64,
    /// Bytes of a block: a power of two from 512 to 4096.
    pub block_size: u32,
    /// Bytes of a read or write at most.
    pub request_max_bytes: u32,
    /// What can be done with it.
    pub attributes: Attributes,
    /// Bytes that are discarded at once at most; 0 if that is not supported.
    pub discard_max_bytes: u64,
    /// Bytes that are zeroed at once at most; 0 if that is not supported.
    pub zero_max_bytes: u64,
}

/// What can be done with a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attributes {
    /// It is read.
    ReadOnly,
    /// It is written to, and flushed.
    Writable,
    /// It is written to, and flushed; a single write can be durable.
    WritableFua,
}

/// The unit of all that the kernel counts, whatever a block is.
const SECTOR_SHIFT: u32 = 9;

impl Shape {
    pub(super) fn to_bytes(self) -> [u8; PARAMS_BYTES] {
        let attributes = match self.attributes {
            Attributes::ReadOnly => READ_ONLY,
            Attributes::Writable => VOLATILE_CACHE,
            Attributes::WritableFua => VOLATILE_CACHE | FUA,
        };
        let sectors = |bytes: u64| u32::try_from(bytes >> SECTOR_SHIFT).unwrap_or(u32::MAX);
        let shift = self.block_size.trailing_zeros().to_ne_bytes()[0];
        let clears = self.discard_max_bytes > 0 || self.zero_max_bytes > 0;
        let types = match clears {
            true => PARAMS_BASIC | PARAMS_DISCARD,
            false => PARAMS_BASIC,
        };
        let mut bytes = [0; PARAMS_BYTES];
        let mut put = |at: usize, number: u32| {
            bytes[at..at + 4].copy_from_slice(&number.to_ne_bytes());
        };
        put(0, 60); // PARAMS_BYTES
        put(4, types);
        put(8, attributes);
        put(16, self.request_max_bytes >> SECTOR_SHIFT);
        if clears {
            put(44, self.block_size);
            put(48, sectors(self.discard_max_bytes));
            put(52, sectors(self.zero_max_bytes));
            put(56, u32::from_ne_bytes([1, 0, 0, 0])); // segments
        }
        // Blocks: logical and physical; then the best and the least size of requests.
        bytes[12..16].copy_from_slice(&[shift; 4]);
        let size = self.size >> SECTOR_SHIFT;
        bytes[24..32].copy_from_slice(&size.to_ne_bytes());
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8; PARAMS_BYTES]) -> Self {
        let attributes = word(bytes, 8);
        let bytes_of = |at: usize| u64::from(word(bytes, at)) << SECTOR_SHIFT;
        Self {
            size: long(bytes, 24) << SECTOR_SHIFT,
            block_size: 1_u32.checked_shl(u32::from(bytes[12])).unwrap_or(0),
            request_max_bytes: word(bytes, 16) << SECTOR_SHIFT,
            attributes: match (attributes & READ_ONLY, attributes & FUA) {
                (READ_ONLY, _) => Attributes::ReadOnly,
                (_, FUA) => Attributes::WritableFua,
                _ => Attributes::Writable,
            },
            discard_max_bytes: bytes_of(48),
            zero_max_bytes: bytes_of(52),
        }
    }
}

/// Returns the 4 bytes from `at` on as a number.
pub(super) fn word(bytes: &[u8], at: usize) -> u32 {
    let mut number = [0; 4];
    number.copy_from_slice(&bytes[at..at + 4]);
    u32::from_ne_bytes(number)
}

/// Returns the 8 bytes from `at` on as a number.
pub(super) fn long(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_ne_bytes(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_is_what_was_set() {
        for attributes in [
            Attributes::ReadOnly,
            Attributes::Writable,
            Attributes::WritableFua,
        ] {
            for (discard_max_bytes, zero_max_bytes) in [(0, 0), (1 << 30, 0), (4096, 1 << 20)] {
                let shape = Shape {
                    size: 7 << 30,
                    block_size: 4096,
                    request_max_bytes: 512 << 10,
                    attributes,
                    discard_max_bytes,
                    zero_max_bytes,
                };
                assert_eq!(Shape::from_bytes(&shape.to_bytes()), shape);
            }
        }
    }

    #[test]
    fn the_layout_is_the_kernels() {
        let new = NewDevice {
            queues: 2,
            depth: 64,
            request_max_bytes: 1 << 19,
            mark: 0x0123_4567_89ab_cdef,
        };
        let bytes = new.to_bytes();
        assert_eq!(word(&bytes, 12), u32::MAX, "any number");
        let made = MadeDevice::from_bytes(&bytes).unwrap();
        assert_eq!((made.queues, made.depth), (2, 64));
        assert_eq!((made.state, made.mark), (DeviceState::Dead, new.mark));
        // UBLKSRV_IO_BUF_OFFSET, and the shifts of queue and tag.
        assert_eq!(data_position(0, 0), 0x8000_0000);
        assert_eq!(data_position(1, 3), 0x8000_0000 + (1 << 41) + (3 << 25));
        assert_eq!(requests_position(1), 98_304, "whole pages");
        let unknown = [9; INFO_BYTES];
        MadeDevice::from_bytes(&unknown).unwrap_err();
    }
}
