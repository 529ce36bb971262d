//! Chunks in memory: those that were read, and those that arrived ahead of reads.
//!
//! A chunk that was read is cached twice for a while: its content, for the next 4 KiB of it, and as received,
//! which takes a third of the memory and is still there when a plan is replayed more slowly than the program reads.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::{Arrived, Chunk};

/// Bytes of chunks that were read: a reader of 4 KiB comes back for the next 4 KiB, and a page that
/// the kernel dropped costs no round trip.
const READ_BYTES: usize = 32 << 20;
/// Bytes of chunks that the replay of a plan read: a program may want one before it is in the page cache. It comes to each
/// once, and takes the memory of those before it for the next ones, which the kernel need not clear then.
const REPLAYED_BYTES: usize = 4 << 20;
/// Bytes of chunks that were read, as they came.
const PACKED_BYTES: usize = 32 << 20;
/// Bytes of chunks that have not been read yet, as they were received: a plan is replayed about as fast as it comes.
const AHEAD_BYTES: usize = 128 << 20;
/// How long these are kept, before they count as read.
const AHEAD: Duration = Duration::from_secs(30);

/// A chunk in memory.
#[derive(Clone, Debug)]
pub(super) enum Found {
    /// Its content.
    Opened(Chunk),
    /// As received.
    Packed(Arc<Arrived>),
}

impl Found {
    fn len(&self) -> usize {
        match self {
            Self::Opened(chunk) => chunk.len(),
            Self::Packed(arrived) => arrived.len(),
        }
    }
}

/// The chunks of one source that are in memory. Losing one costs a request.
#[derive(Debug)]
pub(super) struct Kept {
    read: Lru,
    replayed: Lru,
    packed: Lru,
    ahead: Lru,
    /// By chunk that is ahead: since when.
    since: HashMap<u32, Duration>,
}

/// Whether there was room for a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    Enough,
    /// Others were evicted unread.
    Full,
}

impl Kept {
    pub(super) fn new() -> Self {
        Self {
            read: Lru::new(READ_BYTES),
            replayed: Lru::new(REPLAYED_BYTES),
            packed: Lru::new(PACKED_BYTES),
            ahead: Lru::new(AHEAD_BYTES),
            since: HashMap::new(),
        }
    }

    /// Returns a chunk for a reader.
    pub(super) fn get(&mut self, number: u32) -> Option<Found> {
        if let Some(found) = self.ahead.remove(number) {
            self.since.remove(&number);
            self.packed.insert(number, found);
        }
        if let Some(found) = self.replayed.remove(number) {
            self.read.insert(number, found);
        }
        self.read.get(number).or_else(|| self.packed.get(number))
    }

    /// Returns a chunk for the replay of a plan.
    pub(super) fn peek(&self, number: u32) -> Option<Found> {
        let read = self.read.peek(number);
        let found = read.or_else(|| self.replayed.peek(number));
        let packed = || self.ahead.peek(number).or_else(|| self.packed.peek(number));
        found.or_else(packed)
    }

    /// Returns whether a chunk has come that nobody has read.
    pub(super) fn is_ahead(&self, number: u32) -> bool {
        self.ahead.peek(number).is_some()
    }

    /// Caches a chunk that was read. One that arrived ahead stays, for further reads.
    pub(super) fn add_read(&mut self, number: u32, found: Found) {
        match found {
            Found::Opened(_) => self.read.insert(number, found),
            Found::Packed(_) => self.packed.insert(number, found),
        };
    }

    /// Caches the content of a chunk that the replay of a plan read.
    pub(super) fn add_replayed(&mut self, number: u32, chunk: Chunk) {
        self.replayed.insert(number, Found::Opened(chunk));
    }

    /// Caches a chunk that was not read yet.
    pub(super) fn add_ahead(&mut self, now: Duration, number: u32, arrived: Arc<Arrived>) -> Room {
        if self.read.peek(number).is_some() || self.packed.peek(number).is_some() {
            return Room::Enough;
        }
        self.since.insert(number, now);
        let gone = self.ahead.insert(number, Found::Packed(arrived));
        gone.iter().for_each(|number| {
            self.since.remove(number);
        });
        if gone.is_empty() {
            Room::Enough
        } else {
            Room::Full
        }
    }

