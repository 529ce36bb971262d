//! The text of blkparse(1).
//!
//! The default format, and every format (`-f`) whose lines have these fields in this order,
//! separated by blanks; the fields before them, and `[%C]`, may be left out:
//!
//! ```text
//!   8,0    3       11     0.009507758   697  Q   R 223490 + 8 [kjournald]
//!   %D                    %T.%9t        %p   %a %d %S     + %n  [%C]
//! ```
//!
//! So `-f "%T.%9t %p %a %d %S + %n\n"` will do, as will the text of the kernel's own `blk` tracer
//! with its option `blk_classic`. Sectors have 512 bytes.
//!
//! Reads count when they are *queued* (`Q`): these are the requested ones, before the kernel merged
//! and split them. A block trace has the reads that missed the page cache of the traced system, the
//! kernel's readahead (`RA`) included: it is a superset of what the boot needed.

use super::{DeviceRead, Disk, ImportError, Imported, Line, Log, decimal, lines, seconds_us};

/// Bytes in a sector, as the kernel counts them whatever the device is.
const SECTOR_BYTES: u64 = 512;

/// Longest name of a process that a line can have; the kernel's own are 15 bytes.
const COMMAND_BYTES: usize = 64;

/// How to understand the text of blkparse.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlkparseOptions {
    /// Where the disk begins on the traced device, in sectors of 512 bytes: the start of its
    /// partition, or 0.
    pub first_sector: u64,
}

/// Makes a trace of the text of blkparse. If several devices were read, the one with the most
/// reads is assumed to be the disk.
///
/// # Errors
/// If no line is a read, or none is on the disk.
pub fn blkparse(
    text: &[u8],
    disk: &Disk,
    options: &BlkparseOptions,
) -> Result<Imported, ImportError> {
    let start = options.first_sector.saturating_mul(SECTOR_BYTES);
    // Behind the events comes a summary, for each processor and in total.
    let is_event = |line: &&[u8]| !line.starts_with(b"CPU") && !line.starts_with(b"Total (");
    Log::parse(lines(text).take_while(is_event), parse).import(disk, start)
}

fn parse(line: &[u8]) -> Line<'_> {
    if line.is_empty() {
        return Line::Other;
    }
    event(line).unwrap_or(Line::Unclear)
}

fn event(line: &[u8]) -> Option<Line<'_>> {
    // The name of a process may have anything in it: it is cut off before words are counted.
    let (fields, command) = split_command(line);
    let mut words = fields
        .split(|byte| *byte == b' ')
        .filter(|word| !word.is_empty());
    let mut device = 0;
    let at_us = loop {
        let word = words.next()?;
        if let Some(numbers) = device_number(word) {
            device = numbers;
        } else if let Some(at_us) = seconds_us(word) {
            break at_us;
        }
    };
    let pid = u32::try_from(decimal(words.next()?)?).ok()?;
    let action = words.next().filter(|word| is_letters(word))?;
    if action != b"Q" {
        return Some(Line::Other);
    }
    let kinds = words.next().filter(|word| is_letters(word))?;
    if !kinds.contains(&b'R') {
        return Some(Line::Other);
    }
    let sector = decimal(words.next()?)?;
    words.next().filter(|word| *word == b"+")?;
    let sectors = decimal(words.next()?)?;
    Some(Line::Read(DeviceRead {
        device,
        at_us: Some(at_us),
        offset: sector.checked_mul(SECTOR_BYTES)?,
        len: sectors.checked_mul(SECTOR_BYTES)?,
        pid,
        command,
    }))
}

/// Splits `fields [command]`; a command that blkparse does not know is no command.
fn split_command(line: &[u8]) -> (&[u8], &[u8]) {
    const UNKNOWN: &[u8] = b"(null)";
    let Some(open) = line.iter().position(|byte| *byte == b'[') else {
        return (line, b"");
    };
    let name = &line[open + 1..];
    let close = name.iter().rposition(|byte| *byte == b']');
    let name = &name[..close.unwrap_or(0).min(COMMAND_BYTES)];
    (&line[..open], if name == UNKNOWN { b"" } else { name })
}

/// Parses `MAJOR,MINOR`.
fn device_number(word: &[u8]) -> Option<u64> {
    let comma = word.iter().position(|byte| *byte == b',')?;
    let major = u32::try_from(decimal(&word[..comma])?).ok()?;
    let minor = u32::try_from(decimal(&word[comma + 1..])?).ok()?;
    Some(u64::from(major) << 32 | u64::from(minor))
}

fn is_letters(word: &[u8]) -> bool {
    word.iter().all(u8::is_ascii_alphabetic)
}
