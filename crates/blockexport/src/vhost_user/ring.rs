//! One queue of a device while it runs: its thread, and its requests in flight.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use blocks::Durability;
use parking_lot::Mutex;
use virtio_queue::{Error as QueueError, Queue, QueueOwnedT as _, QueueT as _};
use vm_memory::{Bytes as _, GuestAddress, GuestMemoryError, GuestMemoryMmap, GuestRegionMmap};

use super::inflight::Inflight;
use super::request::{Chain, Served};
use crate::accept::{Accepted, Stop};
use crate::crew;

/// Where the ring of requests that are done again is, for the queue's reader. No guest has memory there.
const AGAIN_ADDRESS: GuestAddress = GuestAddress(1 << 62);

/// What a queue is when it starts.
pub(super) struct Start {
    pub(super) memory: Arc<GuestMemoryMmap>,
    pub(super) queue: Queue,
    pub(super) inflight: Option<Inflight>,
    /// Written by the guest when there are requests.
    pub(super) kick: File,
    pub(super) call: Arc<Call>,
    pub(super) durability: Durability,
    pub(super) threads: usize,
}

/// How the guest is notified of completed requests; the front end may change it at any time.
#[derive(Debug, Default)]
pub(super) struct Call(Mutex<Option<File>>);

impl Call {
    /// Replaces the descriptor, and signals it once: what the one before did not bring is not lost.
    pub(super) fn set(&self, file: Option<File>) {
        *self.0.lock() = file;
        self.signal();
    }

    fn signal(&self) {
        // An event counter takes this without waiting, unless it is about to overflow: then the
        // guest has been told often enough.
        if let Some(mut file) = self.0.lock().as_ref()
            && let Err(error) = file.write_all(&1_u64.to_le_bytes())
        {
            log::debug!("a guest cannot be told that requests are done: {error}");
        }
    }
}

/// A queue whose requests are served.
#[derive(Debug)]
pub(super) struct Ring {
    shared: Arc<Shared>,
    stop: Option<Stop>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    call: Arc<Call>,
}

#[derive(Debug)]
struct State {
    memory: Arc<GuestMemoryMmap>,
    queue: Queue,
    inflight: Option<Inflight>,
    /// The requests in flight of the server before.
    again: VecDeque<Chain>,
}

