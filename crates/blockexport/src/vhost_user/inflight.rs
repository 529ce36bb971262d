//! The requests in flight, in memory that outlives the server.
//!
//! The front end keeps the region and passes it to the next server. Its layout is that of the
//! vhost-user document for split rings: for each queue a head of 16 bytes (features, version, number of
//! descriptors, head of the last batch, used index) and 16 bytes for each descriptor (in flight or not, 5
//! unused bytes, next of its batch, counter). Batches here are of one request.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};

use vhost::vhost_user::message::VhostUserInflight;
use vm_memory::{Bytes as _, FileOffset, GuestAddress, GuestMemoryError, GuestMemoryMmap};

use super::QUEUE_MAX_SIZE;

const HEAD_BYTES: u64 = 16;
const ENTRY_BYTES: u64 = 16;
/// Queues do not share lines of the processor's cache.
const ALIGNMENT: u64 = 64;
const VERSION: u16 = 1;

const AT_VERSION: u64 = 8;
const AT_DESCRIPTORS: u64 = 10;
const AT_LAST_BATCH: u64 = 12;
const AT_USED: u64 = 14;

/// The regions of all queues of a device.
#[derive(Clone, Debug)]
pub(super) struct Region {
    memory: Arc<GuestMemoryMmap>,
    queue_size: u16,
    queues: u16,
}

const fn bytes_of_queue(queue_size: u16) -> u64 {
    (HEAD_BYTES + ENTRY_BYTES * queue_size as u64).next_multiple_of(ALIGNMENT)
}

/// Returns whether a file covers a range: a page behind its end can be mapped, and touching it kills the
/// process.
pub(super) fn reaches(file: &File, offset: u64, len: u64) -> bool {
    let end = offset.checked_add(len);
    let about = file.metadata();
    // Devices have no length.
    about.is_ok_and(|about| !about.is_file() || end.is_some_and(|end| end <= about.len()))
}

impl Region {
    /// Creates a file for a region, empty, and describes it.
    pub(super) fn create(queues: u16, queue_size: u16) -> io::Result<(VhostUserInflight, File)> {
        let size = bytes_of_queue(queue_size) * u64::from(queues);
        let flags = nix::sys::memfd::MFdFlags::MFD_CLOEXEC;
        let file = File::from(nix::sys::memfd::memfd_create(c"vhost-inflight", flags)?);
        file.set_len(size)?;
        let about = VhostUserInflight::new(size, 0, queues, queue_size);
        Ok((about, file))
    }

    /// Maps a region from the front end; `None` if it has the wrong size.
    pub(super) fn open(about: &VhostUserInflight, file: File) -> Option<Self> {
        let (queues, queue_size) = (about.num_queues, about.queue_size);
        let needed = bytes_of_queue(queue_size) * u64::from(queues);
        if queue_size > QUEUE_MAX_SIZE || about.mmap_size < needed {
            return None;
        }
        if !reaches(&file, about.mmap_offset, needed) {
            return None;
        }
        let size = usize::try_from(needed).ok()?;
        let file = FileOffset::new(file, about.mmap_offset);
        let ranges = [(GuestAddress(0), size, Some(file))];
        let memory = GuestMemoryMmap::from_ranges_with_files(ranges)
            .inspect_err(|error| log::warn!("cannot map the region of requests in flight: {error}"))
            .ok()?;
        Some(Self {
            memory: Arc::new(memory),
            queue_size,
            queues,
        })
    }

    /// Returns the part of one queue; `None` if there is none for it.
    pub(super) fn queue(&self, index: u16, size: u16) -> Option<Inflight> {
        (index < self.queues && size <= self.queue_size).then(|| Inflight {
            memory: Arc::clone(&self.memory),
            base: bytes_of_queue(self.queue_size) * u64::from(index),
            size,
            counter: 0,
        })
    }
}

/// Which requests of one queue are in flight.
#[derive(Debug)]
pub(super) struct Inflight {
    memory: Arc<GuestMemoryMmap>,
    base: u64,
    size: u16,
    counter: u64,
}

type Result<T> = std::result::Result<T, GuestMemoryError>;

