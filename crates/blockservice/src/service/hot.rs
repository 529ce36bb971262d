//! A cache in memory of chunks that machines read: decompressed for fast links, and as stored for slow
//! ones.
//!
//! Chunks on the disk are compressed: decompression is most of the cost of a read for the client, and
//! reading and verifying the file most of it for the service. Machines of one host read the same tens
//! of megabytes while they boot, so that a little memory saves most of both.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;

use super::link::Form;
use chunks::{ChunkId, Class, Codec, Stored};
use chunks::{Fingerprint as _, Item, Limit, PolicyKind, Residents};
use serving::load::{Level, Load};
use serving::metrics::{Sample, register_samples};

/// Chunks that were asked for once and are remembered for that: 8 GiB of them, in 512 KiB.
const SEEN: usize = 1 << 16;
/// Chunks that wait to be decompressed, at most: 8 MiB. Others are asked for again.
const WAITING: usize = 64;
/// How often it is looked whether the machine needs its memory.
const LOOK: Duration = Duration::from_secs(1);

/// A cache of chunks: of all that are read while there is room, and then of those that are read
/// twice.
#[derive(Debug)]
pub(crate) struct HotCache {
    shared: Arc<Shared>,
    /// `None` if nothing is cached.
    offers: Option<SyncSender<(ChunkId, Stored)>>,
    /// By a part of its hash: a chunk that was requested once.
    seen: Box<[AtomicU64]>,
    answers: Counter,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    most: u64,
    kept: Mutex<Cached>,
    /// As stored: this takes no work, so that it is cached at once.
    packed: Mutex<Packed>,
    load: Arc<Load>,
}

type Cached = Residents<ChunkId, Arc<Vec<u8>>>;

type Packed = Residents<ChunkId, Arc<Stored>>;

/// What chunks as stored take: as many as those that are decompressed.
const fn packed_most(most: u64) -> u64 {
    most / 4
}

fn none_packed(most: u64) -> Packed {
    Residents::new(PolicyKind::Sieve, Limit::bytes(packed_most(most)))
}

fn none(most: u64) -> Cached {
    Residents::new(PolicyKind::Sieve, Limit::bytes(most))
}

impl HotCache {
    /// Starts a cache of at most `most` bytes, and of none while the load is high.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(crate) fn start(most: u64, load: &Arc<Load>) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            most,
            kept: Mutex::new(none(most)),
            packed: Mutex::new(none_packed(most)),
            load: Arc::clone(load),
        });
        let (offers, offered) = sync_channel(WAITING);
        let keeper = Arc::clone(&shared);
        let start = || {
            let thread = std::thread::Builder::new().name("nicfetch-hot".to_owned());
            thread.spawn(move || keeper.keep(&offered))
        };
        let thread = (most > 0).then(start).transpose()?;
        let seen = if most > 0 { SEEN } else { 0 };
        Ok(Self {
            shared,
            offers: (most > 0).then_some(offers),
            seen: (0..seen).map(|_| AtomicU64::new(0)).collect(),
            answers: Counter::default(),
            thread,
        })
    }

    /// Returns a chunk if it is in the cache in this form.
    pub(crate) fn get(&self, id: &ChunkId, form: Form) -> Option<Stored> {
        self.offers.as_ref()?;
        if form == Form::Stored {
            let packed = {
                let mut packed = self.shared.packed.lock();
                packed.hit(id, Class::Demand);
                Arc::clone(packed.get(id)?)
            };
            self.answers.inc();
            return Some((*packed).clone());
        }
        let raw = {
            let mut kept = self.shared.kept.lock();
            kept.hit(id, Class::Demand);
            Arc::clone(kept.get(id)?)
        };
        self.answers.inc();
        Some(Stored {
            codec: Codec::Raw,
            raw_len: u32::try_from(raw.len()).ok()?,
            bytes: raw.to_vec(),
        })
    }

    /// Notes that a chunk was read from the store; caches it if there is room, or if it was read
    /// before.
    pub(crate) fn note(&self, id: &ChunkId, stored: &Stored, form: Form) {
        let Some(offers) = &self.offers else { return };
        if form == Form::Stored {
            if !self.shared.is_pressed() {
                self.shared.keep_packed(id, stored);
            }
            return;
        }
        let print = id.fingerprint();
        let place = usize::try_from(print >> 32).unwrap_or(0) % SEEN;
        let again = self.seen[place].swap(print, Relaxed) == print;
        if self.shared.is_pressed() || !(again || self.shared.has_room(stored.raw_len)) {
            return;
        }
        // It is asked for again if there is no room.
        let _offered = offers.try_send((*id, stored.clone()));
    }

    /// Registers the metrics of the cache.
    pub(crate) fn register(&self, registry: &mut Registry) {
        let shared = Arc::clone(&self.shared);
        register_samples(registry, move || {
            let bytes = shared.bytes();
            let help = "Bytes of chunks in memory.";
            vec![Sample::gauge("hot_bytes", help, bytes)]
        });
        let help = "Chunks that were sent out of memory";
        registry.register("hot_answers", help, self.answers.clone());
    }
}

