//! A connection as its users see it: each request gets a response, or an error if no response will
//! come.

mod line;
mod requests;
mod starting;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use fetch::{RequestId, StreamId, Via};
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot};

use super::Shared;
use super::place::{Lane, Place};
use super::registered::{Receiver, RegisteredSource, Reply};
use crate::wire::versions::{PROMOTE_SINCE, RESUME_SINCE};
use crate::wire::{ErrorCode, Frame, Message, Priority, ReadForm};
use blocks::ContentId;
use serving::transport::Address;
use starting::{Progress, Starting};

pub(super) use starting::{StartAnswer, StartRefused, StartRequest};

/// A connection to the service, which is re-established when it is lost.
#[derive(Debug)]
pub(crate) struct Connection {
    place: Place,
    pub(super) shared: Arc<Shared>,
    commands: mpsc::UnboundedSender<Command>,
    state: Mutex<ConnectionState>,
    /// STARTs that were not sent yet; they wait for a connection.
    starts: Mutex<Vec<StartRequest>>,
    up: AtomicBool,
    /// Whether the handshake waits for the challenge in any case.
    waits: AtomicBool,
    /// Whether a response is overdue, and no other data arrived.
    silent: AtomicBool,
    /// The shortest round trip of handshakes, in microseconds; 0 before the first.
    round_trip_us: AtomicU64,
    /// The highest rate of what came for a START, in bytes per second; 0 before the first.
    rate: AtomicU64,
    /// The rate at which data comes of late once a frame has begun, in bytes per second; 0 before it is known.
    brings: AtomicU64,
    /// Requests that the connection is re-established.
    pub(super) reset: Notify,
    changed: Notify,
}

#[derive(Debug, Default)]
struct ConnectionState {
    /// The version of the protocol.
    version: u16,
    next: u64,
    pending: HashMap<u64, Pending>,
    /// By number of the source: its handle in this connection, and the index that it is of.
    handles: HashMap<u64, (u32, ContentId)>,
    /// By number of a source that is being opened: the reads that wait for it.
    opening: HashMap<u64, Vec<Reads>>,
    heard: Option<Instant>,
}

/// A message to send.
#[derive(Debug)]
pub(super) enum Command {
    Ask(Message, Vec<u8>, oneshot::Sender<Frame>),
    Open(Arc<RegisteredSource>),
    /// Send the STARTs that wait.
    Start,
    Read(Reads),
    /// Cancel a READ: the number of its source, and the request.
    Cancel(u64, RequestId),
    /// Do not send these chunks of a stream.
    Skip(StreamId, Vec<u32>),
    /// Send these chunks of a stream first.
    Promote(StreamId, Vec<u32>),
    /// End a stream.
    CancelStream(StreamId),
    /// End the stream of a request that nobody receives.
    CancelStart(u64),
}

/// Wanted chunks of one source: one READ.
#[derive(Debug)]
pub(super) struct Reads {
    pub(super) source: Arc<RegisteredSource>,
    pub(super) request: RequestId,
    pub(super) priority: Priority,
    /// As the service chooses, if it is too old to be told.
    pub(super) form: ReadForm,
    /// The service may drop the request after this time.
    pub(super) deadline: Duration,
    pub(super) chunks: Vec<u32>,
}

#[derive(Debug)]
enum Pending {
    Answer(oneshot::Sender<Frame>),
    Opened(Arc<RegisteredSource>),
    Start(Box<Starting>),
    Chunks(OpenRead),
    Stream(StreamId, Weak<dyn Receiver>),
}

/// A READ that is not answered yet.
#[derive(Debug)]
struct OpenRead {
    source: Arc<RegisteredSource>,
    request: RequestId,
    /// By place: the chunk, until it is answered.
    chunks: Vec<Option<u32>>,
}

