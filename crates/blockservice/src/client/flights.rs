//! The chunks of one source that are being fetched: one flight for each, for all its readers (singleflight).
//!
//! The engine of the crate `fetch` decides what is asked for where and when; here its decisions are
//! carried out on the connections, what comes is verified, once, and those who wait are told.

mod arrived;
mod beside;
mod hear;
mod kept;
mod lies;
mod opening;
mod plan;
mod services;
mod wait;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use fetch::{Action, Config, Engine, Peer, Piece, Priority, Server, StreamId, Ticket, Verdict};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::sleep;

use super::Shared;
use super::connection::Reads;
use super::connections::Connections;
use super::driver::Driver;
use super::place::Lane;
use super::read_ahead::{Line, Next, ReadAhead};
use super::registered::{Receiver as _, RegisteredSource};
use crate::wire;
use beside::Doubts;
use blocks::ContentId;
use chunks::index::{Index, ZEROS};
use chunks::links::Links;
use chunks::{ChunkId, ChunkStore, Class};
use kept::{Found, Kept, Room};
use plan::OpenStream;
use wait::Waiting;

pub(super) use arrived::Arrived;
pub(super) use wait::{Ahead, Filling};

use super::Chunk;

/// A chunk for the local store.
#[derive(Debug)]
pub(super) enum Keepable {
    /// As it came; it was verified.
    Arrived(Arc<Arrived>),
    /// Its content.
    Raw(ChunkId, Chunk, Class),
}

/// The window of a service that has not sent its own yet.
const WINDOW: u64 = 16 << 20;
/// Chunks have about so many times the bytes that are sent of them.
const RAW_TO_SENT: u64 = 2;
/// How long the timer sleeps when nothing is expected.
const IDLE: Duration = Duration::from_secs(3600);
/// Between two looks at the clock, at least.
const TICK: Duration = Duration::from_millis(1);

/// Counts of what came and did not.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) chunks: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) absent: AtomicU64,
    pub(super) late: AtomicU64,
    pub(super) away: AtomicU64,
    pub(super) lies: AtomicU64,
    pub(super) streams: AtomicU64,
}

/// The store of chunks on this machine, once there is one.
#[derive(Default)]
struct LocalStore(OnceLock<Arc<dyn ChunkStore>>);

impl std::fmt::Debug for LocalStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("LocalStore")
            .field(&self.0.get().is_some())
            .finish()
    }
}

/// The flights of one source.
#[derive(Debug)]
pub(super) struct Flights {
    driver: Arc<Driver>,
    shared: Arc<Shared>,
    connections: Connections,
    source: Arc<RegisteredSource>,
    index: Arc<Index>,
    /// The times of the engine are counted from here.
    epoch: Instant,
    state: Mutex<State>,
    /// Wakes the timer: it is to look at the clock earlier than it was.
    timer: Arc<Notify>,
    read_ahead: ReadAhead,
    /// Has chunks that need not be requested.
    local: LocalStore,
    /// Reasons to avoid the service, for readers that have another source.
    doubts: Mutex<Doubts>,
    /// Chunks that came before anybody read them.
    early: AtomicU64,
    pub(super) counters: Counters,
}

#[derive(Debug)]
struct State {
    engine: Engine<u32>,
    /// Of each connection.
    peers: Vec<Peer>,
    up: Vec<bool>,
    tickets: HashMap<Ticket, Waiting>,
    kept: Kept,
    /// The plan of the source, once it is known.
    plan: Option<ContentId>,
    /// The streams that are going on.
    streams: HashMap<StreamId, OpenStream>,
    /// Until when a plan that was streamed says what is read.
    planned_until: Option<Duration>,
    /// When the timer looks at the clock next.
    wake: Option<Duration>,
    /// The priority of the chunk that arrived last, of those that wait for it.
    wanted: Option<Priority>,
    /// Writes received chunks to the local store.
    keeper: Option<SyncSender<Keepable>>,
}

