//! From bytes to a trace, believing nothing.

use std::collections::HashSet;

use blocks::{Access, ContentId, Event, FileId, SourceId, Timestamp, Touch, Version, Warmth};

use super::{
    CHECKSUM_BYTES, EVENT_BYTES, FILE_BYTES, FILE_LIMIT, HEADER_BYTES, INFO_BYTES, KIND_LIST,
    KIND_LOOKUP, KIND_READ, KIND_READ_LINK, LENGTH_BYTES, MAGIC, VERSION, WARMTH_COLD,
    WARMTH_UNKNOWN, WARMTH_WARM,
};
use crate::trace::{CommandId, Trace, TraceError, TraceEvent, TraceInfo, TracedFile};

use TraceError::Malformed;

pub(super) fn read(bytes: &[u8]) -> Result<Trace, TraceError> {
    let mut input = Input(checked_body(bytes)?);
    let header = Header::read(&mut input)?;
    let (info, lasted_us, lost) = info(&mut input)?;
    let mut tables = header.split(input.0)?;
    let strings = strings(tables.lengths, tables.string_bytes)?;
    let (first, rest) = strings.split_first().ok_or(Malformed("no label"))?;
    let (paths, rest) = rest
        .split_at_checked(header.files)
        .ok_or(Malformed("strings"))?;
    let (commands, names) = rest
        .split_at_checked(header.commands)
        .ok_or(Malformed("strings"))?;
    let mut names = Names::new(names, strings.len() - names.len());
    let mut files = Vec::with_capacity(header.files);
    for path in paths {
        files.push(file(&mut tables.files, path)?);
    }
    let mut events = Vec::with_capacity(header.events);
    for _ in 0..header.events {
        events.push(event(&mut tables.events, &mut names)?);
    }
    names.all_used()?;
    let trace = Trace {
        info: TraceInfo {
            label: first.to_vec(),
            ..info
        },
        lasted_us,
        lost,
        files,
        commands: commands.iter().map(|command| command.to_vec()).collect(),
        events,
    };
    trace.check()?;
    Ok(trace)
}

/// Checks all that can be checked without decoding a table, and returns the bytes between magic
/// and checksum.
fn checked_body(bytes: &[u8]) -> Result<&[u8], TraceError> {
    let actual = bytes.len() as u64;
    if actual > FILE_LIMIT {
        return Err(TraceError::TooLarge("bytes"));
    }
    let body = bytes.strip_prefix(&MAGIC).ok_or(TraceError::NotATrace)?;
    let mut header = Input(body);
    let found = header.u32()?;
    if found != VERSION {
        let known = VERSION;
        return Err(TraceError::Version { found, known });
    }
    let bits = header.u32()?;
    if bits != 0 {
        return Err(TraceError::Features { bits });
    }
    header.take(8)?; // compatible features, zero
    let expected = header.u64()?;
    if expected != actual {
        return Err(TraceError::Length { expected, actual });
    }
    let (covered, checksum) = bytes
        .split_last_chunk::<CHECKSUM_BYTES>()
        .ok_or(TraceError::NotATrace)?;
    if blake3::hash(covered) != blake3::Hash::from_bytes(*checksum) {
        return Err(TraceError::Checksum);
    }
    covered.get(MAGIC.len()..).ok_or(TraceError::NotATrace)
}

/// Bytes that have not been read yet.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], TraceError> {
        let (taken, rest) = self
            .0
            .split_at_checked(len)
            .ok_or(Malformed("a table ends too early"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], TraceError> {
        let (taken, rest) = self
            .0
            .split_first_chunk()
            .ok_or(Malformed("a table ends too early"))?;
        self.0 = rest;
        Ok(*taken)
    }

    fn u32(&mut self) -> Result<u32, TraceError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, TraceError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Reads a count of things of which each takes at least one byte of the file.
    fn count(&mut self) -> Result<usize, TraceError> {
        usize::try_from(self.u64()?).map_err(|_| TraceError::TooLarge("entries"))
    }

    fn time(&mut self) -> Result<Timestamp, TraceError> {
        let secs = i64::from_le_bytes(self.array()?);
        let nanos = self.u32()?;
        Ok(Timestamp { secs, nanos })
    }

    fn zero<const N: usize>(&mut self) -> Result<(), TraceError> {
        if self.array::<N>()? == [0; N] {
            Ok(())
        } else {
            Err(Malformed("a field that must be zero is not"))
        }
    }
}

/// How large the tables are.
struct Header {
    strings: usize,
    files: usize,
    commands: usize,
    events: usize,
    string_bytes: usize,
}

/// The tables, each in its place.
struct Tables<'a> {
    lengths: Input<'a>,
    files: Input<'a>,
    events: Input<'a>,
    string_bytes: Input<'a>,
}

impl Header {
    /// Reads what follows the magic.
    fn read(input: &mut Input<'_>) -> Result<Self, TraceError> {
        const CHECKED_BEFORE: usize = 4 + 4 + 4;
        input.take(CHECKED_BEFORE)?;
        input.zero::<4>()?;
        input.take(8)?; // the length of the file, checked before
        let header = Self {
            strings: input.count()?,
            files: input.count()?,
            commands: input.count()?,
            events: input.count()?,
            string_bytes: input.count()?,
        };
        input.zero::<8>()?;
        Ok(header)
    }

