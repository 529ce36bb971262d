//! The threads that read chunks from the store, in the order of the schedule.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use prometheus_client::registry::Registry;

use super::counters::MachineCounters;
use super::hot::HotCache;
use super::machine::{Credit, Identity, Vm};
use super::outgoing::{Outgoing, RoomListener};
use super::schedule::Schedule;
use super::{Counts, Limits};
use crate::wire::{Frame, Message, Priority, Status};
use chunks::index::{Index, ZEROS};
use chunks::{CHUNK_MAX, ChunkId, ChunkStore, Class, Codec, Stored};

/// The most raw bytes of a READ that the connection's own task handles: less than a millisecond's
/// work.
const AT_ONCE: u64 = 8 * CHUNK_MAX as u64;

/// A request for a chunk.
pub(crate) struct Job {
    pub(crate) request: u64,
    /// Its place in the READ.
    pub(crate) place: u16,
    pub(crate) id: ChunkId,
    pub(crate) priority: Priority,
    /// When it was requested.
    pub(crate) asked: Instant,
    /// The client of a request.
    pub(crate) machine: Arc<MachineCounters>,
    pub(crate) deadline: Option<Instant>,
    pub(crate) cancelled: Arc<AtomicBool>,
    /// Returned when the response was written.
    pub(crate) credit: Option<Credit>,
    pub(crate) to: Arc<Outgoing>,
}

/// The queue of jobs, and the threads that work on it.
pub(crate) struct Readers {
    queue: Arc<Queue>,
    reader: Arc<ChunkReader>,
    threads: Vec<JoinHandle<()>>,
}

/// Reads chunks from the cache in memory or the store.
struct ChunkReader {
    store: Arc<dyn ChunkStore>,
    hot: HotCache,
    counts: Arc<Counts>,
}

struct Queue {
    state: Mutex<QueueState>,
    more: Condvar,
}

struct QueueState {
    schedule: Schedule<Identity, Job>,
    over: bool,
}

impl Readers {
    /// Starts as many threads as `limits` says.
    pub(crate) fn start(
        store: Arc<dyn ChunkStore>,
        counts: &Arc<Counts>,
        limits: &Limits,
    ) -> io::Result<Self> {
        let queue = Arc::new(Queue {
            state: Mutex::new(QueueState {
                schedule: Schedule::new(),
                over: false,
            }),
            more: Condvar::new(),
        });
        // What is sent as it is takes more of a rate than what is compressed.
        let hot_bytes = match limits.send_rate_of_one {
            None => limits.hot_bytes,
            Some(_) => 0,
        };
        let reader = Arc::new(ChunkReader {
            store,
            hot: HotCache::start(hot_bytes, &limits.load)?,
            counts: Arc::clone(counts),
        });
        let start = |n| {
            let (queue, reader) = (Arc::clone(&queue), Arc::clone(&reader));
            let name = format!("nicfetch-read-{n}");
            let run = move || {
                while let Some(job) = queue.next() {
                    reader.answer(job);
                }
            };
            std::thread::Builder::new().name(name).spawn(run)
        };
        let threads = (0..limits.readers.max(1)).map(start);
        let threads = threads.collect::<io::Result<_>>()?;
        Ok(Self {
            queue,
            reader,
            threads,
        })
    }

    /// Registers the metrics of the cache in memory.
    pub(crate) fn register_metrics(&self, registry: &mut Registry) {
        self.reader.hot.register(registry);
    }

    /// Returns how many of these chunks are there, and how many are not.
    pub(crate) fn look(&self, index: &Index, first: u32, count: u32) -> (u32, u32) {
        let from = (first as usize).min(index.chunks().len());
        let to = from
            .saturating_add(count as usize)
            .min(index.chunks().len());
        let (mut present, mut absent) = (0, 0);
        for id in &index.chunks()[from..to] {
            if *id == ZEROS || self.reader.store.contains(id) {
                present += 1;
            } else {
                absent += 1;
            }
        }
        (present, absent)
    }

    /// Returns the listener that a connection wakes when there is room in it again.
    pub(crate) fn room_listener(&self) -> Arc<dyn RoomListener> {
        Arc::clone(&self.queue) as Arc<dyn RoomListener>
    }

    /// Enqueues jobs.
    ///
    /// A few demand reads of chunks in memory are handled at once if the queue is empty: handing
    /// them to a thread takes longer than reading them.
    pub(crate) fn push(&self, priority: Priority, vm: &Vm, mut jobs: Vec<(u64, Job)>) {
        let few = jobs.iter().map(|(cost, _)| cost).sum::<u64>() <= AT_ONCE;
        if priority == Priority::Demand && few && self.nobody_waits(priority) {
            jobs.retain_mut(|(_, job)| !self.reader.answer_now(job));
            if jobs.is_empty() {
                return;
            }
        }
        let many = jobs.len() > 1;
        let mut state = self.queue.state.lock();
        for (cost, job) in jobs {
            state.schedule.push(priority, &vm.identity, cost, job);
        }
        drop(state);
        if many {
            self.queue.more.notify_all();
        } else {
            self.queue.more.notify_one();
        }
    }