    /// Drops a chunk that turned out to be something else.
    pub(super) fn forget(&mut self, number: u32) {
        self.read.remove(number);
        self.replayed.remove(number);
        self.packed.remove(number);
        self.ahead.remove(number);
        self.since.remove(&number);
    }

    /// Drops what came on connections for which `is_of` holds and was not verified, and returns which chunks.
    pub(super) fn forget_unverified(&mut self, is_of: impl Fn(usize) -> bool) -> Vec<u32> {
        let is_doubtful = |found: &Found| match found {
            Found::Opened(_) => false,
            Found::Packed(arrived) => !arrived.is_verified() && is_of(arrived.connection()),
        };
        let mut gone = Vec::new();
        for lru in [&self.ahead, &self.packed] {
            let order = lru.order.values().copied();
            gone.extend(order.filter(|number| lru.peek(*number).is_some_and(|f| is_doubtful(&f))));
        }
        gone.iter().for_each(|number| self.forget(*number));
        gone
    }

    /// Moves what nobody read for long to what was read, and returns when there is more to move.
    pub(super) fn expire(&mut self, now: Duration) -> Option<Duration> {
        loop {
            let oldest = self.ahead.oldest()?;
            let since = self.since.get(&oldest).copied().unwrap_or_default();
            let end = since + AHEAD;
            if end > now {
                return Some(end);
            }
            let _moved = self.get(oldest);
        }
    }
}

/// Chunks of so many bytes at most; what was not used for the longest time goes first.
#[derive(Debug)]
struct Lru {
    most: usize,
    bytes: usize,
    uses: u64,
    chunks: HashMap<u32, (u64, Found)>,
    /// By the number of its last use.
    order: BTreeMap<u64, u32>,
}

impl Lru {
    fn new(most: usize) -> Self {
        Self {
            most,
            bytes: 0,
            uses: 0,
            chunks: HashMap::new(),
            order: BTreeMap::new(),
        }
    }

    fn peek(&self, number: u32) -> Option<Found> {
        self.chunks.get(&number).map(|(_, found)| found.clone())
    }

    fn get(&mut self, number: u32) -> Option<Found> {
        let found = self.remove(number)?;
        self.insert(number, found.clone());
        Some(found)
    }

    fn oldest(&self) -> Option<u32> {
        self.order.first_key_value().map(|(_, number)| *number)
    }

    /// Keeps a chunk, and returns those that had to go for it.
    fn insert(&mut self, number: u32, found: Found) -> Vec<u32> {
        self.remove(number);
        self.uses += 1;
        self.bytes += found.len();
        self.order.insert(self.uses, number);
        self.chunks.insert(number, (self.uses, found));
        let mut gone = Vec::new();
        while self.bytes > self.most
            && let Some(oldest) = self.oldest()
        {
            self.remove(oldest);
            gone.push(oldest);
        }
        gone
    }