impl Flights {
    /// Returns the flights of a source whose index is known, and registers them as receiver.
    pub(super) fn new(
        driver: &Arc<Driver>,
        shared: &Arc<Shared>,
        connections: &Connections,
        source: &Arc<RegisteredSource>,
        index: Arc<Index>,
    ) -> Arc<Self> {
        let patience = &shared.config.patience;
        let window = match shared.window.load(Relaxed) {
            0 => WINDOW,
            window => window,
        };
        let mut engine = Engine::new(Config {
            in_flight_bytes: window,
            window_cap_bytes: window,
            hedge_floor: patience.hedge,
            stall_floor: patience.give_up,
            // A chunk that is wrong is read elsewhere; the service may have been mended by the next.
            wrong_limit: u32::MAX,
            ..Config::default()
        });
        let peer = |connection: &Arc<super::connection::Connection>| {
            let lane = match connection.lane() {
                Lane::Demand => fetch::Lane::Demand,
                Lane::Background => fetch::Lane::Background,
            };
            let server = u16::try_from(connection.service()).unwrap_or(u16::MAX);
            engine.add_peer(Server(server), lane)
        };
        let peers: Vec<_> = connections.iter().map(peer).collect();
        let flights = Arc::new(Self {
            driver: Arc::clone(driver),
            shared: Arc::clone(shared),
            connections: connections.clone(),
            source: Arc::clone(source),
            index,
            epoch: Instant::now(),
            state: Mutex::new(State {
                engine,
                up: vec![false; peers.len()],
                peers,
                tickets: HashMap::new(),
                kept: Kept::new(),
                plan: None,
                streams: HashMap::new(),
                planned_until: None,
                wake: None,
                wanted: None,
                keeper: None,
            }),
            timer: Arc::new(Notify::new()),
            read_ahead: ReadAhead::default(),
            local: LocalStore::default(),
            doubts: Mutex::new(Doubts::none(patience.doubt)),
            early: AtomicU64::new(0),
            counters: Counters::default(),
        });
        let told: Weak<Self> = Arc::downgrade(&flights);
        source.tell(told.clone());
        let numbers = connections.iter().map(|connection| connection.number());
        numbers.for_each(|number| flights.link_changed(number));
        let _task = driver.spawn(keep_time(told, Arc::clone(&flights.timer)));
        flights
    }

    pub(super) const fn index(&self) -> &Arc<Index> {
        &self.index
    }

    pub(super) const fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Returns the name of the source.
    pub(super) fn name(&self) -> String {
        String::from_utf8_lossy(&self.source.name).into_owned()
    }

    /// Returns whether a read would be requested now.
    pub(super) fn is_there(&self) -> bool {
        self.connections
            .iter()
            .any(|connection| connection.responds())
    }

    /// Returns whether the chunks of a plan are on their way.
    pub(super) fn is_streamed(&self) -> bool {
        !self.state.lock().streams.is_empty()
    }

    /// Returns what the engine counted.
    pub(super) fn engine_counts(&self) -> fetch::Counts {
        self.state.lock().engine.counts()
    }

    /// Notes that chunks are read, and fetches those that will probably be read next.
    pub(super) fn touched(&self, numbers: &[u32]) {
        let Some(line) = self.line() else {
            return;
        };
        let content = |number| self.peek(number);
        let next = self
            .read_ahead
            .touched(&self.index, line, numbers, &content);
        self.want_next(&next);
    }

    /// Notes what programs are linked with.
    pub(super) fn know_links(&self, links: Links) {
        self.read_ahead.know_links(links);
    }

    /// Fetches what the first program will be loaded with.
    pub(super) fn expect_programs(&self) {
        if let Some(line) = self.line() {
            let content = |number| self.peek(number);
            let next = self.read_ahead.begin(&self.index, line, &content);
            self.want_next(&next);
        }
    }

    /// Has chunks fetched that are probably read next.
    fn want_next(&self, next: &Next) {
        for (numbers, priority) in [(&next.soon, Priority::Plan), (&next.later, Priority::Fill)] {
            let far: Vec<_> = numbers
                .iter()
                .copied()
                .filter(|n| !self.is_local(*n))
                .collect();
            if !far.is_empty() {
                let _it_ends_by_itself = self.want_ahead(&far, priority);
            }
        }
    }

    /// Returns what is known of the line; `None` as long as there is none, or a plan says what is read.
    fn line(&self) -> Option<Line> {
        let connections = self.connections.iter();
        let round_trip = connections.filter_map(|c| c.round_trip()).min()?;
        let state = self.state.lock();
        let peers = state.peers.iter();
        let rate = peers.map(|peer| state.engine.link(*peer).rate).max();
        let rate = rate.unwrap_or(0);
        let is_planned = state.planned_until.is_some_and(|until| self.now() < until);
        (state.streams.is_empty() && !is_planned).then_some(Line { round_trip, rate })
    }

    /// Requests nothing ahead from now on that `local` has.
    pub(super) fn spare(&self, local: Arc<dyn ChunkStore>) {
        // A source has one local store.
        let _first = self.local.0.set(local);
    }

    fn is_local(&self, number: u32) -> bool {
        let local = self.local.0.get();
        local.is_some_and(|local| {
            self.index
                .chunk(number)
                .is_some_and(|id| local.contains(&id))
        })
    }

    /// Stores received chunks.
    pub(super) fn keep_with(&self, keeper: Option<SyncSender<Keepable>>) {
        self.state.lock().keeper = keeper;
    }

    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    fn piece(&self, number: u32) -> Option<Piece<u32>> {
        let bytes = self.index.place(number)?.len;
        Some(Piece { key: number, bytes })
    }

    /// Returns a chunk that needs no request: one of zeros.
    fn zeros(&self, number: u32) -> Option<Chunk> {
        let place = self.index.place(number)?;
        let is_zeros = self.index.chunk(number) == Some(ZEROS);
        is_zeros.then(|| Arc::new(vec![0; place.len as usize]))
    }

