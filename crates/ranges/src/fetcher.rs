//! Carries out what the engine decides: requests, arrivals, time.

mod bring;
mod drive;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fetch::{Config, Counts, Engine, LinkState, Peer, Priority, RequestId, Server};
use parking_lot::{Condvar, Mutex};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::jobs::{Job, JobId, Jobs, Span};
use crate::key::Key;
use crate::lane::Lane;
use crate::place::{Fault, Layout, Place, Receiver};
use crate::servers::ServerState;
use crate::wait::{Wait, Woken};

/// Threads that read responses and store what came.
const THREADS: usize = 2;

/// The bounds of a fetcher's engine. They differ from the block service's: registries have object stores behind them,
/// which may take some 100 ms to answer, and there is no other source to read from at once.
pub const CONFIG: Config = Config {
    flights: 1 << 18,
    tickets: 1 << 14,
    waiting: 1 << 18,
    promised: 0,
    in_flight_bytes: 16 << 20,
    // What a line of 25 Mbit/s and 20 ms holds: a reader waits behind it at most.
    window_floor_bytes: 64 << 10,
    window_cap_bytes: 8 << 20,
    // 1 MiB of pieces of 4 KiB.
    batch: 256,
    fill_request: Duration::from_millis(300),
    initial_rtt: Duration::from_millis(100),
    hedge_floor: Duration::from_millis(200),
    stall_floor: Duration::from_secs(10),
    stall_elsewhere: Duration::from_millis(500),
    // With the pauses of the engine between them 10 s: a restart of a registry is survived.
    retries: 10,
    // Wrong bytes are found later, by the checksums in a blob; whoever is asked next may be right.
    wrong_limit: u32::MAX,
};

/// Fetches pieces of blobs from servers that have the same blobs.
#[derive(Debug)]
pub struct Fetcher {
    inner: Arc<Inner>,
    /// Taken apart without waiting for what hangs.
    runtime: Option<Runtime>,
}

#[derive(Debug)]
struct Inner {
    handle: Handle,
    epoch: Instant,
    state: Mutex<State>,
    /// One for each peer, by its index.
    lanes: Vec<Lane>,
    /// Wakes the timer: it is to look at the clock earlier than it was.
    timer: Notify,
    /// Notified when a piece was published.
    published: Condvar,
    /// Notified when the last server may be asked again.
    origin: Condvar,
}

#[derive(Debug)]
struct State {
    engine: Engine<Key>,
    servers: Vec<ServerState>,
    blobs: HashMap<u32, Known>,
    last_blob: u32,
    jobs: Jobs,
    /// Requests that are under way: their tasks, and how many have not ended.
    requests: HashMap<RequestId, (Vec<AbortHandle>, usize)>,
    /// What the last failed request of all said.
    fault: Option<Fault>,
    /// When the timer looks at the clock next.
    wake: Option<Duration>,
}

impl State {
    /// Returns what a server is called.
    fn name_of(&self, server: Server) -> String {
        let mut blobs = self.blobs.values();
        let place = blobs.find_map(|blob| blob.places.get(usize::from(server.0)));
        place.map(|place| place.name()).unwrap_or_default()
    }
}

/// A blob that somebody has open.
struct Known {
    layout: Layout,
    /// At each server.
    places: Vec<Arc<dyn Place>>,
    receiver: Arc<dyn Receiver>,
    /// How many pieces are being published.
    publishing: usize,
}

impl std::fmt::Debug for Known {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Known")
            .field("layout", &self.layout)
            .finish_non_exhaustive()
    }
}