impl Inflight {
    /// Begins to use the region, and returns the requests in flight when it was last used, oldest first;
    /// `None` if it never was. `used` is how many requests were reported to the guest as done.
    pub(super) fn resume(&mut self, used: u16) -> Result<Option<Vec<u16>>> {
        if self.load::<u16>(AT_VERSION)? != VERSION {
            self.store(self.size, AT_DESCRIPTORS)?;
            self.store(used, AT_USED)?;
            self.store(VERSION, AT_VERSION)?;
            return Ok(None);
        }
        if self.load::<u16>(AT_USED)? != used {
            // The server ended after it had told the guest and before it had noted so here.
            let told: u16 = self.load(AT_LAST_BATCH)?;
            if told < self.size {
                self.store(0_u8, entry(told))?;
            }
            self.store(used, AT_USED)?;
        }
        let mut found = Vec::new();
        for head in 0..self.size {
            if self.load::<u8>(entry(head))? != 0 {
                found.push((self.load::<u64>(entry(head) + 8)?, head));
            }
        }
        found.sort_unstable();
        self.counter = found.last().map_or(0, |(last, _)| last.wrapping_add(1));
        Ok(Some(found.into_iter().map(|(_, head)| head).collect()))
    }

    /// Records that a request was taken from the ring.
    pub(super) fn begin(&mut self, head: u16) -> Result<()> {
        self.store(self.counter, entry(head) + 8)?;
        self.counter = self.counter.wrapping_add(1);
        self.store(1_u8, entry(head))
    }

    /// Records that a request is about to be reported as done.
    pub(super) fn finish(&self, head: u16) -> Result<()> {
        self.store(head, AT_LAST_BATCH)
    }

    /// Records that a request was reported as done, as number `used`.
    pub(super) fn finished(&self, head: u16, used: u16) -> Result<()> {
        self.store(0_u8, entry(head))?;
        self.store(used, AT_USED)
    }

    fn load<T: vm_memory::AtomicAccess>(&self, at: u64) -> Result<T> {
        self.memory.load(GuestAddress(self.base + at), Acquire)
    }

    fn store<T: vm_memory::AtomicAccess>(&self, value: T, at: u64) -> Result<()> {
        self.memory
            .store(value, GuestAddress(self.base + at), Release)
    }
}

const fn entry(head: u16) -> u64 {
    HEAD_BYTES + ENTRY_BYTES * head as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inflight() -> (VhostUserInflight, File, Inflight) {
        let (about, file) = Region::create(2, 8).unwrap();
        let region = Region::open(&about, file.try_clone().unwrap()).unwrap();
        let queue = region.queue(1, 8).unwrap();
        (about, file, queue)
    }

    #[test]
    fn a_server_finds_what_the_one_before_had_in_flight_oldest_first() {
        let (about, file, mut first) = inflight();
        assert_eq!(first.resume(0).unwrap(), None, "it is new");
        for head in [5, 2, 7] {
            first.begin(head).unwrap();
        }
        first.finish(2).unwrap();
        first.finished(2, 1).unwrap();
        first.begin(2).unwrap();
        drop(first);
        let region = Region::open(&about, file).unwrap();
        let mut second = region.queue(1, 8).unwrap();
        assert_eq!(second.resume(1).unwrap(), Some(vec![5, 7, 2]));
        second.begin(0).unwrap();
        let mut third = region.queue(1, 8).unwrap();
        assert_eq!(third.resume(1).unwrap(), Some(vec![5, 7, 2, 0]));
        let mut other = region.queue(0, 8).unwrap();
        assert_eq!(other.resume(0).unwrap(), None, "queues do not share");
    }

    #[test]
    fn a_request_that_the_guest_knows_to_be_done_is_not_done_again() {
        let (_, _, mut first) = inflight();
        first.resume(0).unwrap();
        first.begin(3).unwrap();
        first.begin(4).unwrap();
        // Killed between the used ring and the note of it.
        first.finish(3).unwrap();
        assert_eq!(first.resume(1).unwrap(), Some(vec![4]));
        // Killed before the used ring.
        first.finish(4).unwrap();
        assert_eq!(first.resume(1).unwrap(), Some(vec![4]));
    }

    #[test]
    fn regions_that_are_too_small_are_refused() {
        let (about, file) = Region::create(2, 8).unwrap();
        let open = |about| Region::open(&about, file.try_clone().unwrap()).is_some();
        assert!(open(about));
        assert!(!open(VhostUserInflight::new(about.mmap_size, 0, 3, 8)));
        let lie = VhostUserInflight::new(1 << 20, 0, 2, 1024);
        assert!(!open(lie), "the file is shorter");
        assert!(!open(VhostUserInflight::new(u64::MAX, 0, 2, u16::MAX)));
        let region = Region::open(&about, file.try_clone().unwrap()).unwrap();
        assert!(region.queue(2, 8).is_none() && region.queue(0, 16).is_none());
    }
}
