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
use super::link::Form;
use super::machine::{Credit, Identity, Vm};
use super::outgoing::{Outgoing, RoomListener};
use super::schedule::Schedule;
use super::stream::Stream;
use super::{Counts, Limits};
use crate::wire::{DATA_MAX, Frame, Message, Priority, Status};
use chunks::index::{Index, ZEROS};
use chunks::{CHUNK_MAX, ChunkId, ChunkStore, Class, Codec, Stored};

/// The most raw bytes of a READ that the connection's own task handles: less than a millisecond's
/// work.
const AT_ONCE: u64 = 8 * CHUNK_MAX as u64;

/// What a thread does in one turn.
enum Job {
    /// Answers a want.
    Want(Box<Want>),
    /// Sends the next chunk of a stream.
    Stream(Arc<Stream>),
}

impl Job {
    fn to(&self) -> &Outgoing {
        match self {
            Self::Want(want) => &want.to,
            Self::Stream(stream) => &stream.client().to,
        }
    }
}

/// A request for a chunk.
pub(crate) struct Want {
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
    pub(crate) form: Form,
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
        let reader = Arc::new(ChunkReader {
            store,
            hot: HotCache::start(limits.hot_bytes, &limits.load)?,
            counts: Arc::clone(counts),
        });
        let start = |n| {
            let (queue, reader) = (Arc::clone(&queue), Arc::clone(&reader));
            let name = format!("nicfetch-read-{n}");
            let run = move || {
                while let Some(job) = queue.next() {
                    match job {
                        Job::Want(want) => reader.answer(*want),
                        Job::Stream(stream) => {
                            if reader.send_next(&stream) {
                                queue.put_stream(stream);
                            }
                        }
                    }
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

    /// Enqueues wants.
    ///
    /// A few demand reads of chunks in memory are handled at once if the queue is empty: handing
    /// them to a thread takes longer than reading them.
    pub(crate) fn push(&self, priority: Priority, vm: &Vm, mut wants: Vec<(u64, Want)>) {
        let few = wants.iter().map(|(cost, _)| cost).sum::<u64>() <= AT_ONCE;
        if priority == Priority::Demand && few && self.nobody_waits(priority) {
            wants.retain_mut(|(_, want)| !self.reader.answer_now(want));
            if wants.is_empty() {
                return;
            }
        }
        let many = wants.len() > 1;
        let mut state = self.queue.state.lock();
        for (cost, want) in wants {
            let want = Job::Want(Box::new(want));
            state.schedule.push(priority, &vm.identity, cost, want);
        }
        drop(state);
        if many {
            self.queue.more.notify_all();
        } else {
            self.queue.more.notify_one();
        }
    }

    /// Has the chunks of a stream sent.
    pub(crate) fn stream(&self, stream: Arc<Stream>) {
        self.queue.put_stream(stream);
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
            if let Some(job) = state.schedule.pop(|job| job.to().has_room()) {
                return Some(job);
            }
            self.more.wait(&mut state);
        }
    }

    /// Puts a stream at the end of the queue.
    fn put_stream(&self, stream: Arc<Stream>) {
        let (cost, owner) = (stream.cost(), stream.owner().clone());
        let mut state = self.state.lock();
        let job = Job::Stream(stream);
        state.schedule.push(Priority::Readahead, &owner, cost, job);
        drop(state);
        self.more.notify_one();
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
    /// Handles a want if its chunk is in memory, and returns whether it was.
    fn answer_now(&self, want: &mut Want) -> bool {
        if want.id == ZEROS || !want.to.has_room() {
            return false;
        }
        let Some(stored) = self.take(&want.id, want.priority, want.form, |store, id, class| {
            store.get_now(id, class)
        }) else {
            return false;
        };
        let counts = &self.counts;
        counts.chunks.waited(want.priority, want.asked.elapsed());
        send(counts, want, stored);
        true
    }

    fn answer(&self, mut want: Want) {
        if want.cancelled.load(Relaxed) || want.to.is_over() {
            return;
        }
        let (counts, now) = (&self.counts, Instant::now());
        let waited = now.saturating_duration_since(want.asked);
        counts.chunks.waited(want.priority, waited);
        if want.deadline.is_some_and(|deadline| deadline < now) {
            return refuse(counts, &mut want, Status::Late);
        }
        // Nobody who has the index asks for zeros.
        let stored = if want.id == ZEROS {
            None
        } else {
            self.take(&want.id, want.priority, want.form, |store, id, class| {
                store.get(id, class)
            })
        };
        let Some(stored) = stored else {
            return refuse(counts, &mut want, Status::Absent);
        };
        send(counts, &mut want, stored);
    }

    /// Sends the next chunk of a stream, and returns whether the stream continues.
    fn send_next(&self, stream: &Stream) -> bool {
        let Some((number, id)) = stream.take() else {
            stream.end();
            return false;
        };
        let client = stream.client();
        let priority = Priority::Readahead;
        let get = |store: &dyn ChunkStore, id: &ChunkId, class| store.get(id, class);
        let found = self.take(&id, priority, client.to.form(), get);
        let found = match found {
            None => Err(Status::Absent),
            Some(stored) if stored.bytes.len() > DATA_MAX => Err(Status::Failed),
            Some(stored) => Ok(stored),
        };
        let counts = &self.counts.chunks;
        match &found {
            Ok(stored) => counts.sent(priority, &client.machine, stored.bytes.len() as u64),
            Err(why) => counts.count(priority, *why),
        }
        stream.send(number, found);
        true
    }

    /// Gets a chunk from the cache in memory, or by `read`. Prefetched chunks are sent as stored:
    /// they are read once, and the client may store them in this form.
    fn take(
        &self,
        id: &ChunkId,
        priority: Priority,
        form: Form,
        read: impl Fn(&dyn ChunkStore, &ChunkId, Class) -> Option<Stored>,
    ) -> Option<Stored> {
        let class = class_of(priority);
        if class == Class::Prefetch {
            return read(&*self.store, id, class);
        }
        if let Some(hot) = self.hot.get(id, form) {
            self.store.note_use(id, class);
            return Some(hot);
        }
        let stored = read(&*self.store, id, class)?;
        self.hot.note(id, &stored, form);
        Some(stored)
    }
}

/// Responds without a chunk.
fn refuse(counts: &Counts, want: &mut Want, why: Status) {
    counts.chunks.count(want.priority, why);
    let refused = status(want.request, want.place, why);
    want.to.send(refused, want.credit.take());
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
fn send(counts: &Counts, want: &mut Want, stored: Stored) {
    if stored.bytes.len() > DATA_MAX {
        return refuse(counts, want, Status::Failed);
    }
    let bytes = stored.bytes.len() as u64;
    counts.chunks.sent(want.priority, &want.machine, bytes);
    let codec: Codec = stored.codec;
    let message = Message::Chunk {
        place: want.place,
        status: Status::Here,
        codec: codec as u8,
        raw_len: stored.raw_len,
    };
    let frame = Frame {
        request: want.request,
        message,
        data: stored.bytes,
    };
    want.to.send(frame, want.credit.take());
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
