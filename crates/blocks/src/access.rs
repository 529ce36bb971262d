//! What a boot did, one event at a time.

use std::time::Duration;

use crate::FileId;

/// The process that sent a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Caller {
    /// Process id in the namespace of the file system's daemon; 0 if it is not visible there.
    pub pid: u32,
}

/// Whether the source had the bytes in memory when they were requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Warmth {
    /// Not determined.
    #[default]
    Unknown,
    /// The disk had to be read.
    Cold,
    /// The page cache of the source had all of it.
    Warm,
}

/// One read of a file's content, exactly as requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The file.
    pub file: FileId,
    /// First byte.
    pub offset: u64,
    /// Length in bytes; may end past the end of the file.
    pub len: u64,
    /// Whether the bytes were in the source's page cache.
    pub warmth: Warmth,
}

/// One use of metadata, worth repeating before the next boot.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Touch {
    /// A name was looked up in a directory, found or not.
    Lookup {
        /// The directory.
        dir: FileId,
        /// The name: any bytes but NUL and `/`.
        name: Vec<u8>,
    },
    /// A directory was listed.
    List {
        /// The directory.
        dir: FileId,
    },
    /// A symbolic link was read.
    ReadLink {
        /// The link.
        link: FileId,
    },
}

/// One thing that a boot did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Content was read.
    Read(Access),
    /// Metadata was used.
    Touch(Touch),
}

/// Observes the requests of a file system: a recorder, a counter.
///
/// Called on the threads that serve requests: it must not block on anything slower than memory.
pub trait Observer: Send + Sync {
    /// Records that `caller` caused `event`, and that the response took `took`.
    fn note(&self, caller: Caller, event: Event, took: Duration);
}
