//! Traces from logs of other tools: the reads of one disk.
//!
//! An import has less data than a recording: no metadata, no warmth, no durations. Each import
//! documents its format; this module has the common parts: which of
//! several devices is used, which reads are on the disk, and their times.
//!
//! Invalid lines are skipped and counted: a log may have lost its end or have other
//! lines in between. A log without a single usable line is an error: it is the wrong file.

mod blkparse;
mod qemu;

use std::collections::HashMap;

use blocks::{Access, Event, Warmth};

pub use blkparse::{BlkparseOptions, blkparse};
pub use qemu::qemu;

use crate::trace::{CommandId, Trace, TraceEvent, TraceInfo, TracedFile};

/// The distance between two reads whose log has no times: a small VM boot makes 725 reads in its
/// 3.1 seconds. Only the order means anything then.
const NOMINAL_GAP_US: u64 = 4_000;

/// How much of a line is quoted.
const QUOTE_CHARS: usize = 120;

/// The disk of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// The source that the disk is.
    pub info: TraceInfo,
    /// The one file of that source that has the disk's content: its size is the disk's.
    pub file: TracedFile,
}

/// Where the times of an imported trace come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// From the log.
    Recorded,
    /// The log has none: only the order of the events is known.
    Counted,
}

/// A log made into a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// The reads of the disk.
    pub trace: Trace,
    /// Where its times come from.
    pub clock: Clock,
    /// How many lines made no sense.
    pub skipped_lines: u64,
    /// The first of them.
    pub first_skipped: Option<SkippedLine>,
    /// How many reads were of other devices than the one that was read most. QEMU has one for
    /// each drive, and one more while it guesses the format of an image.
    pub other_devices: u64,
    /// How many reads were not on the disk, and were left out: those of other partitions.
    pub outside: u64,
}

/// A line that made no sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkippedLine {
    /// Its number, from 1.
    pub number: u64,
    /// Its text, truncated if it is long.
    pub text: String,
}

/// Why a log cannot be made into a trace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// Nothing in the log is a read.
    #[error("no read in the log ({skipped_lines} lines are malformed)")]
    NoReads {
        /// How many lines made no sense.
        skipped_lines: u64,
        /// The first of them.
        first_skipped: Option<SkippedLine>,
    },
    /// There are reads, but none of them is on the disk.
    #[error("all {outside} reads lie outside the disk's {disk_bytes} bytes")]
    Outside {
        /// How many.
        outside: u64,
        /// The size of the disk.
        disk_bytes: u64,
    },
}

/// What a line of a log says.
enum Line<'a> {
    Read(DeviceRead<'a>),
    /// It is valid, and is not a read.
    Other,
    Unclear,
}

/// A read as a log has it.
#[derive(Clone, Copy, Debug)]
struct DeviceRead<'a> {
    device: u64,
    at_us: Option<u64>,
    offset: u64,
    len: u64,
    pid: u32,
    command: &'a [u8],
}

/// What the lines of a log said.
#[derive(Default)]
struct Log<'a> {
    reads: Vec<DeviceRead<'a>>,
    skipped_lines: u64,
    first_skipped: Option<SkippedLine>,
}