impl Connection {
    pub(super) fn new(
        place: Place,
        shared: Arc<Shared>,
    ) -> (Arc<Self>, mpsc::UnboundedReceiver<Command>) {
        let (commands, received) = mpsc::unbounded_channel();
        let connection = Self {
            place,
            shared,
            commands,
            state: Mutex::default(),
            starts: Mutex::default(),
            up: AtomicBool::new(false),
            waits: AtomicBool::new(false),
            silent: AtomicBool::new(false),
            round_trip_us: AtomicU64::new(0),
            rate: AtomicU64::new(0),
            brings: AtomicU64::new(0),
            reset: Notify::new(),
            changed: Notify::new(),
        };
        (Arc::new(connection), received)
    }

    /// Returns where its service listens.
    pub(super) const fn address(&self) -> &Address {
        &self.place.address
    }

    /// Returns the number of its service.
    pub(super) const fn service(&self) -> usize {
        self.place.service
    }

    pub(super) const fn lane(&self) -> Lane {
        self.place.lane
    }

    /// Returns its number among all of the client.
    pub(super) const fn number(&self) -> usize {
        self.place.number
    }

    pub(super) fn is_up(&self) -> bool {
        self.up.load(Relaxed)
    }

    /// Returns whether requests are waited for: it is up, and not silent.
    pub(super) fn responds(&self) -> bool {
        self.is_up() && !self.is_silent()
    }

    pub(super) fn is_silent(&self) -> bool {
        self.silent.load(Relaxed)
    }

    /// Notes that a response is overdue, and no other data arrived.
    pub(super) fn fell_silent(&self) {
        if self.is_up() && !self.silent.swap(true, Relaxed) {
            let address = self.address();
            log::warn!(
                "the block service at {address} does not respond: requests do not wait for it"
            );
        }
    }

    /// Waits until the connection was made or lost, or a short while.
    pub(super) async fn changed(&self) {
        let while_ = self.shared.config.patience.again.0;
        let _either = tokio::time::timeout(while_, self.changed.notified()).await;
    }

    /// Returns when the last frame was received on this connection.
    pub(super) fn heard(&self) -> Option<Instant> {
        self.state.lock().heard
    }

    /// Sends a request and waits for the response; `None` if there is no connection, or it is lost.
    pub(super) async fn ask(&self, message: Message, data: Vec<u8>) -> Option<Frame> {
        if !self.is_up() {
            return None;
        }
        let (answer, answered) = oneshot::channel();
        self.send(Command::Ask(message, data, answer));
        answered.await.ok()
    }

    /// Opens a source, on this connection and after each reconnect.
    pub(super) fn open(&self, source: &Arc<RegisteredSource>) {
        self.send(Command::Open(Arc::clone(source)));
    }

    /// Starts a source, on this connection or on the next one that is made.
    pub(super) fn start(&self, request: StartRequest) {
        self.starts.lock().push(request);
        self.send(Command::Start);
    }

    /// Requests chunks. If the connection is lost, there is no response: the receiver of the source
    /// is notified of the loss.
    pub(super) fn read(&self, reads: Reads) {
        self.send(Command::Read(reads));
    }

    /// Cancels a READ of the source of this number.
    pub(super) fn cancel(&self, source: u64, request: RequestId) {
        self.send(Command::Cancel(source, request));
    }

    /// Removes chunks from a stream.
    pub(super) fn skip(&self, stream: StreamId, chunks: Vec<u32>) {
        self.send(Command::Skip(stream, chunks));
    }

    /// Requests that chunks of a stream are sent first.
    pub(super) fn promote(&self, stream: StreamId, chunks: Vec<u32>) {
        self.send(Command::Promote(stream, chunks));
    }

    /// Returns whether the service supports sending chunks of a stream first.
    pub(super) fn promotes(&self) -> bool {
        self.state.lock().version >= PROMOTE_SINCE
    }

    /// Returns whether the service sends the rest of a plan. That is asked for on the connection of streams.
    pub(super) fn resumes(&self) -> bool {
        self.place.lane == Lane::Background && self.state.lock().version >= RESUME_SINCE
    }

    /// Ends a stream.
    pub(super) fn cancel_stream(&self, stream: StreamId) {
        self.send(Command::CancelStream(stream));
    }

