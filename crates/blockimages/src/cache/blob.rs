//! One blob of the cache, as devices read it.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use blocks::{Digest, prompt};
use lsmt::{Expected, ReadAt};
use ranges::{Blob, Fetcher, Priority, Span, Wait};

use super::BlobCache;
use super::stored::StoredBlob;
use crate::{Origin, reads};

/// A chunk may be evicted while it is read, so often in a row before a reader gives up.
const READS_MAX: usize = 8;

/// A blob that is read through the cache.
#[derive(Debug)]
pub struct CachedBlob {
    stored: Arc<StoredBlob>,
    remote: Blob,
    /// Whether all of it was fetched twice, and did not match its digest.
    wrong: AtomicBool,
}

impl CachedBlob {
    pub(super) fn new(stored: Arc<StoredBlob>, fetcher: &Arc<Fetcher>, origin: Origin) -> Self {
        let receiver = Arc::clone(&stored) as Arc<_>;
        Self {
            remote: fetcher.add(stored.layout(), origin.places, receiver),
            stored,
            wrong: AtomicBool::new(false),
        }
    }

    /// Returns the blob's digest.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.stored.digest()
    }

    pub(super) fn cache(&self) -> &Arc<BlobCache> {
        self.stored.cache()
    }

    pub(super) fn dir(&self) -> &Path {
        self.stored.dir()
    }

    pub(super) fn stored(&self) -> Weak<StoredBlob> {
        Arc::downgrade(&self.stored)
    }

    pub(super) const fn fetcher(&self) -> &Arc<Fetcher> {
        self.remote.fetcher()
    }

    pub(super) fn chunks(&self) -> u32 {
        self.stored.chunks()
    }

    pub(super) fn chunks_of(&self, range: &Range<u64>) -> Range<u32> {
        self.stored.chunks_of(range)
    }

    pub(super) const fn span(&self, pieces: Range<u32>) -> Span {
        Span {
            blob: self.remote.number(),
            pieces,
        }
    }

    /// Drops the cached data of a range, which may be wrong by the fault of who named the blob: no server is blamed.
    pub(crate) fn forget(&self, range: &Range<u64>) {
        for chunk in self.chunks_of(range) {
            let _server = self.stored.distrust(chunk);
        }
    }

    /// Reads what is in the cache, without asking for what is not; returns whether all of it is.
    pub(crate) fn read_cached(&self, buffer: &mut [u8], offset: u64) -> bool {
        let all = offset..offset.saturating_add(buffer.len() as u64);
        if all.end > self.stored.layout().size {
            return false;
        }
        let mut chunks = self.chunks_of(&all);
        chunks.all(|chunk| {
            let part = self.part(chunk, &all);
            let into = within(buffer, &part, offset);
            self.stored.read(chunk, part.start, into)
        })
    }

    /// Compares all of it with its digest; `None` if not all of it is there.
    pub(super) fn is_right(&self) -> io::Result<Option<bool>> {
        self.stored.is_right()
    }

    /// Returns whether what is fetched is kept.
    pub(super) fn keeps(&self) -> bool {
        self.stored.keeps()
    }

    /// Lets all reads fail from now on: what the origin has is not this blob.
    pub(super) fn condemn(&self) {
        self.wrong.store(true, Ordering::Release);
    }

    /// Drops the cached data of a range, because a checksum of the blob shows that it is wrong. The
    /// next reader fetches it again, from another server if there is one.
    pub fn distrust(&self, range: &Range<u64>) {
        let removed = self.chunks_of(range);
        let mut servers: Vec<_> = removed
            .filter_map(|chunk| self.stored.distrust(chunk))
            .collect();
        servers.sort_unstable();
        // Parts of what is wrong as a whole may be right. Those of the first are not used the next time: if it is still
        // wrong then, it is the next one's.
        if let Some(server) = servers.first() {
            self.remote.was_wrong(*server);
        }
    }

    /// Returns how long a read waits at most.
    pub(crate) fn read_deadline(&self) -> Duration {
        self.cache().config.read_deadline
    }

    /// Returns how long who reads now waits.
    fn wait(&self) -> Wait {
        reads::wait(self.read_deadline())
    }

    /// Waits until the server can be asked that is asked when no other brings a chunk; returns whether there was
    /// something to wait for. A mirror may be all there is meanwhile, and wrong.
    pub(crate) fn wait_for_origin(&self) -> bool {
        self.remote.wait_for_origin(&self.wait())
    }

    /// Returns the bytes of a chunk that are in a range of the blob.
    fn part(&self, chunk: u32, of: &Range<u64>) -> Range<u64> {
        let range = self.stored.range(chunk);
        range.start.max(of.start)..range.end.min(of.end)
    }
}

/// Returns where a part of the blob goes in a buffer for what begins at `offset`.
fn within<'a>(buffer: &'a mut [u8], part: &Range<u64>, offset: u64) -> &'a mut [u8] {
    let at = |byte: u64| usize::try_from(byte - offset).unwrap_or(usize::MAX);
    &mut buffer[at(part.start)..at(part.end)]
}

/// Joins chunks that follow each other.
fn joined(chunks: &[u32]) -> Vec<Range<u32>> {
    let mut ranges: Vec<Range<u32>> = Vec::new();
    for chunk in chunks {
        match ranges.last_mut() {
            Some(last) if last.end == *chunk => last.end += 1,
            _ => ranges.push(*chunk..*chunk + 1),
        }
    }
    ranges
}

impl ReadAt for CachedBlob {
    fn size(&self) -> io::Result<u64> {
        Ok(self.stored.layout().size)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let end = offset.checked_add(buffer.len() as u64);
        let Some(end) = end.filter(|end| *end <= self.stored.layout().size) else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        if self.wrong.load(Ordering::Acquire) {
            let why = format!("the origin has something else than {}", self.digest());
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        let wait = self.wait();
        let all = offset..end;
        let mut missing: Vec<_> = self.chunks_of(&all).collect();
        for _ in 0..READS_MAX {
            missing.retain(|chunk| {
                let part = self.part(*chunk, &all);
                let into = within(buffer, &part, offset);
                !self.stored.read(*chunk, part.start, into)
            });
            if missing.is_empty() {
                return Ok(());
            }
            if !reads::may_wait() {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let came = self.remote.read(&joined(&missing), &wait)?;
            for (chunk, content) in &came {
                let part = self.part(*chunk, &all);
                let start = self.stored.range(*chunk).start;
                let at = usize::try_from(part.start - start).unwrap_or(usize::MAX);
                let into = within(buffer, &part, offset);
                into.copy_from_slice(&content[at..at + into.len()]);
            }
            missing.retain(|chunk| !came.iter().any(|(here, _)| here == chunk));
        }
        let why = "the cache is too small: chunks are evicted before they are read";
        Err(io::Error::other(why))
    }

    fn expect(&self, ranges: &[Range<u64>]) -> Option<Expected> {
        // A thread that may not wait hands the read over, and who takes it asks for all of it.
        if self.wrong.load(Ordering::Acquire) || prompt::patience() == prompt::Patience::None {
            return None;
        }
        let mut missing: Vec<u32> = Vec::new();
        for range in ranges {
            let chunks = self.chunks_of(range);
            missing.extend(chunks.filter(|chunk| !self.stored.is_here(*chunk)));
        }
        missing.sort_unstable();
        missing.dedup();
        let spans: Vec<_> = joined(&missing)
            .into_iter()
            .map(|run| self.span(run))
            .collect();
        (!spans.is_empty())
            .then(|| Box::new(self.fetcher().feed(spans, Priority::Demand)) as Expected)
    }
}