    /// Carries out what the engine decides. `landed` is what came just now.
    fn act(&self, state: &mut State, now: Duration, landed: Option<(u32, &Arc<Arrived>)>) {
        while let Some(action) = state.engine.poll(now) {
            match action {
                Action::Request {
                    peer,
                    request,
                    pieces,
                    priority,
                } => {
                    let connection = self.connections.get(peer.index());
                    connection.read(Reads {
                        source: Arc::clone(&self.source),
                        request,
                        priority: on_the_wire(priority),
                        form: connection.read_form(),
                        deadline: self.shared.config.patience.transfer,
                        chunks: pieces.iter().map(|piece| piece.key).collect(),
                    });
                }
                Action::Skip { peer, stream, keys } => {
                    self.connections.get(peer.index()).skip(stream, keys);
                }
                Action::Promote { peer, stream, keys } => {
                    self.connections.get(peer.index()).promote(stream, keys);
                }
                Action::Resume {
                    peer,
                    stream,
                    first,
                } => self.resume(state, peer, stream, first),
                Action::Cancel { peer, request } => {
                    let connection = self.connections.get(peer.index());
                    connection.cancel(self.source.number, request);
                }
                Action::EndStream { peer, stream } => {
                    state.streams.remove(&stream);
                    self.connections.get(peer.index()).cancel_stream(stream);
                }
                Action::Stalled { peer } => self.connections.get(peer.index()).fell_silent(),
                Action::Done {
                    ticket,
                    key,
                    verdict,
                } => self.done(state, ticket, key, verdict, landed),
            }
        }
        let next = state.engine.next_wake();
        if next.is_some_and(|next| state.wake.is_none_or(|wake| next < wake)) {
            state.wake = next;
            self.timer.notify_one();
        }
    }

    /// Tells a ticket how one of its chunks ended.
    fn done(
        &self,
        state: &mut State,
        ticket: Ticket,
        key: u32,
        verdict: Verdict,
        landed: Option<(u32, &Arc<Arrived>)>,
    ) {
        let counters = &self.counters;
        let counter = match verdict {
            Verdict::Here | Verdict::Wrong => None,
            Verdict::Absent | Verdict::Failed => Some(&counters.absent),
            Verdict::Away if !self.connections.iter().any(|c| c.is_up()) => Some(&counters.away),
            Verdict::Away | Verdict::Late | Verdict::Busy => Some(&counters.late),
        };
        if let Some(counter) = counter {
            counter.fetch_add(1, Relaxed);
        }
        let arrived = landed.filter(|(number, _)| *number == key);
        let arrived = arrived.filter(|_| verdict == Verdict::Here);
        let Some(waiting) = state.tickets.get_mut(&ticket) else {
            return;
        };
        if arrived.is_some() {
            state.wanted = state.wanted.max(Some(waiting.priority));
        }
        if waiting.end(key, arrived.map(|(_, arrived)| arrived)) {
            state.tickets.remove(&ticket);
        }
    }

    /// Keeps a chunk that has landed in memory, for who reads it next.
    fn keep(&self, state: &mut State, now: Duration, number: u32, arrived: &Arc<Arrived>) {
        match state.wanted {
            Some(Priority::Demand) => {
                let packed = Found::Packed(Arc::clone(arrived));
                state.kept.add_read(number, packed);
            }
            Some(Priority::Plan) | None => {
                let room = state.kept.add_ahead(now, number, Arc::clone(arrived));
                if room == Room::Full {
                    // It comes faster than it is read: the rest is asked for when it is needed.
                    for (stream, of) in &state.streams {
                        self.connections.get(of.connection).cancel_stream(*stream);
                    }
                }
            }
            // Who fills a store has it, and puts it there.
            Some(Priority::Fill) => {}
        }
    }

    /// Lets time pass, and returns how long nothing is to be done.
    fn tick(&self) -> Duration {
        let now = self.now();
        let mut state = self.state.lock();
        // The timer is awake: nobody has to wake it.
        state.wake = Some(Duration::ZERO);
        self.act(&mut state, now, None);
        let expires = state.kept.expire(now);
        let wake = state.engine.next_wake().into_iter().chain(expires).min();
        state.wake = wake;
        let wait = wake.map_or(IDLE, |wake| wake.saturating_sub(now));
        wait.max(TICK)
    }
}

impl Drop for Flights {
    fn drop(&mut self) {
        // It sees that there is nothing left to time.
        self.timer.notify_one();
    }
}

/// Lets time pass for the flights of a source until they are gone.
async fn keep_time(flights: Weak<Flights>, timer: Arc<Notify>) {
    loop {
        let Some(wait) = flights.upgrade().map(|flights| flights.tick()) else {
            return;
        };
        tokio::select! {
            () = sleep(wait) => {}
            () = timer.notified() => {}
        }
    }
}

const fn on_the_wire(priority: Priority) -> wire::Priority {
    match priority {
        Priority::Demand => wire::Priority::Demand,
        Priority::Plan => wire::Priority::Readahead,
        Priority::Fill => wire::Priority::Prefetch,
    }
}