    fn remove(&mut self, number: u32) -> Option<Found> {
        let (used, found) = self.chunks.remove(&number)?;
        self.order.remove(&used);
        self.bytes -= found.len();
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blocks::ContentId;
    use chunks::{Class, Codec, Stored};

    fn opened(len: usize) -> Found {
        Found::Opened(Arc::new(vec![1; len]))
    }

    fn arrived(len: usize) -> Arc<Arrived> {
        let stored = Stored {
            codec: Codec::Raw,
            raw_len: u32::try_from(len).unwrap(),
            bytes: vec![1; len],
        };
        Arc::new(Arrived::new(ContentId([0; 32]), stored, Class::Prefetch, 0))
    }

    #[test]
    fn the_longest_unused_goes_first() {
        let mut lru = Lru::new(10);
        assert!(lru.insert(1, opened(4)).is_empty());
        assert!(lru.insert(2, opened(4)).is_empty());
        assert!(lru.get(1).is_some());
        assert_eq!(lru.insert(3, opened(6)), [2]);
        assert!(lru.peek(2).is_none() && lru.peek(1).is_some() && lru.peek(3).is_some());
        assert_eq!(lru.insert(3, opened(10)), [1]);
        assert_eq!(lru.bytes, 10);
        assert_eq!(
            lru.insert(4, opened(11)),
            [3, 4],
            "what has no room is not kept"
        );
        assert_eq!((lru.bytes, lru.order.len()), (0, 0));
    }

    #[test]
    fn what_is_ahead_stays_until_it_is_read_or_old() {
        let mut kept = Kept::new();
        let at = Duration::from_secs;
        assert_eq!(kept.expire(at(0)), None);
        assert_eq!(kept.add_ahead(at(1), 1, arrived(1)), Room::Enough);
        assert_eq!(kept.add_ahead(at(2), 2, arrived(1)), Room::Enough);
        assert!(kept.peek(1).is_some());
        assert_eq!(kept.expire(at(3)), Some(at(1) + AHEAD));
        assert!(kept.get(1).is_some());
        assert_eq!(kept.expire(at(3)), Some(at(2) + AHEAD), "1 was read");
        assert_eq!(kept.expire(at(2) + AHEAD), None);
        assert!(kept.get(2).is_some() && kept.since.is_empty());
    }

    #[test]
    fn what_was_opened_is_found_first_and_what_is_wrong_is_forgotten() {
        let mut kept = Kept::new();
        kept.add_ahead(Duration::ZERO, 1, arrived(3));
        assert!(matches!(kept.peek(1), Some(Found::Packed(_))));
        kept.add_read(1, opened(3));
        assert!(matches!(kept.peek(1), Some(Found::Opened(_))));
        assert!(matches!(kept.get(1), Some(Found::Opened(_))));
        kept.forget(1);
        assert!(kept.peek(1).is_none() && kept.get(1).is_none() && kept.since.is_empty());
    }

    #[test]
    fn what_a_program_read_first_is_there_when_the_plan_comes_to_it() {
        let mut kept = Kept::new();
        kept.add_ahead(Duration::ZERO, 0, arrived(60_000));
        assert!(kept.get(0).is_some());
        kept.add_read(0, opened(131_072));
        // More than is kept of contents, and less than is kept of what came.
        for number in 1..=400 {
            kept.add_ahead(Duration::ZERO, number, arrived(60_000));
            kept.get(number);
            kept.add_read(number, opened(131_072));
        }
        assert!(matches!(kept.peek(0), Some(Found::Packed(_))));
        assert!(matches!(kept.peek(400), Some(Found::Opened(_))));
        assert!(kept.read.bytes <= READ_BYTES && kept.packed.bytes <= PACKED_BYTES);
    }

    #[test]
    fn little_is_kept_of_what_was_replayed_and_what_a_program_reads_of_it_stays() {
        let mut kept = Kept::new();
        for number in 0..40 {
            kept.add_replayed(number, Arc::new(vec![1; 131_072]));
        }
        assert!(kept.replayed.bytes <= REPLAYED_BYTES);
        assert!(kept.peek(0).is_none() && kept.peek(39).is_some());
        assert!(matches!(kept.get(39), Some(Found::Opened(_))));
        for number in 40..80 {
            kept.add_replayed(number, Arc::new(vec![1; 131_072]));
        }
        assert!(kept.peek(38).is_none() && kept.peek(39).is_some());
        kept.forget(79);
        assert!(kept.peek(79).is_none() && kept.get(79).is_none());
    }

    #[test]
    fn memory_for_what_is_ahead_is_bounded() {
        let mut kept = Kept::new();
        let large = arrived(AHEAD_BYTES / 2);
        let added = [1, 2, 3].map(|n| kept.add_ahead(Duration::ZERO, n, Arc::clone(&large)));
        assert_eq!(added, [Room::Enough, Room::Enough, Room::Full]);
        assert!(kept.peek(1).is_none() && kept.peek(3).is_some());
        assert_eq!(kept.since.len(), 2);
    }

    #[test]
    fn what_came_from_one_who_lies_goes_unless_it_was_verified() {
        let mut kept = Kept::new();
        for number in 1..=3 {
            kept.add_ahead(Duration::ZERO, number, arrived(3));
        }
        kept.get(2);
        if let Some(Found::Packed(verified)) = kept.peek(3) {
            verified.is_first_time();
        }
        assert!(
            kept.forget_unverified(|connection| connection != 0)
                .is_empty()
        );
        assert_eq!(kept.forget_unverified(|connection| connection == 0), [1, 2]);
        assert!(kept.peek(1).is_none() && kept.peek(2).is_none() && kept.peek(3).is_some());
    }
}