impl Fetcher {
    /// Returns a fetcher for so many servers, of which each is asked only for what those before it do not bring.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start(servers: usize) -> io::Result<Arc<Self>> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("ranges")
            .enable_all()
            .build()?;
        let mut engine = Engine::new(CONFIG);
        let numbers = (0..u16::MAX).take(servers);
        let added = numbers.map(|number| ServerState::add(&mut engine, number, Duration::ZERO));
        let servers: Vec<_> = added.collect();
        let inner = Arc::new(Inner {
            handle: runtime.handle().clone(),
            epoch: Instant::now(),
            lanes: servers
                .iter()
                .flat_map(|server| server.peers.map(|_| Lane::new()))
                .collect(),
            state: Mutex::new(State {
                engine,
                servers,
                blobs: HashMap::new(),
                last_blob: 0,
                jobs: Jobs::default(),
                requests: HashMap::new(),
                fault: None,
                wake: None,
            }),
            timer: Notify::new(),
            published: Condvar::new(),
            origin: Condvar::new(),
        });
        runtime.spawn(drive::keep_time(Arc::downgrade(&inner)));
        Ok(Arc::new(Self {
            inner,
            runtime: Some(runtime),
        }))
    }

    /// Adds a blob: where it is at each server, in their order, and who receives it.
    #[must_use]
    pub fn add(
        self: &Arc<Self>,
        layout: Layout,
        places: Vec<Arc<dyn Place>>,
        receiver: Arc<dyn Receiver>,
    ) -> Blob {
        let mut state = self.inner.state.lock();
        state.last_blob += 1;
        let number = state.last_blob;
        let blob = Known {
            layout,
            places,
            receiver,
            publishing: 0,
        };
        state.blobs.insert(number, blob);
        drop(state);
        Blob {
            fetcher: Arc::clone(self),
            number,
        }
    }

    /// Fetches pieces in order, without a waiting thread, until the feed is dropped. One that is demanded ends with the
    /// first piece that cannot be fetched.
    #[must_use]
    pub fn feed(self: &Arc<Self>, pieces: Vec<Span>, priority: Priority) -> Feed {
        let job = Job::new(priority, pieces.into());
        Feed {
            fetcher: Arc::clone(self),
            id: self.inner.begin(job),
        }
    }

    /// Returns what the engine counted.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.inner.state.lock().engine.counts()
    }

    /// Returns the measured path to a server, for readers who wait.
    #[must_use]
    pub fn link(&self, server: Server) -> Option<LinkState> {
        let state = self.inner.state.lock();
        let server = state.servers.get(usize::from(server.0))?;
        Some(state.engine.link(server.peers[1]))
    }
}

impl Drop for Fetcher {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// A blob of a fetcher. Dropping it forgets the blob: its receiver is not called any more then.
#[derive(Debug)]
pub struct Blob {
    fetcher: Arc<Fetcher>,
    number: u32,
}

impl Blob {
    /// Returns its number, for [`Span`].
    #[must_use]
    pub const fn number(&self) -> u32 {
        self.number
    }

    /// Returns its fetcher.
    #[must_use]
    pub const fn fetcher(&self) -> &Arc<Fetcher> {
        &self.fetcher
    }

    /// Fetches pieces that a reader waits for, and returns those that were not here, with their content.
    ///
    /// # Errors
    /// If one could not be fetched, or the wait was over.
    pub fn read(&self, pieces: &[Range<u32>], wait: &Wait) -> io::Result<Vec<(u32, Arc<[u8]>)>> {
        if wait.is_over() {
            return Err(self.late(pieces, wait));
        }
        let span = |pieces: &Range<u32>| Span {
            blob: self.number,
            pieces: pieces.clone(),
        };
        let spans: VecDeque<_> = pieces.iter().map(span).collect();
        let inner = &self.fetcher.inner;
        let id = inner.begin(Job::reader(spans));
        let job = inner.wait(id, wait);
        if let Some(fault) = job.as_ref().and_then(|job| job.fault.clone()) {
            return Err(fault.into());
        }
        match job {
            Some(job) if job.is_done() => Ok(job
                .arrived
                .into_iter()
                .map(|(key, bytes)| (key.piece, bytes))
                .collect()),
            _ => Err(self.late(pieces, wait)),
        }
    }

    /// The error of a reader whose wait was over: what was awaited, and from whom.
    fn late(&self, pieces: &[Range<u32>], wait: &Wait) -> io::Error {
        let state = self.fetcher.inner.state.lock();
        let (mut servers, mut bytes) = (String::new(), 0..0);
        if let (Some(blob), Some(first)) = (state.blobs.get(&self.number), pieces.first()) {
            let names: Vec<_> = blob.places.iter().map(|place| place.name()).collect();
            servers = names.join(" and ");
            bytes = blob.layout.bytes(first);
        }
        let why = state.fault.as_ref().map(|fault| format!(": {}", fault.why));
        let why = why.unwrap_or_default();
        let (kind, when) = match wait.is_ended() {
            // Not `Interrupted`: that would be tried again.
            true => (io::ErrorKind::ConnectionAborted, "before the device ended"),
            false => (io::ErrorKind::TimedOut, "in time"),
        };
        let last = bytes.end.saturating_sub(1);
        let why = format!(
            "bytes {} to {last} of it did not come from {servers} {when}{why}",
            bytes.start
        );
        io::Error::new(kind, why)
    }