impl Drop for HotCache {
    fn drop(&mut self) {
        self.offers = None;
        if let Some(thread) = self.thread.take() {
            // A panic is on the log, and costs speed only.
            let _ended = thread.join();
        }
    }
}

impl Shared {
    /// Returns what all of it takes.
    fn bytes(&self) -> u64 {
        let packed = self.packed.lock().bytes();
        packed + self.kept.lock().bytes()
    }

    fn is_pressed(&self) -> bool {
        self.load.level() >= Level::Careful
    }

    fn keep_packed(&self, id: &ChunkId, stored: &Stored) {
        let item = Item {
            fingerprint: id.fingerprint(),
            bytes: u32::try_from(stored.bytes.len()).unwrap_or(u32::MAX),
            class: Class::Demand,
        };
        let stored = Arc::new(stored.clone());
        let mut gone = Vec::new();
        let mut packed = self.packed.lock();
        if packed.get(id).is_none() {
            packed.admit(*id, stored, item, &mut |_, stored| gone.push(stored));
        }
    }

    fn has_room(&self, bytes: u32) -> bool {
        self.kept.lock().bytes() + u64::from(bytes) <= self.most
    }

    /// Decompresses and keeps what is offered, until no sender is left.
    fn keep(&self, offered: &Receiver<(ChunkId, Stored)>) {
        loop {
            match offered.recv_timeout(LOOK) {
                Ok((id, stored)) => self.add(id, stored),
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if self.is_pressed() && self.bytes() > 0 {
                let gone = std::mem::replace(&mut *self.kept.lock(), none(self.most));
                let packed = std::mem::replace(&mut *self.packed.lock(), none_packed(self.most));
                log::info!(
                    "{} cached chunks were dropped: the machine is under load",
                    gone.len() + packed.len()
                );
            }
        }
    }

    fn add(&self, id: ChunkId, stored: Stored) {
        let item = Item {
            fingerprint: id.fingerprint(),
            bytes: stored.raw_len,
            class: Class::Demand,
        };
        if self.kept.lock().get(&id).is_some() {
            return; // it was offered twice before its turn came
        }
        // What is not the chunk is for its reader to find out.
        let Ok(raw) = stored.open(&id) else { return };
        let mut gone = Vec::new();
        let mut kept = self.kept.lock();
        kept.admit(id, Arc::new(raw), item, &mut |_, raw| gone.push(raw));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn chunk(n: u8) -> (ChunkId, Stored) {
        let raw = vec![n; 1000];
        (ChunkId::of(&raw), Stored::pack(&raw).unwrap())
    }

    /// Waits until a chunk is kept.
    fn kept(hot: &HotCache, id: &ChunkId) -> Stored {
        let start = Instant::now();
        loop {
            if let Some(stored) = hot.get(id, Form::Raw) {
                return stored;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "it is not kept");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn bytes(hot: &HotCache) -> u64 {
        hot.shared.bytes()
    }

    #[test]
    fn what_is_read_is_kept_while_there_is_room_and_then_what_is_read_twice() {
        let hot = HotCache::start(2500, &Arc::default()).unwrap();
        let chunks: Vec<_> = (0..4).map(chunk).collect();
        for (n, (id, stored)) in (0..).zip(&chunks[..2]) {
            hot.note(id, stored, Form::Raw);
            let found = kept(&hot, id);
            assert_eq!((found.codec, found.raw_len), (Codec::Raw, 1000));
            assert_eq!(found.open(id).unwrap(), vec![n; 1000]);
        }
        let mut registry = Registry::default();
        hot.register(&mut registry);
        let page = serving::metrics::exposition(&registry);
        assert!(page.contains("\nhot_bytes 2000\n"), "{page}");
        let [.., once, twice] = &chunks[..] else {
            unreachable!()
        };
        hot.note(&once.0, &once.1, Form::Raw);
        hot.note(&twice.0, &twice.1, Form::Raw);
        hot.note(&twice.0, &twice.1, Form::Raw);
        // Its turn came after that of the one before.
        kept(&hot, &twice.0);
        assert_eq!(hot.get(&once.0, Form::Raw), None);
        assert_eq!(bytes(&hot), 2000);
    }

    #[test]
    fn no_more_is_kept_than_may_be() {
        let hot = HotCache::start(2500, &Arc::default()).unwrap();
        for n in 0..10 {
            let (id, stored) = chunk(n);
            hot.note(&id, &stored, Form::Raw);
            hot.note(&id, &stored, Form::Raw);
            kept(&hot, &id);
            assert!(bytes(&hot) <= 2500);
        }
        let nothing = HotCache::start(0, &Arc::default()).unwrap();
        let (id, stored) = chunk(1);
        (0..3).for_each(|_| nothing.note(&id, &stored, Form::Raw));
        assert_eq!((nothing.get(&id, Form::Raw), bytes(&nothing)), (None, 0));
    }

    #[test]
    fn what_is_damaged_is_not_kept() {
        let hot = HotCache::start(1 << 20, &Arc::default()).unwrap();
        let (one, two, three) = (chunk(1), chunk(2), chunk(3));
        for (id, stored) in [(&one.0, &two.1), (&three.0, &three.1)] {
            hot.note(id, stored, Form::Raw);
            hot.note(id, stored, Form::Raw);
        }
        // It came after the other.
        kept(&hot, &three.0);
        assert_eq!(hot.get(&one.0, Form::Raw), None);
    }

    #[test]
    fn a_machine_that_needs_its_memory_gets_it() {
        let load = Arc::new(Load::default());
        let hot = HotCache::start(1 << 20, &load).unwrap();
        let (id, stored) = chunk(1);
        hot.note(&id, &stored, Form::Raw);
        hot.note(&id, &stored, Form::Raw);
        kept(&hot, &id);
        load.set(Level::Careful, None);
        let start = Instant::now();
        while bytes(&hot) > 0 {
            assert!(start.elapsed() < Duration::from_secs(60), "it stays");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn what_goes_over_a_network_is_kept_as_stored() {
        let load = Arc::new(Load::default());
        let (one, two) = (chunk(1), chunk(2));
        let room = 4 * (one.1.bytes.len() as u64 + 1);
        let hot = HotCache::start(room, &load).unwrap();
        hot.note(&one.0, &one.1, Form::Stored);
        assert_eq!(hot.get(&one.0, Form::Stored), Some(one.1.clone()));
        assert_eq!(hot.get(&one.0, Form::Raw), None);
        assert_eq!(bytes(&hot), one.1.bytes.len() as u64);
        hot.note(&two.0, &two.1, Form::Stored);
        assert!(bytes(&hot) * 4 <= room, "one had to go");
        load.set(Level::Careful, None);
        let start = Instant::now();
        while bytes(&hot) > 0 {
            assert!(start.elapsed() < Duration::from_secs(60), "it stays");
            std::thread::sleep(Duration::from_millis(1));
        }
        hot.note(&one.0, &one.1, Form::Stored);
        assert_eq!(bytes(&hot), 0, "it needs its memory");
    }
}