    /// Cuts what follows the info into tables, which must be all there is.
    fn split<'a>(&self, rest: &'a [u8]) -> Result<Tables<'a>, TraceError> {
        let mut input = Input(rest);
        let mut table = |count: usize, record: usize| {
            let len = count
                .checked_mul(record)
                .ok_or(TraceError::TooLarge("entries"))?;
            input.take(len).map(Input)
        };
        let tables = Tables {
            lengths: table(self.strings, LENGTH_BYTES)?,
            files: table(self.files, FILE_BYTES)?,
            events: table(self.events, EVENT_BYTES)?,
            string_bytes: table(self.string_bytes, 1)?,
        };
        if input.0.is_empty() {
            Ok(tables)
        } else {
            Err(Malformed("bytes that belong to no table"))
        }
    }
}

fn info(input: &mut Input<'_>) -> Result<(TraceInfo, u64, u64), TraceError> {
    const _: () = assert!(INFO_BYTES == 32 + 12 + 8 + 8 + 8 && HEADER_BYTES == 80);
    let info = TraceInfo {
        label: Vec::new(),
        source: SourceId(ContentId(input.array()?)),
        started: input.time()?,
    };
    let (lasted_us, lost) = (input.u64()?, input.u64()?);
    input.zero::<8>()?;
    Ok((info, lasted_us, lost))
}

fn strings<'a>(mut lengths: Input<'_>, mut bytes: Input<'a>) -> Result<Vec<&'a [u8]>, TraceError> {
    let mut strings = Vec::with_capacity(lengths.0.len() / LENGTH_BYTES);
    while !lengths.0.is_empty() {
        let len = usize::try_from(lengths.u32()?).map_err(|_| TraceError::TooLarge("strings"))?;
        strings.push(bytes.take(len)?);
    }
    if bytes.0.is_empty() {
        Ok(strings)
    } else {
        Err(Malformed("bytes that belong to no string"))
    }
}

/// The names that were looked up: new ones must come up in the order in which they are stored.
struct Names<'a> {
    names: &'a [&'a [u8]],
    /// Number of the first of them among all strings.
    base: usize,
    used: usize,
    seen: HashSet<&'a [u8]>,
}

impl<'a> Names<'a> {
    fn new(names: &'a [&'a [u8]], base: usize) -> Self {
        Self {
            names,
            base,
            used: 0,
            seen: HashSet::new(),
        }
    }

    fn get(&mut self, string: u64) -> Result<&'a [u8], TraceError> {
        let index = usize::try_from(string)
            .ok()
            .and_then(|string| string.checked_sub(self.base))
            .filter(|index| *index <= self.used)
            .ok_or(Malformed("a name out of order"))?;
        let name = self.names.get(index).ok_or(Malformed("no such name"))?;
        if index == self.used {
            self.used += 1;
            if !self.seen.insert(name) {
                return Err(Malformed("a name stored twice"));
            }
        }
        Ok(name)
    }

    fn all_used(&self) -> Result<(), TraceError> {
        if self.used == self.names.len() {
            Ok(())
        } else {
            Err(Malformed("a name that nothing uses"))
        }
    }
}

fn file(input: &mut Input<'_>, path: &[u8]) -> Result<TracedFile, TraceError> {
    let file = FileId(input.u32()?);
    let version = Version {
        size: input.u64()?,
        mtime: input.time()?,
        ctime: input.time()?,
        inode: input.u64()?,
    };
    input.zero::<4>()?;
    let path = path.to_vec();
    Ok(TracedFile {
        file,
        version,
        path,
    })
}

fn event(input: &mut Input<'_>, names: &mut Names<'_>) -> Result<TraceEvent, TraceError> {
    let at_us = input.u64()?;
    let (a, b) = (input.u64()?, input.u64()?);
    let took_us = input.u32()?;
    let pid = input.u32()?;
    let command = CommandId(input.u32()?);
    let file = FileId(input.u32()?);
    let [kind, warmth] = input.array()?;
    input.zero::<2>()?;
    let what = match (kind, warmth, a, b) {
        (KIND_READ, _, offset, len) => Event::Read(Access {
            file,
            offset,
            len,
            warmth: match warmth {
                WARMTH_UNKNOWN => Warmth::Unknown,
                WARMTH_COLD => Warmth::Cold,
                WARMTH_WARM => Warmth::Warm,
                _ => return Err(Malformed("a read neither cold nor warm")),
            },
        }),
        (KIND_LOOKUP, 0, string, 0) => Event::Touch(Touch::Lookup {
            dir: file,
            name: names.get(string)?.to_vec(),
        }),
        (KIND_LIST, 0, 0, 0) => Event::Touch(Touch::List { dir: file }),
        (KIND_READ_LINK, 0, 0, 0) => Event::Touch(Touch::ReadLink { link: file }),
        _ => return Err(Malformed("an event of no known kind")),
    };
    Ok(TraceEvent {
        at_us,
        took_us,
        pid,
        command,
        what,
    })
}