    fn nobody_waits(&self, priority: Priority) -> bool {
        !self.queue.state.lock().schedule.waits(priority)
    }

    pub(crate) fn waiting(&self) -> usize {
        self.queue.state.lock().schedule.len()
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.queue.state.lock().over = true;
        self.queue.more.notify_all();
        for thread in self.threads.drain(..) {
            // A panic of a reader is on the log; the others did its work.
            let _ended = thread.join();
        }
    }
}

impl Queue {
    /// Waits for the next job that can be done; `None` when there will be none.
    fn next(&self) -> Option<Job> {
        let mut state = self.state.lock();
        loop {
            if state.over {
                return None;
            }
            if let Some(job) = state.schedule.pop(|job| job.to.has_room()) {
                return Some(job);
            }
            self.more.wait(&mut state);
        }
    }
}

impl RoomListener for Queue {
    fn wake(&self) {
        // Under the lock, so that nobody is between looking and waiting.
        drop(self.state.lock());
        self.more.notify_all();
    }
}

impl ChunkReader {
    /// Handles a job if its chunk is in memory, and returns whether it was.
    fn answer_now(&self, job: &mut Job) -> bool {
        if job.id == ZEROS || !job.to.has_room() {
            return false;
        }
        let Some(stored) = self.take(job, |store, id, class| store.get_now(id, class)) else {
            return false;
        };
        let counts = &self.counts;
        counts.chunks.waited(job.priority, job.asked.elapsed());
        send(counts, job, stored);
        true
    }

    fn answer(&self, mut job: Job) {
        if job.cancelled.load(Relaxed) || job.to.is_over() {
            return;
        }
        let (counts, now) = (&self.counts, Instant::now());
        let waited = now.saturating_duration_since(job.asked);
        counts.chunks.waited(job.priority, waited);
        if job.deadline.is_some_and(|deadline| deadline < now) {
            return refuse(counts, &mut job, Status::Late);
        }
        // Nobody who has the index asks for zeros.
        let stored = if job.id == ZEROS {
            None
        } else {
            self.take(&job, |store, id, class| store.get(id, class))
        };
        let Some(stored) = stored else {
            return refuse(counts, &mut job, Status::Absent);
        };
        send(counts, &mut job, stored);
    }

    /// Gets a chunk from the cache in memory, or by `read`. Prefetched chunks are sent as stored:
    /// they are read once, and the client may store them in this form.
    fn take(
        &self,
        job: &Job,
        read: impl Fn(&dyn ChunkStore, &ChunkId, Class) -> Option<Stored>,
    ) -> Option<Stored> {
        let class = class_of(job.priority);
        if class == Class::Prefetch {
            return read(&*self.store, &job.id, class);
        }
        if let Some(hot) = self.hot.get(&job.id) {
            self.store.note_use(&job.id, class);
            return Some(hot);
        }
        let stored = read(&*self.store, &job.id, class)?;
        self.hot.note(&job.id, &stored);
        Some(stored)
    }
}

/// Responds without a chunk.
fn refuse(counts: &Counts, job: &mut Job, why: Status) {
    counts.chunks.count(job.priority, why);
    let refused = status(job.request, job.place, why);
    job.to.send(refused, job.credit.take());
}

/// Returns the class of an access for the eviction policy.
const fn class_of(priority: Priority) -> Class {
    match priority {
        // What is read ahead is part of what a boot reads: the kernel's guesses are good.
        Priority::Demand | Priority::Readahead => Class::Demand,
        Priority::Prefetch => Class::Prefetch,
    }
}

/// Sends a chunk, and with it the credit.
fn send(counts: &Counts, job: &mut Job, stored: Stored) {
    if stored.bytes.len() > crate::wire::DATA_MAX {
        return refuse(counts, job, Status::Failed);
    }
    let bytes = stored.bytes.len() as u64;
    counts.chunks.sent(job.priority, &job.machine, bytes);
    let codec: Codec = stored.codec;
    let message = Message::Chunk {
        place: job.place,
        status: Status::Here,
        codec: codec as u8,
        raw_len: stored.raw_len,
    };
    let frame = Frame {
        request: job.request,
        message,
        data: stored.bytes,
    };
    job.to.send(frame, job.credit.take());
}

/// Returns the response to a wanted chunk without content.
pub(crate) fn status(request: u64, place: u16, status: Status) -> Frame {
    let message = Message::Chunk {
        place,
        status,
        codec: 0,
        raw_len: 0,
    };
    Frame::new(request, message)
}
