//! The file form of a trace: `docs/trace-format.md`, in code. The constants follow its order.

mod read;
mod write;

use crate::trace::{Trace, TraceError};

const MAGIC: [u8; 8] = *b"\x89YOLOT\r\n";
const VERSION: u32 = 1;

const HEADER_BYTES: usize = 80;
const INFO_BYTES: usize = 68;
const LENGTH_BYTES: usize = 4;
const FILE_BYTES: usize = 48;
const EVENT_BYTES: usize = 44;
const CHECKSUM_BYTES: usize = blake3::OUT_LEN;

/// Some 90 million events.
const FILE_LIMIT: u64 = 4 << 30;

const KIND_READ: u8 = 0;
const KIND_LOOKUP: u8 = 1;
const KIND_LIST: u8 = 2;
const KIND_READ_LINK: u8 = 3;

const WARMTH_UNKNOWN: u8 = 0;
const WARMTH_COLD: u8 = 1;
const WARMTH_WARM: u8 = 2;

impl Trace {
    /// Reads the file form of a trace.
    ///
    /// # Errors
    /// If the bytes are not a complete, undamaged trace of a known version. No
    /// bytes make it panic, and none make it use more memory than some 12 times their number.
    pub fn read(bytes: &[u8]) -> Result<Self, TraceError> {
        read::read(bytes)
    }

    /// Returns the file form of the trace.
    ///
    /// # Errors
    /// If [`Trace::check`] refuses the trace, or a part is beyond the limits of the format.
    pub fn write(&self) -> Result<Vec<u8>, TraceError> {
        write::write(self)
    }
}