    fn send(&self, command: Command) {
        // The other end goes with the client.
        let _sent = self.commands.send(command);
    }

    /// Resets the state for a new connection of a version of the protocol, and returns the frames
    /// that it begins with.
    pub(super) fn begin(&self, version: u16) -> Vec<Frame> {
        *self.state.lock() = ConnectionState {
            version,
            next: 1,
            heard: Some(Instant::now()),
            ..ConnectionState::default()
        };
        let mut sources = self.shared.sources.lock().clone();
        // What is being started opens the source on its connection.
        sources.retain(|source| self.place.lane == Lane::Demand || source.id().is_some());
        let opens = sources.into_iter().map(Command::Open);
        self.frames(opens.chain([Command::Start]).collect())
    }

    /// Records the version that the service chose, after [`begin`](Self::begin) with the newest one.
    pub(super) fn agreed_on(&self, version: u16) {
        self.state.lock().version = version;
    }

    /// Lets requests through: the service has welcomed us.
    pub(super) fn welcomed(&self) {
        self.silent.store(false, Relaxed);
        self.up.store(true, Relaxed);
        self.tell_all(|receiver| receiver.link_changed(self.number()));
        self.changed.notify_waiters();
    }

    /// Stops sending requests: the service shuts down; it still responds.
    fn leave(&self) {
        self.up.store(false, Relaxed);
        self.tell_all(|receiver| receiver.link_changed(self.number()));
    }

    /// Ends the connection: all requests are lost.
    pub(super) fn end(&self) {
        self.up.store(false, Relaxed);
        // Whoever waits sees its sender go; outside of the lock, for they may ask again.
        let lost = std::mem::take(&mut *self.state.lock());
        drop(lost);
        self.tell_all(|receiver| receiver.link_changed(self.number()));
        self.changed.notify_waiters();
    }

    /// Fails all requests that wait for a connection: none will be made again.
    pub(super) fn close(&self) {
        self.end();
        let starts = std::mem::take(&mut *self.starts.lock());
        drop(starts);
    }

    fn tell_all(&self, tell: impl Fn(&dyn Receiver)) {
        let sources = self.shared.sources.lock().clone();
        let receivers = sources.iter().filter_map(|source| source.receiver());
        receivers.for_each(|receiver| tell(&*receiver));
    }

    /// Delivers a response; returns whether the connection is still usable.
    pub(super) fn take(&self, frame: Frame) -> bool {
        self.state.lock().heard = Some(Instant::now());
        if self.silent.swap(false, Relaxed) {
            log::info!("the block service at {} responds again", self.address());
            self.tell_all(|receiver| receiver.progressed(self.number()));
        }
        match frame.message {
            Message::Chunk {
                place,
                status,
                codec,
                raw_len,
            } => {
                let reply = Reply::of(status, codec, raw_len, frame.data);
                self.chunk(frame.request, place, reply);
                true
            }
            Message::Streamed {
                chunk,
                status,
                codec,
                raw_len,
            } => {
                let reply = Reply::of(status, codec, raw_len, frame.data);
                self.streamed(frame.request, chunk, reply);
                true
            }
            Message::GoAway { within_ms } => {
                log::info!("the block service shuts down within {within_ms} ms");
                self.leave();
                true
            }
            Message::Error { code, ref text } if frame.request == 0 => {
                log::warn!("the block service ended the connection: {text} ({code:?})");
                false
            }
            _ => self.answer(frame),
        }
    }

    fn chunk(&self, request: u64, place: u16, reply: Reply) {
        let mut state = self.state.lock();
        // A READ that was called off may still be answered.
        let Some(Pending::Chunks(open)) = state.pending.get_mut(&request) else {
            return;
        };
        let chunk = open
            .chunks
            .get_mut(usize::from(place))
            .and_then(Option::take);
        let (source, id) = (Arc::clone(&open.source), open.request);
        if open.chunks.iter().all(Option::is_none) {
            state.pending.remove(&request);
        }
        drop(state);
        if let (Some(chunk), Some(receiver)) = (chunk, source.receiver()) {
            receiver.came(self.number(), Via::Request(id), chunk, reply);
        }
    }