impl<'a> Log<'a> {
    fn parse(lines: impl Iterator<Item = &'a [u8]>, parse: impl Fn(&'a [u8]) -> Line<'a>) -> Self {
        let mut log = Self::default();
        for (number, line) in (1..).zip(lines) {
            match parse(line) {
                Line::Read(read) => log.reads.push(read),
                Line::Other => {}
                Line::Unclear => {
                    log.skipped_lines += 1;
                    log.first_skipped.get_or_insert_with(|| SkippedLine {
                        number,
                        text: String::from_utf8_lossy(line)
                            .chars()
                            .take(QUOTE_CHARS)
                            .collect(),
                    });
                }
            }
        }
        log
    }

    /// The device with the most reads; of equals, the first.
    fn busiest(&self) -> Option<u64> {
        let mut counts: HashMap<u64, (u64, usize)> = HashMap::new();
        for (index, read) in self.reads.iter().enumerate() {
            counts
                .entry(read.device)
                .or_insert((0, usize::MAX - index))
                .0 += 1;
        }
        let most = counts.into_iter().max_by_key(|(_, rank)| *rank);
        most.map(|(device, _)| device)
    }

    /// Makes a trace of the reads of the busiest device, whose first byte of interest is `start`.
    fn import(self, disk: &Disk, start: u64) -> Result<Imported, ImportError> {
        let Some(device) = self.busiest() else {
            return Err(ImportError::NoReads {
                skipped_lines: self.skipped_lines,
                first_skipped: self.first_skipped,
            });
        };
        let disk_bytes = disk.file.version.size;
        let all = self.reads.len();
        let of_device = self.reads.into_iter().filter(|read| read.device == device);
        let mut reads: Vec<DeviceRead<'_>> = of_device.collect();
        let other_devices = (all - reads.len()) as u64;
        let before = reads.len();
        reads.retain_mut(|read| match read.offset.checked_sub(start) {
            Some(offset) => {
                read.offset = offset;
                let end = offset.checked_add(read.len);
                end.is_some_and(|end| end <= disk_bytes)
            }
            None => false,
        });
        let outside = (before - reads.len()) as u64;
        if reads.is_empty() {
            return Err(ImportError::Outside {
                outside,
                disk_bytes,
            });
        }
        let clock = set_clock(&mut reads);
        Ok(Imported {
            trace: trace_of(&reads, disk),
            clock,
            skipped_lines: self.skipped_lines,
            first_skipped: self.first_skipped,
            other_devices,
            outside,
        })
    }
}

/// Puts the reads in order and lets their time begin with the first. If a single one has no time,
/// none has.
fn set_clock(reads: &mut [DeviceRead<'_>]) -> Clock {
    if reads.iter().any(|read| read.at_us.is_none()) {
        for (index, read) in reads.iter_mut().enumerate() {
            read.at_us = Some((index as u64).saturating_mul(NOMINAL_GAP_US));
        }
        return Clock::Counted;
    }
    reads.sort_by_key(|read| read.at_us);
    let first_us = reads.first().and_then(|read| read.at_us).unwrap_or(0);
    for read in reads {
        read.at_us = read.at_us.map(|at_us| at_us - first_us);
    }
    Clock::Recorded
}

fn trace_of(reads: &[DeviceRead<'_>], disk: &Disk) -> Trace {
    let mut commands: Vec<Vec<u8>> = Vec::new();
    let mut ids: HashMap<&[u8], CommandId> = HashMap::new();
    let mut events = Vec::with_capacity(reads.len());
    for read in reads {
        let next = CommandId(u32::try_from(commands.len()).unwrap_or(u32::MAX));
        let command = *ids.entry(read.command).or_insert_with(|| {
            commands.push(read.command.to_vec());
            next
        });
        events.push(TraceEvent {
            at_us: read.at_us.unwrap_or(0),
            took_us: 0,
            pid: read.pid,
            command,
            what: Event::Read(Access {
                file: disk.file.file,
                offset: read.offset,
                len: read.len,
                warmth: Warmth::Unknown,
            }),
        });
    }
    Trace {
        info: disk.info.clone(),
        lasted_us: events.last().map_or(0, |event| event.at_us),
        lost: 0,
        files: vec![disk.file.clone()],
        commands,
        events,
    }
}

/// Lines without their ends; empty ones are no lines.
fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii)
}

/// Parses a decimal number: digits and nothing else.
fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Parses seconds with a fraction of any length, to microseconds.
fn seconds_us(text: &[u8]) -> Option<u64> {
    let point = text.iter().position(|byte| *byte == b'.')?;
    let (secs, fraction) = (&text[..point], &text[point + 1..]);
    decimal(fraction)?;
    let digits = fraction.iter().chain(b"000000").take(6);
    let micros = digits.fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0'));
    decimal(secs)?.checked_mul(1_000_000)?.checked_add(micros)
}