    /// Waits until the last server, which is asked for what all before it do not bring, can be asked again; returns
    /// `false` if it can be, and when the wait is over.
    #[must_use]
    pub fn wait_for_origin(&self, wait: &Wait) -> bool {
        let inner = &self.fetcher.inner;
        let _woken = inner.woken(wait);
        let mut state = inner.state.lock();
        let is_away = |state: &State| state.servers.last().is_some_and(|origin| origin.returns);
        let was_away = is_away(&state);
        while is_away(&state) {
            if wait.is_over() {
                return false;
            }
            inner.origin.wait_until(&mut state, wait.deadline());
        }
        was_away
    }

    /// Notes that pieces from a server turned out to be wrong: others are asked first, for a while.
    pub fn was_wrong(&self, server: Server) {
        let inner = &self.fetcher.inner;
        let now = inner.now();
        let mut state = inner.state.lock();
        if let Some(server) = state.servers.get(usize::from(server.0)) {
            let peer = server.peers[0];
            state.engine.on_wrong(now, peer);
            inner.act(&mut state, now, &[]);
        }
    }
}

impl Drop for Blob {
    fn drop(&mut self) {
        let inner = &self.fetcher.inner;
        let mut state = inner.state.lock();
        // What is being stored: as long as a local disk takes.
        while state
            .blobs
            .get(&self.number)
            .is_some_and(|known| known.publishing > 0)
        {
            inner.published.wait(&mut state);
        }
        let removed = state.blobs.remove(&self.number);
        drop(state);
        // Without the lock: it may be the last owner of its receiver.
        drop(removed);
    }
}

/// Pieces that are fetched in the background. Dropping it ends that.
#[derive(Debug)]
pub struct Feed {
    fetcher: Arc<Fetcher>,
    id: JobId,
}

impl Feed {
    /// Returns whether nothing more comes.
    #[must_use]
    pub fn is_done(&self) -> bool {
        let state = self.fetcher.inner.state.lock();
        let job = state.jobs.jobs.get(&self.id);
        job.is_none_or(Job::is_done)
    }

    /// Returns whether all of it was fetched, or could not be, and it was not stopped before.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        let state = self.fetcher.inner.state.lock();
        let job = state.jobs.jobs.get(&self.id);
        job.is_some_and(|job| job.open == 0 && job.rest.is_empty())
    }

    /// Returns why something could not be fetched.
    #[must_use]
    pub fn fault(&self) -> Option<Fault> {
        let state = self.fetcher.inner.state.lock();
        state.jobs.jobs.get(&self.id)?.fault.clone()
    }

    /// Waits until nothing more comes, or [`stop`](Self::stop) is called.
    pub fn wait(&self) {
        let mut state = self.fetcher.inner.state.lock();
        while let Some(job) = state.jobs.jobs.get(&self.id)
            && !job.is_done()
        {
            let ended = Arc::clone(&job.ended);
            ended.thread.wait(&mut state);
        }
    }

    /// The same for a task.
    pub async fn ended(&self) {
        loop {
            let ended = {
                let state = self.fetcher.inner.state.lock();
                match state.jobs.jobs.get(&self.id) {
                    Some(job) if !job.is_done() => Arc::clone(&job.ended),
                    _ => return,
                }
            };
            let told = ended.tasks.notified();
            let mut told = std::pin::pin!(told);
            told.as_mut().enable();
            // It may have ended before somebody waited.
            if self.is_done() {
                return;
            }
            told.await;
        }
    }

    /// Ends it.
    pub fn stop(&self) {
        self.fetcher.inner.stop(self.id);
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.fetcher.inner.remove(self.id);
    }
}

impl Inner {
    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    /// Has those who wait look at their deadline when it comes nearer, until the result is dropped.
    fn woken<'a>(self: &Arc<Self>, wait: &'a Wait) -> Woken<'a> {
        let inner = Arc::downgrade(self);
        wait.woken(move || {
            if let Some(inner) = inner.upgrade() {
                let state = inner.state.lock();
                for job in state.jobs.jobs.values() {
                    job.ended.thread.notify_all();
                }
                inner.origin.notify_all();
            }
        })
    }

    fn server_of(&self, peer: Peer) -> Server {
        // Two peers each, in order.
        Server(u16::try_from(peer.index() / 2).unwrap_or(u16::MAX))
    }
}
