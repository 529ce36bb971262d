//! The log of QEMU's trace backend `log`.
//!
//! `qemu-system-x86_64 … -trace enable=blk_co_preadv -D FILE` writes a line for every read that a
//! guest makes of a drive, with guest offsets (whatever format the image has):
//!
//! ```text
//! blk_co_preadv blk 0x5564b01d6990 bs 0x5564b01e1ae0 offset 1048576 bytes 4096 flags 0x0
//! ```
//!
//! With `-msg timestamp=on` each begins with `PID@SECONDS.MICROSECONDS:`. Use that: without
//! it only the order is known.

use super::{DeviceRead, Disk, ImportError, Imported, Line, Log, decimal, lines, seconds_us};

/// Makes a trace of a log of QEMU. If several drives were read, the one with the most reads is
/// assumed to be the disk.
///
/// # Errors
/// If no line is a read, or none is on the disk.
pub fn qemu(log: &[u8], disk: &Disk) -> Result<Imported, ImportError> {
    Log::parse(lines(log), parse).import(disk, 0)
}

fn parse(line: &[u8]) -> Line<'_> {
    if line.is_empty() {
        return Line::Other;
    }
    read(line).map_or(Line::Unclear, Line::Read)
}

fn read(line: &[u8]) -> Option<DeviceRead<'_>> {
    const EVENT: &[u8] = b"blk_co_preadv ";
    let at = line.windows(EVENT.len()).position(|part| part == EVENT)?;
    let (pid, at_us) = match &line[..at] {
        [] => (0, None),
        prefix => {
            let (pid, time) = stamp(prefix)?;
            (pid, Some(time))
        }
    };
    let mut words = line[at + EVENT.len()..].split(|byte| *byte == b' ');
    let mut field = |name: &[u8]| (words.next()? == name).then(|| words.next()).flatten();
    let device = hexadecimal(field(b"blk")?)?;
    field(b"bs")?;
    let offset = decimal(field(b"offset")?)?;
    let len = decimal(field(b"bytes")?)?;
    // A line that ends here was cut: the last digits of the length may be missing.
    field(b"flags")?;
    Some(DeviceRead {
        device,
        at_us,
        offset,
        len,
        pid,
        command: b"",
    })
}

/// Parses `PID@SECONDS.MICROSECONDS:`.
fn stamp(prefix: &[u8]) -> Option<(u32, u64)> {
    let prefix = prefix.strip_suffix(b":")?;
    let sign = prefix.iter().position(|byte| *byte == b'@')?;
    let pid = u32::try_from(decimal(&prefix[..sign])?).ok()?;
    Some((pid, seconds_us(&prefix[sign + 1..])?))
}

fn hexadecimal(text: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(text.strip_prefix(b"0x")?).ok()?;
    u64::from_str_radix(digits, 16).ok()
}
