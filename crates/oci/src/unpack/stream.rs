//! A tar, entry by entry, with a bound on everything that has to be in memory.

use std::io::{self, Read};

use tar::{EntryType, Header};

use super::TarError;
use super::entry::{Corrections, Entry, Kind};

/// Size of the blocks of a tar archive.
const RECORD: usize = 512;
/// Bytes of all headers together that correct one entry. Names have 4 KiB, and an attribute's value
/// at most 64 KiB.
const CORRECTION_MAX: u64 = 1 << 20;

/// Reads a tar from its start to its end.
pub(crate) struct TarStream<R> {
    reader: Counted<R>,
    /// Bytes of the entry's content that were not read.
    content: u64,
    /// Bytes between its end and the next header.
    padding: u64,
}

impl<R: Read> TarStream<R> {
    pub(crate) fn new(reader: R) -> Self {
        Self {
            reader: Counted { reader, read: 0 },
            content: 0,
            padding: 0,
        }
    }

    /// Returns the next entry, or `None` at the end, after reading the rest of the input.
    ///
    /// # Errors
    /// If it cannot be read, or breaks a rule.
    pub(crate) fn next_entry(&mut self) -> Result<Option<Entry>, TarError> {
        let mut corrections = Corrections::default();
        let mut left = CORRECTION_MAX;
        while let Some(header) = self.next_header()? {
            let kind = match header.entry_type() {
                EntryType::XHeader => {
                    let records = self.correction(&header, &mut left)?;
                    corrections.add_pax(&records)?;
                    continue;
                }
                EntryType::GNULongName => {
                    corrections.name = Some(self.long_name(&header, &mut left)?);
                    continue;
                }
                EntryType::GNULongLink => {
                    corrections.target = Some(self.long_name(&header, &mut left)?);
                    continue;
                }
                EntryType::XGlobalHeader => {
                    // Comments: nothing that engines heed.
                    self.correction(&header, &mut left)?;
                    continue;
                }
                other => kind_of(other)?,
            };
            let entry = corrections.apply(&header, kind)?;
            // Links may say the size of what they lead to; only files have content.
            self.start_content(if kind == Kind::File { entry.size } else { 0 });
            return Ok(Some(entry));
        }
        io::copy(&mut self.reader, &mut io::sink())?;
        Ok(None)
    }

    /// Returns how many bytes of the tar were read: behind a header, where the content of its entry begins.
    pub(crate) const fn position(&self) -> u64 {
        self.reader.read
    }

    /// Returns the content of the entry that was returned last.
    pub(crate) fn content(&mut self) -> impl Read + '_ {
        Content(self)
    }

    fn next_header(&mut self) -> Result<Option<Header>, TarError> {
        let skip = self.content + self.padding;
        self.start_content(0);
        let skipped = io::copy(&mut (&mut self.reader).take(skip), &mut io::sink())?;
        if skipped < skip {
            return Err(TarError::Cut);
        }
        let mut header = Header::new_old();
        if !fill(&mut self.reader, header.as_mut_bytes())? {
            return Ok(None); // without the records that end a tar: not all programs write them
        }
        if header.as_bytes().iter().all(|&byte| byte == 0) {
            return Ok(None);
        }
        check_sum(&header)?;
        Ok(Some(header))
    }

    fn start_content(&mut self, size: u64) {
        const RECORD: u64 = self::RECORD as u64;
        self.content = size;
        self.padding = (RECORD - size % RECORD) % RECORD;
    }

    /// Reads the content of a header that corrects the next entry, for which `left` bytes are left.
    fn correction(&mut self, header: &Header, left: &mut u64) -> Result<Vec<u8>, TarError> {
        let size = header.entry_size()?;
        *left = left.checked_sub(size).ok_or(TarError::Rule(
            "the extended headers of an entry have more than 1 MiB",
        ))?;
        self.start_content(size);
        let mut bytes = Vec::new();
        self.content().read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn long_name(&mut self, header: &Header, left: &mut u64) -> Result<Vec<u8>, TarError> {
        let mut name = self.correction(header, left)?;
        let end = name.iter().position(|&byte| byte == 0);
        name.truncate(end.unwrap_or(name.len()));
        Ok(name)
    }
}

/// Counts what is read.
struct Counted<R> {
    reader: R,
    read: u64,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(into)?;
        self.read += count as u64;
        Ok(count)
    }
}

struct Content<'a, R>(&'a mut TarStream<R>);

impl<R: Read> Read for Content<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let Self(stream) = self;
        let count = (&mut stream.reader).take(stream.content).read(into)?;
        if count == 0 && stream.content > 0 && !into.is_empty() {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, TarError::Cut));
        }
        stream.content -= count as u64;
        Ok(count)
    }
}

/// Fills `into`, or returns `false` if there is nothing at all.
fn fill(reader: &mut impl Read, into: &mut [u8]) -> Result<bool, TarError> {
    let mut filled = 0;
    while filled < into.len() {
        match reader.read(&mut into[filled..]) {
            Ok(0) if filled == 0 => return Ok(false),
            Ok(0) => return Err(TarError::Cut),
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(true)
}

fn check_sum(header: &Header) -> Result<(), TarError> {
    let sum = |bytes: &[u8]| bytes.iter().map(|&byte| u32::from(byte)).sum::<u32>();
    let bytes = header.as_bytes();
    // The sum is made with spaces in its own place.
    let found = sum(&bytes[..148]) + 8 * u32::from(b' ') + sum(&bytes[156..]);
    if header.cksum().ok() == Some(found) {
        Ok(())
    } else {
        Err(TarError::Rule("the checksum of a header is wrong"))
    }
}

fn kind_of(kind: EntryType) -> Result<Kind, TarError> {
    Ok(match kind {
        EntryType::Regular | EntryType::Continuous => Kind::File,
        EntryType::Link => Kind::HardLink,
        EntryType::Symlink => Kind::Symlink,
        EntryType::Char => Kind::Character,
        EntryType::Block => Kind::Block,
        EntryType::Directory => Kind::Directory,
        EntryType::Fifo => Kind::Fifo,
        EntryType::GNUSparse => return Err(TarError::Sparse),
        _ => return Err(TarError::Rule("an entry is of an unknown kind")),
    })
}
