//! The file of a segment.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rawio::read::{NowaitRead, pread_nowait};
use rawio::regular::{self, Links};

use super::Stored;
use super::format::{
    FIRST, HEAD, HEADER, LINE, Line, RECORDS_MAX, SegmentError, TAIL, check_header, parse_head,
    parse_record, parse_table, parse_tail,
};

/// A segment that can be read.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    pub(super) number: u64,
    pub(super) file: Arc<File>,
}

/// What the records of a segment are.
#[derive(Debug, Default)]
pub(super) struct Contents {
    pub(super) lines: Vec<Line>,
    /// Where the last record ends.
    pub(super) end: u32,
    /// Whether it has a table.
    pub(super) sealed: bool,
    /// Whether there is data behind that which is not a record.
    pub(super) torn: bool,
}

/// Numbers of segments are below this: there is always a higher one.
const NUMBER_MAX: u64 = 1 << 63;

/// Returns the path of a segment.
pub(super) fn path_of(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:016x}.seg"))
}

/// Returns the number of the segment that has this file name.
pub(super) fn number_of(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".seg")?;
    let number = u64::from_str_radix(digits, 16).ok()?;
    (number < NUMBER_MAX && format!("{number:016x}") == digits).then_some(number)
}

/// Why a segment cannot be opened.
#[derive(Debug)]
pub(super) enum OpenSegmentError {
    Io(io::Error),
    Format(SegmentError),
}

impl From<io::Error> for OpenSegmentError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl Segment {
    /// Opens a segment; the active one is written to, too.
    pub(super) fn open(path: &Path, number: u64) -> Result<Self, OpenSegmentError> {
        let file = regular::open_to_write(path, Links::Followed, false)?;
        let mut header = [0; HEADER];
        match file.read_exact_at(&mut header, 0) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(OpenSegmentError::Format(SegmentError::Damaged));
            }
            Err(error) => return Err(error.into()),
        }
        check_header(&header, number).map_err(OpenSegmentError::Format)?;
        Ok(Self {
            number,
            file: Arc::new(file),
        })
    }

    /// Reads a record; `None` if it is damaged, or cannot be read.
    pub(super) fn read(&self, line: &Line) -> Option<Stored> {
        self.read_record(line).unwrap_or_else(|error| {
            log::warn!("cannot read segment {:016x}: {error}", self.number);
            None
        })
    }

    /// Reads a record; `None` if it is damaged.
    pub(super) fn read_record(&self, line: &Line) -> io::Result<Option<Stored>> {
        let mut head = [0; HEAD];
        let mut bytes = vec![0; line.stored_len as usize];
        let at = u64::from(line.offset);
        let read = self.file.read_exact_at(&mut head, at);
        match read.and_then(|()| self.file.read_exact_at(&mut bytes, at + HEAD as u64)) {
            Ok(()) => Ok(parse_record(self.number, line, &head, bytes)),
            // It was cut.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads a record without waiting for a disk; `None` if some of it is not in memory, or it
    /// is damaged.
    pub(super) fn read_now(&self, line: &Line) -> Option<Stored> {
        let mut head = [0; HEAD];
        let mut bytes = vec![0; line.stored_len as usize];
        let at = u64::from(line.offset);
        let whole = |buf: &mut [u8], at| {
            let read = pread_nowait(&*self.file, buf, at);
            matches!(read, Ok(NowaitRead::Read(len)) if len == buf.len())
        };
        if !(whole(&mut head, at) && whole(&mut bytes, at + HEAD as u64)) {
            return None;
        }
        parse_record(self.number, line, &head, bytes)
    }

    /// Finds the records: by the table, or, without a valid one, by reading their heads.
    pub(super) fn contents(&self) -> io::Result<Contents> {
        match self.table()? {
            Some(contents) => Ok(contents),
            None => self.scan(),
        }
    }

    fn table(&self) -> io::Result<Option<Contents>> {
        let len = self.file.metadata()?.len();
        let mut bytes = [0; TAIL];
        let Some(at) = len.checked_sub(TAIL as u64) else {
            return Ok(None);
        };
        self.file.read_exact_at(&mut bytes, at)?;
        let Some(tail) = parse_tail(self.number, len, &bytes) else {
            return Ok(None);
        };
        let mut table = vec![0; tail.lines * LINE];
        self.file.read_exact_at(&mut table, u64::from(tail.end))?;
        Ok(parse_table(&tail, &table).map(|lines| Contents {
            lines,
            end: tail.end,
            sealed: true,
            torn: false,
        }))
    }

    fn scan(&self) -> io::Result<Contents> {
        let len = self.file.metadata()?.len();
        let mut contents = Contents {
            end: FIRST,
            ..Contents::default()
        };
        while u64::from(contents.end) < len && contents.lines.len() < RECORDS_MAX {
            let Some(line) = self.head(contents.end, len)? else {
                contents.torn = true;
                break;
            };
            contents.lines.push(line);
            // A head is taken only if its record ends within the file and within 4 GiB.
            contents.end = u32::try_from(line.end()).unwrap_or(u32::MAX);
        }
        Ok(contents)
    }

    /// Reads a head whose record ends in the file.
    fn head(&self, offset: u32, len: u64) -> io::Result<Option<Line>> {
        if u64::from(offset) + HEAD as u64 > len {
            return Ok(None);
        }
        let mut head = [0; HEAD];
        self.file.read_exact_at(&mut head, u64::from(offset))?;
        let line = parse_head(self.number, offset, &head).ok();
        let end = len.min(u64::from(u32::MAX));
        Ok(line.filter(|line| line.end() <= end))
    }
}
