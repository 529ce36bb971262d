//! One recorded boot.

use blocks::{Event, FileId, NAME_MAX, SourceId, Timestamp, Touch, Version};

/// Longest path of a file in a trace, in bytes. Linux's PATH_MAX bounds the argument of one call,
/// not the depth of a tree; this bounds what a reader of traces accepts.
pub(crate) const PATH_LIMIT: usize = 65_535;

/// Longest label and longest name of a program in a trace, in bytes. Both are there to be shown; a
/// label may hold a path of PATH_MAX and what kind of source it is.
const TEXT_LIMIT: usize = 8192;

/// Nanoseconds in a second.
const NANOS: u32 = 1_000_000_000;

/// What a trace is a trace of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceInfo {
    /// The label of the source: `dir:/srv/root`, or whatever was recorded.
    pub label: Vec<u8>,
    /// Which tree or disk it was.
    pub source: SourceId,
    /// When the recording began.
    pub started: Timestamp,
}

/// A file that a trace mentions, as the source had it when the recording began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracedFile {
    /// What the events call it.
    pub file: FileId,
    /// Its version: its size bounds what can have been read.
    pub version: Version,
    /// One path from the root of the source, without a leading `/`; empty for the root.
    pub path: Vec<u8>,
}

/// The name of a program: an index into [`Trace::commands`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandId(pub u32);

/// One thing a boot did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceEvent {
    /// When it was requested: microseconds since the recording began.
    pub at_us: u64,
    /// The duration, in microseconds; 0 if unknown.
    pub took_us: u32,
    /// The requesting thread; 0 if unknown.
    pub pid: u32,
    /// What that thread was called at that moment.
    pub command: CommandId,
    /// The request.
    pub what: Event,
}

/// One recorded boot: the requests to a source, in order.
///
/// The fields are public for code that makes traces; [`Trace::check`] checks their invariants,
/// and both reading and writing call it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// Its description.
    pub info: TraceInfo,
    /// How long the recording lasted, in microseconds.
    pub lasted_us: u64,
    /// How many events came after a limit was reached and are not here. If this is not 0, the
    /// trace has the beginning of a boot.
    pub lost: u64,
    /// The files the events mention, in ascending order of their ids.
    pub files: Vec<TracedFile>,
    /// Names of programs; empty strings where a name is unknown.
    pub commands: Vec<Vec<u8>>,
    /// What happened, in ascending order of time.
    pub events: Vec<TraceEvent>,
}

/// Why a trace cannot be, or cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The file does not begin as traces do.
    #[error("not a trace")]
    NotATrace,
    /// A later yolofs wrote it.
    #[error("the trace has version {found}; this program knows {known}")]
    Version {
        /// What the file says.
        found: u32,
        /// The newest this program reads.
        known: u32,
    },
    /// It needs features that this program lacks.
    #[error("trace needs unknown features {bits:#x}")]
    Features {
        /// The unknown bits.
        bits: u32,
    },
    /// The file has another length than in its header.
    #[error("trace is {actual} bytes long, not {expected}")]
    Length {
        /// What the header says.
        expected: u64,
        /// The actual length.
        actual: u64,
    },
    /// Some byte of the file differs from what was written.
    #[error("trace is damaged: its checksum does not match")]
    Checksum,
    /// The tables of the file make no sense.
    #[error("malformed trace: {0}")]
    Malformed(&'static str),
    /// A part is larger than the format allows.
    #[error("trace has too many or too long {0}")]
    TooLarge(&'static str),
    /// Files are not in ascending order of their ids.
    #[error("file {0} of the trace is out of order")]
    FileOrder(usize),
    /// An event is earlier than the one before it.
    #[error("event {0} of the trace is out of order")]
    EventOrder(usize),
    /// An event mentions a file or a command that the trace does not have, or a name that cannot
    /// be.
    #[error("event {0} of the trace refers to a missing entry")]
    Reference(usize),
}

impl Trace {
    /// Returns a file that the trace mentions.
    #[must_use]
    pub fn file(&self, file: FileId) -> Option<&TracedFile> {
        let found = self
            .files
            .binary_search_by_key(&file, |entry| entry.file)
            .ok()?;
        self.files.get(found)
    }

    /// Returns the name of a program, as well as it can be shown; empty if it is not known.
    #[must_use]
    pub fn command(&self, command: CommandId) -> String {
        let name = self.commands.get(command.0 as usize);
        String::from_utf8_lossy(name.map_or(&[], Vec::as_slice)).into_owned()
    }

    /// Checks what must hold between the parts of a trace: files and events in order, every file
    /// and every command that an event mentions in its table, every name a name.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn check(&self) -> Result<(), TraceError> {
        let ascending = |pair: &[TracedFile]| pair[0].file < pair[1].file;
        if let Some(at) = self.files.windows(2).position(|pair| !ascending(pair)) {
            return Err(TraceError::FileOrder(at + 1));
        }
        if self.files.iter().any(|file| file.path.len() > PATH_LIMIT) {
            return Err(TraceError::TooLarge("paths"));
        }
        let versions = self.files.iter().map(|file| file.version);
        let mut times = versions.flat_map(|version| [version.mtime, version.ctime]);
        if self.info.started.nanos >= NANOS || times.any(|time| time.nanos >= NANOS) {
            return Err(TraceError::Malformed("a time has too many nanoseconds"));
        }
        let mut texts = self.commands.iter().chain([&self.info.label]);
        if texts.any(|text| text.len() > TEXT_LIMIT) {
            return Err(TraceError::TooLarge("labels"));
        }
        let later = |pair: &[TraceEvent]| pair[0].at_us <= pair[1].at_us;
        if let Some(at) = self.events.windows(2).position(|pair| !later(pair)) {
            return Err(TraceError::EventOrder(at + 1));
        }
        let known = |event: &TraceEvent| {
            (event.command.0 as usize) < self.commands.len()
                && self.file(file_of(&event.what)).is_some()
                && is_possible(&event.what)
        };
        match self.events.iter().position(|event| !known(event)) {
            Some(at) => Err(TraceError::Reference(at)),
            None => Ok(()),
        }
    }
}

/// The file that an event is about.
pub(crate) const fn file_of(event: &Event) -> FileId {
    match event {
        Event::Read(access) => access.file,
        Event::Touch(Touch::Lookup { dir, .. } | Touch::List { dir }) => *dir,
        Event::Touch(Touch::ReadLink { link }) => *link,
    }
}

/// Returns whether a file system could have received this request and a replay could repeat it.
pub(crate) fn is_possible(event: &Event) -> bool {
    match event {
        Event::Read(access) => access.offset.checked_add(access.len).is_some(),
        // A longer name is never found.
        Event::Touch(Touch::Lookup { name, .. }) => {
            (1..=NAME_MAX).contains(&name.len()) && !name.iter().any(|b| matches!(b, 0 | b'/'))
        }
        Event::Touch(Touch::List { .. } | Touch::ReadLink { .. }) => true,
    }
}