    fn streamed(&self, request: u64, chunk: u32, reply: Reply) {
        let mut state = self.state.lock();
        let Some(Pending::Stream(stream, to)) = state.pending.get(&request) else {
            return;
        };
        let (stream, receiver) = (*stream, to.upgrade());
        if receiver.is_none() {
            state.pending.remove(&request);
        }
        drop(state);
        match receiver {
            Some(receiver) => receiver.came(self.number(), Via::Stream(stream), chunk, reply),
            None => self.send(Command::CancelStart(request)),
        }
    }

    /// Delivers a response that is no chunk.
    fn answer(&self, frame: Frame) -> bool {
        let number = frame.request;
        let pending = self.state.lock().pending.remove(&number);
        match pending {
            Some(Pending::Answer(answer)) => {
                // Whoever asked may have given up.
                let _told = answer.send(frame);
                true
            }
            Some(Pending::Opened(source)) => {
                self.opened(&source, &frame.message);
                true
            }
            Some(Pending::Start(starting)) => self.started(*starting, frame),
            Some(Pending::Stream(stream, to)) => {
                if let Some(receiver) = to.upgrade() {
                    receiver.stream_ended(stream);
                }
                true
            }
            // An error about a READ, for each of its chunks.
            Some(Pending::Chunks(open)) => {
                let left = open.chunks.into_iter().flatten();
                if let Some(receiver) = open.source.receiver() {
                    let via = Via::Request(open.request);
                    left.for_each(|chunk| receiver.came(self.number(), via, chunk, Reply::Failed));
                }
                true
            }
            None => true,
        }
    }

    /// Takes a frame of the answer to a START; returns whether the connection continues.
    fn started(&self, mut starting: Starting, frame: Frame) -> bool {
        let number = frame.request;
        let version = self.state.lock().version;
        let progress = starting.take(frame, version);
        if let Some((handle, id)) = starting.handle() {
            let source = starting.request.source.number;
            self.state.lock().handles.insert(source, (handle, id));
        }
        match progress {
            Progress::Going => {
                let pending = Pending::Start(Box::new(starting));
                self.state.lock().pending.insert(number, pending);
                true
            }
            Progress::Complete => {
                let rate = starting.rate(Instant::now()).unwrap_or(0);
                self.rate.fetch_max(rate, Relaxed);
                let stream = starting.request.stream;
                if let Some(receiver) = starting.begin(number) {
                    let pending = Pending::Stream(stream, receiver);
                    self.state.lock().pending.insert(number, pending);
                } else {
                    // Nobody takes what may follow.
                    self.send(Command::CancelStart(number));
                }
                true
            }
            Progress::Over(why) => {
                let goes_on = matches!(why, StartRefused::Refused(..));
                let _nobody = (starting.request.begin)(Err(why));
                goes_on
            }
        }
    }

    /// Notes the handle of a source, and sends the reads that waited for it.
    fn opened(&self, source: &RegisteredSource, answer: &Message) {
        let name = String::from_utf8_lossy(&source.name);
        let mut state = self.state.lock();
        let mut is_open = false;
        match answer {
            Message::Opened { handle, id, .. } if source.id().is_none_or(|known| known == id) => {
                state.handles.insert(source.number, (*handle, *id));
                is_open = true;
            }
            Message::Opened { id, .. } => log::warn!(
                "{name} has another index now ({}) and is not read from the service; mount it \
                 again to read from there",
                id.short()
            ),
            Message::Error {
                code: ErrorCode::NoSource,
                ..
            } => {
                log::warn!(
                    "the block service has no source {name}, or this machine may not open it"
                );
            }
            other => log::warn!("the block service did not open {name}: {other:?}"),
        }
        let parked = state.opening.remove(&source.number);
        drop(state);
        for reads in parked.unwrap_or_default() {
            self.send(Command::Read(reads));
        }
        if let (false, Some(receiver)) = (is_open, source.receiver()) {
            receiver.refused(self.number());
        }
    }
}