/// Why a queue cannot be served (any more): the guest's memory or rings are invalid.
#[derive(Debug, thiserror::Error)]
pub(super) enum RingError {
    #[error("the queue is invalid")]
    Queue(#[from] QueueError),
    #[error("the memory of the queue cannot be used")]
    Memory(#[from] GuestMemoryError),
    #[error("the queue does not lie in the guest's memory")]
    Outside,
    #[error("a thread for the queue")]
    Thread(#[from] io::Error),
}

impl Ring {
    pub(super) fn start(start: Start, served: Arc<Served>) -> Result<Self, RingError> {
        let Start {
            memory,
            mut queue,
            mut inflight,
            kick,
            call,
            durability,
            threads,
        } = start;
        queue.set_ready(true);
        if !queue.is_valid(&*memory) {
            return Err(RingError::Outside);
        }
        let used = queue
            .used_idx(&*memory, std::sync::atomic::Ordering::Acquire)?
            .0;
        queue.set_next_used(used);
        let mut again = VecDeque::new();
        if let Some(inflight) = &mut inflight
            && let Some(heads) = inflight.resume(used)?
        {
            // Each request that was taken is either done or in flight.
            let taken = u16::try_from(heads.len()).unwrap_or(u16::MAX);
            queue.set_next_avail(used.wrapping_add(taken));
            again = chains(&memory, &queue, &heads)?;
            log::info!(
                "{} requests were in flight: they are done again",
                again.len()
            );
        }
        let state = State {
            memory,
            queue,
            inflight,
            again,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            call,
        });
        let (stop, stopped) = Stop::new()?;
        let worker = Arc::clone(&shared);
        let builder = thread::Builder::new().name("vhost-queue".to_owned());
        let thread = builder.spawn(move || {
            let next = || worker.next(&kick, &stopped);
            crew::run("vhost-queue", threads, next, |chain: Chain| {
                let head = chain.head_index();
                let memory = worker.memory();
                let written = served.answer(&memory, chain, durability);
                if let Err(error) = worker.done(head, written) {
                    log::error!("a request cannot be ended: {error}");
                }
            });
            // What the server before may have done without telling.
            worker.call.signal();
        })?;
        Ok(Self {
            shared,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Replaces the guest's memory: requests in flight keep using the old one.
    pub(super) fn set_memory(&self, memory: &Arc<GuestMemoryMmap>) {
        self.shared.state.lock().memory = Arc::clone(memory);
    }

    /// Ends it when all taken requests are done, and returns where the next server continues.
    pub(super) fn stop(mut self) -> u16 {
        self.end();
        self.shared.state.lock().queue.next_avail()
    }

    fn end(&mut self) {
        drop(self.stop.take());
        if self
            .thread
            .take()
            .is_some_and(|thread| thread.join().is_err())
        {
            log::error!("the thread of a queue panicked");
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    fn memory(&self) -> Arc<GuestMemoryMmap> {
        Arc::clone(&self.state.lock().memory)
    }

    /// Waits for the next request; `None` when the queue is stopped or broken.
    fn next(&self, mut kick: &File, stopped: &Accepted) -> Option<Chain> {
        loop {
            let taken = self.state.lock().take();
            match taken {
                Ok(Some(chain)) => return Some(chain),
                Ok(None) => {}
                Err(error) => {
                    log::error!("a queue is not served any more: {error}");
                    return None;
                }
            }
            if !stopped.wait(kick) {
                return None;
            }
            let mut count = [0; 8];
            // Somebody else may have read it meanwhile: then there is nothing to wait for either.
            if let Err(error) = kick.read(&mut count)
                && error.kind() != io::ErrorKind::WouldBlock
            {
                log::error!("a queue's events cannot be read: {error}");
                return None;
            }
        }
    }

    /// Tells the guest that a request is done.
    fn done(&self, head: u16, written: u32) -> Result<(), RingError> {
        let mut state = self.state.lock();
        let State {
            memory,
            queue,
            inflight,
            ..
        } = &mut *state;
        if let Some(inflight) = inflight {
            inflight.finish(head)?;
        }
        queue.add_used(&**memory, head, written)?;
        if let Some(inflight) = inflight {
            inflight.finished(head, queue.next_used())?;
        }
        let told = queue.needs_notification(&**memory)?;
        drop(state);
        if told {
            self.call.signal();
        }
        Ok(())
    }
}

impl State {
    /// Takes the next request from the ring; if there is none, the guest will signal the next one.
    fn take(&mut self) -> Result<Option<Chain>, RingError> {
        if let Some(chain) = self.again.pop_front() {
            return Ok(Some(chain));
        }
        loop {
            let memory = &*self.memory;
            self.queue.disable_notification(memory)?;
            let chain = self.queue.iter(Arc::clone(&self.memory))?.next();
            if let Some(chain) = chain {
                let head = chain.head_index();
                if head >= self.queue.size() {
                    return Err(QueueError::InvalidDescriptorIndex.into());
                }
                if let Some(inflight) = &mut self.inflight {
                    inflight.begin(head)?;
                }
                return Ok(Some(chain));
            }
            if !self.queue.enable_notification(memory)? {
                return Ok(None);
            }
        }
    }
}

/// Returns the chains that begin with these descriptors. The queue's reader takes them from a ring of
/// available ones: so it gets one, in memory of its own beside the guest's.
fn chains(
    memory: &Arc<GuestMemoryMmap>,
    queue: &Queue,
    heads: &[u16],
) -> Result<VecDeque<Chain>, RingError> {
    if heads.is_empty() {
        return Ok(VecDeque::new());
    }
    let size = 4 + 2 * usize::from(queue.size()) + 2;
    let ring = GuestRegionMmap::<()>::from_range(AGAIN_ADDRESS, size, None);
    let ring = ring.map_err(|_| RingError::Outside)?;
    let with_ring = memory.insert_region(Arc::new(ring));
    let with_ring = Arc::new(with_ring.map_err(|_| RingError::Outside)?);
    let count = u16::try_from(heads.len()).map_err(|_| RingError::Outside)?;
    let bytes: Vec<u8> = [0, count]
        .iter()
        .chain(heads)
        .flat_map(|n| n.to_le_bytes())
        .collect();
    with_ring.write_slice(&bytes, AGAIN_ADDRESS)?;
    let mut again = Queue::new(queue.max_size())?;
    again.try_set_size(queue.size())?;
    again.try_set_desc_table_address(GuestAddress(queue.desc_table()))?;
    again.try_set_avail_ring_address(AGAIN_ADDRESS)?;
    again.set_ready(true);
    Ok(again.iter(with_ring)?.collect())
}
