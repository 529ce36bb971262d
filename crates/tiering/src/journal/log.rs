//! The journal as a file: read, appended to, and written anew.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use blocks::ContentId;

use super::format::{HEADER_LEN, Header, RECORD_LEN};
use super::{JournalError, Kind, Record, TierId};
use crate::medium::Medium;

const NAME: &str = "journal";
const NEW_NAME: &str = "journal.new";

/// Records that a journal has at most, and objects that it knows.
const RECORDS_MAX: u64 = 1 << 24;
pub(crate) const OBJECTS_MAX: usize = 1 << 20;
/// Records that are read or written at once.
const AT_ONCE: usize = 4096;
/// Records from which on it is worth to leave superseded ones out.
const RENEW_FROM: u64 = 1024;

/// The journal's state of an object: its length, and the tiers whose copies count, one bit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) len: u64,
    pub(crate) tiers: u8,
}

/// How a journal was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Complete and valid.
    Sound,
    /// Its last append was not finished.
    Torn,
    /// Damaged: its content is ignored.
    Damaged,
    /// Missing.
    Missing,
}

/// The state that was read from a journal.
#[derive(Debug)]
pub(crate) struct Contents {
    pub(crate) found: Found,
    pub(crate) tiers: Vec<TierId>,
    pub(crate) known: HashMap<ContentId, Known>,
}

/// A journal that is written to.
#[derive(Debug)]
pub(crate) struct Journal {
    medium: Arc<dyn Medium>,
    header: Header,
    records: u64,
    /// Whether the content of the disk is unknown, or not valid.
    stale: bool,
}

impl Contents {
    fn empty(found: Found) -> Self {
        Self {
            found,
            tiers: Vec::new(),
            known: HashMap::new(),
        }
    }

    /// Takes a record in; `false` if it cannot follow those before it.
    fn apply(&mut self, record: &Record) -> bool {
        let known = self.known.entry(record.object).or_insert(Known {
            len: record.len,
            tiers: 0,
        });
        if known.len != record.len {
            return false;
        }
        match record.kind {
            Kind::Settled => known.tiers |= 1 << record.tier,
            Kind::Left => known.tiers &= !(1 << record.tier),
        }
        if known.tiers == 0 {
            self.known.remove(&record.object);
        }
        self.known.len() <= OBJECTS_MAX
    }
}

