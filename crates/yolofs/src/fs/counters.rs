//! Counters of requests and responses of a file system.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The kinds of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(usize)]
pub enum Request {
    /// A name was looked up.
    Lookup,
    /// The kernel released inodes.
    Forget,
    /// Attributes were requested.
    GetAttr,
    /// A symbolic link was read.
    ReadLink,
    /// A file was opened.
    Open,
    /// Content was read.
    Read,
    /// A descriptor was closed.
    Flush,
    /// The last descriptor of an open file was closed.
    Release,
    /// A directory was opened.
    OpenDir,
    /// A directory was listed.
    ReadDir,
    /// A directory was listed with attributes.
    ReadDirPlus,
    /// An open directory was closed.
    ReleaseDir,
    /// The space was requested.
    StatFs,
    /// An extended attribute was read.
    GetXattr,
    /// Extended attributes were listed.
    ListXattr,
    /// Data or holes were sought.
    Lseek,
    /// A permission was checked.
    Access,
    /// Something tried to change the file system.
    Write,
    /// Anything else.
    Other,
}

impl Request {
    /// All kinds, in the order of their values.
    pub const ALL: [Self; 19] = [
        Self::Lookup,
        Self::Forget,
        Self::GetAttr,
        Self::ReadLink,
        Self::Open,
        Self::Read,
        Self::Flush,
        Self::Release,
        Self::OpenDir,
        Self::ReadDir,
        Self::ReadDirPlus,
        Self::ReleaseDir,
        Self::StatFs,
        Self::GetXattr,
        Self::ListXattr,
        Self::Lseek,
        Self::Access,
        Self::Write,
        Self::Other,
    ];

    /// Returns the name of the kind, in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lookup => "lookup",
            Self::Forget => "forget",
            Self::GetAttr => "getattr",
            Self::ReadLink => "readlink",
            Self::Open => "open",
            Self::Read => "read",
            Self::Flush => "flush",
            Self::Release => "release",
            Self::OpenDir => "opendir",
            Self::ReadDir => "readdir",
            Self::ReadDirPlus => "readdirplus",
            Self::ReleaseDir => "releasedir",
            Self::StatFs => "statfs",
            Self::GetXattr => "getxattr",
            Self::ListXattr => "listxattr",
            Self::Lseek => "lseek",
            Self::Access => "access",
            Self::Write => "write",
            Self::Other => "other",
        }
    }
}

/// How a read of content came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadOutcome {
    /// The bytes of the version that was expected.
    Served,
    /// The file had changed: bytes of its present version.
    Diverted,
    /// No bytes.
    Failed,
}

/// Counters of requests and responses since the file system was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    requests: [u64; Request::ALL.len()],
    /// Bytes of content that were given out.
    pub bytes_read: u64,
    /// Reads that gave the bytes expected.
    pub reads_served: u64,
    /// Reads that found their file changed, and gave the bytes it has now.
    pub reads_diverted: u64,
    /// Reads that failed.
    pub reads_failed: u64,
    /// Requests that failed because of the source or of us, reads included.
    pub errors: u64,
    /// Files that changed since they were scanned or recorded.
    pub diverted_files: u64,
    /// Times that a file was opened on its copy on faster memory.
    pub copy_opens: u64,
    /// How often a copy could not be used, and the file was opened without it.
    pub copies_failed: u64,
    /// Pages pushed into the kernel's page cache.
    pub injected_pages: u64,
    /// Of these, pages that the kernel requested again, because it had evicted them.
    pub evicted_pages: u64,
    /// Blocks that were held back from the page cache, as a sample of what is needed.
    pub sampled_blocks: u64,
    /// Of these, blocks that were requested.
    pub sampled_asked: u64,
    /// Requests that wait for the source now.
    pub in_hand: u64,
}

impl Counters {
    /// Returns how many requests of a kind there were.
    #[must_use]
    pub const fn requests(&self, kind: Request) -> u64 {
        self.requests[kind as usize]
    }

    /// Returns how many requests of each kind there were, in the order of [`Request::ALL`].
    pub fn by_kind(&self) -> impl Iterator<Item = (Request, u64)> {
        Request::ALL.into_iter().zip(self.requests)
    }

    /// Returns the number of requests with a response: all but forgets.
    #[must_use]
    pub fn answered(&self) -> u64 {
        self.requests.iter().sum::<u64>() - self.requests(Request::Forget)
    }
}

/// The counters themselves.
#[derive(Debug, Default)]
pub(super) struct Tally {
    requests: [AtomicU64; Request::ALL.len()],
    bytes_read: AtomicU64,
    reads_served: AtomicU64,
    reads_diverted: AtomicU64,
    reads_failed: AtomicU64,
    errors: AtomicU64,
    copy_opens: AtomicU64,
    copies_failed: AtomicU64,
}

impl Tally {
    pub(super) fn request(&self, kind: Request) {
        self.requests[kind as usize].fetch_add(1, Relaxed);
    }

    pub(super) fn error(&self) {
        self.errors.fetch_add(1, Relaxed);
    }

    pub(super) fn copy_open(&self) {
        self.copy_opens.fetch_add(1, Relaxed);
    }

    pub(super) fn copy_failed(&self) {
        self.copies_failed.fetch_add(1, Relaxed);
    }

    pub(super) fn read(&self, outcome: ReadOutcome, bytes: usize) {
        let counter = match outcome {
            ReadOutcome::Served => &self.reads_served,
            ReadOutcome::Diverted => &self.reads_diverted,
            ReadOutcome::Failed => &self.reads_failed,
        };
        counter.fetch_add(1, Relaxed);
        self.bytes_read.fetch_add(bytes as u64, Relaxed);
    }

    pub(super) fn snapshot(&self) -> Counters {
        let mut requests = [0; Request::ALL.len()];
        for (count, counter) in requests.iter_mut().zip(&self.requests) {
            *count = counter.load(Relaxed);
        }
        Counters {
            requests,
            bytes_read: self.bytes_read.load(Relaxed),
            reads_served: self.reads_served.load(Relaxed),
            reads_diverted: self.reads_diverted.load(Relaxed),
            reads_failed: self.reads_failed.load(Relaxed),
            errors: self.errors.load(Relaxed),
            copy_opens: self.copy_opens.load(Relaxed),
            copies_failed: self.copies_failed.load(Relaxed),
            ..Counters::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_counts_in_its_own_place() {
        for (index, kind) in Request::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, index, "{}", kind.name());
            let tally = Tally::default();
            tally.request(kind);
            let counted: Vec<Request> = tally
                .snapshot()
                .by_kind()
                .filter_map(|(kind, count)| (count == 1).then_some(kind))
                .collect();
            assert_eq!(counted, [kind]);
        }
    }
}