impl Journal {
    /// Reads the journal on `medium`, and returns it with its state.
    ///
    /// # Errors
    /// If it cannot be read, or a later program wrote it.
    pub(crate) fn open(medium: Arc<dyn Medium>) -> Result<(Self, Contents), OpenJournalError> {
        let mut head = vec![0; HEADER_LEN];
        let decoded = match medium.read_at(NAME, 0, &mut head) {
            Ok(len) => Header::decode(&head[..len]),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Self::without(medium, Found::Missing));
            }
            Err(error) => return Err(OpenJournalError::Io(error)),
        };
        let header = match decoded {
            Ok(header) => header,
            Err(JournalError::Damaged) => return Ok(Self::without(medium, Found::Damaged)),
            Err(version) => return Err(OpenJournalError::Format(version)),
        };
        // A former process that was killed may have written what is seen and not synced it. From
        // here on it is built upon.
        let durable = medium.sync(NAME).and_then(|()| medium.sync_names());
        durable.map_err(OpenJournalError::Io)?;
        let mut contents = Contents::empty(Found::Sound);
        contents.tiers.clone_from(&header.tiers);
        let mut journal = Self {
            medium,
            header,
            records: 0,
            stale: false,
        };
        journal.read_records(&mut contents)?;
        journal.stale = contents.found != Found::Sound;
        Ok((journal, contents))
    }

    fn without(medium: Arc<dyn Medium>, found: Found) -> (Self, Contents) {
        let header = Header {
            generation: 0,
            tiers: Vec::new(),
        };
        let journal = Self {
            medium,
            header,
            records: 0,
            stale: true,
        };
        (journal, Contents::empty(found))
    }

    fn read_records(&mut self, contents: &mut Contents) -> Result<(), OpenJournalError> {
        let mut buffer = vec![0; AT_ONCE * RECORD_LEN];
        loop {
            let offset = place(self.records);
            let read = self.medium.read_at(NAME, offset, &mut buffer);
            let read = read.map_err(OpenJournalError::Io)?;
            let (records, rest) = buffer[..read].as_chunks::<RECORD_LEN>();
            for bytes in records {
                let record = Record::decode(bytes, &self.header, self.records);
                self.records += 1;
                contents.found = match (record, contents.found) {
                    (None, _) => Found::Torn,
                    (Some(record), Found::Sound) if contents.apply(&record) => Found::Sound,
                    (Some(_), _) => {
                        *contents = Contents::empty(Found::Damaged);
                        return Ok(());
                    }
                };
            }
            if !rest.is_empty() {
                contents.found = Found::Torn;
            }
            if read < buffer.len() {
                return Ok(());
            }
            if self.records >= RECORDS_MAX {
                *contents = Contents::empty(Found::Damaged);
                return Ok(());
            }
        }
    }

    /// Returns whether it is to be written anew before anything else happens.
    pub(crate) fn is_stale(&self) -> bool {
        self.stale
    }

    /// Returns whether it is worth rewriting, when `live` records count.
    pub(crate) fn is_wordy(&self, live: u64) -> bool {
        self.records >= RENEW_FROM && self.records / 2 > live
    }

    /// Appends records, durably.
    ///
    /// # Errors
    /// If it cannot. Then it is not known which of them are there, and it is stale.
    pub(crate) fn append(&mut self, records: &[Record]) -> io::Result<()> {
        let result = self
            .write(NAME, records)
            .and_then(|()| self.medium.sync(NAME));
        self.stale |= result.is_err();
        result
    }

    /// Writes a new journal with the state in `known`, and nothing else.
    ///
    /// # Errors
    /// If it cannot be written; then it stays stale.
    pub(crate) fn renew(
        &mut self,
        tiers: &[TierId],
        known: &HashMap<ContentId, Known>,
    ) -> io::Result<()> {
        self.stale = true;
        // Only a forged journal has the largest.
        self.header.generation = self.header.generation.wrapping_add(1);
        self.header.tiers = tiers.to_vec();
        self.records = 0;
        // A longer one that a crash left would show through the end of this one.
        match self.medium.remove(NEW_NAME) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        self.medium.write_at(NEW_NAME, 0, &self.header.encode())?;
        let mut batch = Vec::with_capacity(AT_ONCE);
        for (object, known) in known {
            for tier in tiers_of(known.tiers) {
                batch.push(Record {
                    kind: Kind::Settled,
                    tier,
                    len: known.len,
                    object: *object,
                });
            }
            if batch.len() >= AT_ONCE {
                self.write(NEW_NAME, &batch)?;
                batch.clear();
            }
        }
        self.write(NEW_NAME, &batch)?;
        self.medium.sync(NEW_NAME)?;
        self.medium.rename(NEW_NAME, NAME)?;
        self.medium.sync_names()?;
        self.stale = false;
        Ok(())
    }

    fn write(&mut self, name: &str, records: &[Record]) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(records.len() * RECORD_LEN);
        let first = self.records;
        for (record, number) in records.iter().zip(first..) {
            bytes.extend_from_slice(&record.encode(self.header.generation, number));
        }
        if bytes.is_empty() {
            return Ok(());
        }
        self.medium.write_at(name, place(first), &bytes)?;
        self.records += records.len() as u64;
        Ok(())
    }
}

/// Returns where a record lies.
const fn place(number: u64) -> u64 {
    HEADER_LEN as u64 + number * RECORD_LEN as u64
}

/// Returns the tiers of a set of them.
pub(crate) fn tiers_of(tiers: u8) -> impl Iterator<Item = u8> {
    (0..8).filter(move |tier| tiers & (1 << tier) != 0)
}

/// Why a journal cannot be opened.
#[derive(Debug)]
pub(crate) enum OpenJournalError {
    Io(io::Error),
    Format(JournalError),
}
