//! A connection as seen by its users: requests go in; each gets a response, or learns that none will
//! come.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot};

use super::responses::{Reply, Responder};
use super::{RegisteredSource, Shared};
use crate::wire::{ErrorCode, Frame, Message, Priority, Status, WANTS_MAX};
use chunks::{Codec, Stored};

/// A connection to the service, which is re-established when it is lost.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(super) shared: Arc<Shared>,
    commands: mpsc::UnboundedSender<Command>,
    state: Mutex<ConnectionState>,
    up: AtomicBool,
    /// Requests that the connection is re-established.
    pub(super) reset: Notify,
    changed: Notify,
}

#[derive(Debug, Default)]
struct ConnectionState {
    next: u64,
    pending: HashMap<u64, Pending>,
    /// By number of the source: its handle in this connection.
    handles: HashMap<usize, u32>,
    /// By number of a source that is being opened: the reads that wait for it.
    opening: HashMap<usize, Vec<Reads>>,
    heard: Option<Instant>,
}

/// What is to be sent.
#[derive(Debug)]
pub(super) enum Command {
    Ask(Message, Vec<u8>, oneshot::Sender<Frame>),
    Open(Arc<RegisteredSource>),
    Read(Reads),
    /// Cancel the READs that are not wanted any more.
    CancelUnwanted,
}

/// Wanted chunks of one source.
#[derive(Debug)]
pub(super) struct Reads {
    pub(super) source: Arc<RegisteredSource>,
    pub(super) priority: Priority,
    pub(super) wants: Vec<Want>,
}

/// One of them.
#[derive(Debug)]
pub(super) struct Want {
    pub(super) number: u32,
    pub(super) responder: Responder,
}

#[derive(Debug)]
enum Pending {
    Answer(oneshot::Sender<Frame>),
    Opened(Arc<RegisteredSource>),
    Chunks(Vec<Option<Responder>>),
}

/// A frame to write, and the receiver of its response.
pub(super) struct Request {
    pub(super) frame: Frame,
    pending: Option<Pending>,
}

impl Connection {
    pub(super) fn new(shared: Arc<Shared>) -> (Arc<Self>, mpsc::UnboundedReceiver<Command>) {
        let (commands, received) = mpsc::unbounded_channel();
        let connection = Self {
            shared,
            commands,
            state: Mutex::default(),
            up: AtomicBool::new(false),
            reset: Notify::new(),
            changed: Notify::new(),
        };
        (Arc::new(connection), received)
    }

    pub(super) fn is_up(&self) -> bool {
        self.up.load(Relaxed)
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
        self.commands
            .send(Command::Ask(message, data, answer))
            .ok()?;
        answered.await.ok()
    }

    /// Opens a source, on this connection and after each reconnect.
    pub(super) fn open(&self, source: &Arc<RegisteredSource>) {
        let _told = self.commands.send(Command::Open(Arc::clone(source)));
    }

    /// Requests chunks.
    pub(super) fn read(&self, reads: Reads) {
        // What is not asked is lost with its responders.
        if !reads.wants.is_empty() && self.is_up() {
            let _told = self.commands.send(Command::Read(reads));
        }
    }

    /// Cancels READs that are not wanted any more.
    pub(super) fn cancel_unwanted(&self) {
        let _told = self.commands.send(Command::CancelUnwanted);
    }

    /// Resets the state for a new connection.
    pub(super) fn begin(&self) {
        let mut state = self.state.lock();
        *state = ConnectionState {
            next: 1,
            heard: Some(Instant::now()),
            ..ConnectionState::default()
        };
        drop(state);
        self.up.store(true, Relaxed);
        self.changed.notify_waiters();
    }

    /// Stops sending requests: the service shuts down; it still responds.
    fn leave(&self) {
        self.up.store(false, Relaxed);
    }

    /// Ends the connection: all requests are lost.
    pub(super) fn end(&self) {
        self.up.store(false, Relaxed);
        // Whoever waits sees its sender go; outside of the lock, for they may ask again.
        let lost = std::mem::take(&mut *self.state.lock());
        drop(lost);
        self.changed.notify_waiters();
    }

    /// Turns commands into requests: reads of one source and priority are merged.
    pub(super) fn requests(&self, commands: Vec<Command>) -> Vec<Request> {
        let mut requests = Vec::new();
        let mut all_reads: Vec<Reads> = Vec::new();
        for command in commands {
            match command {
                Command::Ask(message, data, answer) => {
                    let frame = Frame {
                        request: 0,
                        message,
                        data,
                    };
                    let pending = Some(Pending::Answer(answer));
                    requests.push(Request { frame, pending });
                }
                Command::Open(source) => {
                    let mut state = self.state.lock();
                    state.opening.entry(source.number).or_default();
                    drop(state);
                    let name = source.name.clone();
                    let frame = Frame::new(0, Message::Open { name });
                    let pending = Some(Pending::Opened(source));
                    requests.push(Request { frame, pending });
                }
                Command::Read(reads) => {
                    let together = |other: &&mut Reads| {
                        let source = (reads.source.number, reads.priority);
                        source == (other.source.number, other.priority)
                    };
                    match all_reads.iter_mut().find(together) {
                        Some(other) => other.wants.extend(reads.wants),
                        None => all_reads.push(reads),
                    }
                }
                Command::CancelUnwanted => requests.extend(self.cancels()),
            }
        }
        // The most urgent first.
        all_reads.sort_by_key(|reads| reads.priority);
        for reads in all_reads {
            self.requests_of(reads, &mut requests);
        }
        requests
    }

    /// Turns reads into requests, unless their source is not open yet.
    fn requests_of(&self, reads: Reads, requests: &mut Vec<Request>) {
        let mut state = self.state.lock();
        if let Some(parked) = state.opening.get_mut(&reads.source.number) {
            return parked.push(reads);
        }
        let Some(handle) = state.handles.get(&reads.source.number).copied() else {
            // It could not be opened. Outside of the lock, for whoever waits may ask again.
            drop(state);
            return drop(reads);
        };
        drop(state);
        let Reads {
            priority,
            mut wants,
            ..
        } = reads;
        while !wants.is_empty() {
            let rest = wants.split_off(wants.len().min(WANTS_MAX));
            requests.push(self.read_of(handle, priority, wants));
            wants = rest;
        }
    }

    fn read_of(&self, handle: u32, priority: Priority, wants: Vec<Want>) -> Request {
        // Who asks for this is gone by then: so may be the service's work.
        let give_up = self.shared.config.patience.give_up.as_millis();
        let deadline_ms = match priority {
            Priority::Demand => u32::try_from(give_up).unwrap_or(u32::MAX),
            Priority::Readahead | Priority::Prefetch => 0,
        };
        let chunks = wants.iter().map(|want| want.number).collect();
        let read = Message::Read {
            handle,
            priority,
            deadline_ms,
            chunks,
        };
        let answers = wants.into_iter().map(|want| Some(want.responder)).collect();
        Request {
            frame: Frame::new(0, read),
            pending: Some(Pending::Chunks(answers)),
        }
    }

    /// Cancels the READs of which no chunk is wanted any more.
    fn cancels(&self) -> Vec<Request> {
        let mut state = self.state.lock();
        let is_cancelled = |pending: &Pending| match pending {
            Pending::Chunks(wants) => wants.iter().flatten().all(Responder::is_cancelled),
            Pending::Answer(_) | Pending::Opened(_) => false,
        };
        let vain = state.pending.extract_if(|_, pending| is_cancelled(pending));
        let cancel = |request| Request {
            frame: Frame::new(request, Message::Cancel),
            pending: None,
        };
        vain.map(|(request, _)| cancel(request)).collect()
    }

    /// Numbers a request, and registers the receiver of its response.
    pub(super) fn note(&self, request: Request) -> Frame {
        let Request { mut frame, pending } = request;
        if let Some(pending) = pending {
            let mut state = self.state.lock();
            frame.request = state.next;
            state.next += 1;
            state.pending.insert(frame.request, pending);
        }
        frame
    }

    /// Delivers a response; returns whether the connection goes on.
    pub(super) fn take(&self, frame: Frame) -> bool {
        let mut state = self.state.lock();
        state.heard = Some(Instant::now());
        match frame.message {
            Message::Chunk {
                place,
                status,
                codec,
                raw_len,
            } => {
                let reply = match (status, Codec::from_number(codec)) {
                    (Status::Here, Some(codec)) => Reply::Here(Stored {
                        codec,
                        raw_len,
                        bytes: frame.data,
                    }),
                    (Status::Busy | Status::Late, _) => Reply::NotNow,
                    _ => Reply::No,
                };
                state.chunk(frame.request, place, reply);
                true
            }
            Message::GoAway { within_ms } => {
                log::info!("the block service shuts down within {within_ms} ms");
                drop(state);
                self.leave();
                true
            }
            Message::Error { code, ref text } if frame.request == 0 => {
                log::warn!("the block service ended the connection: {text} ({code:?})");
                false
            }
            _ => {
                match state.pending.remove(&frame.request) {
                    Some(Pending::Answer(answer)) => {
                        drop(state);
                        // Whoever asked may have given up.
                        let _told = answer.send(frame);
                    }
                    Some(Pending::Opened(source)) => {
                        let parked = state.opened(&source, &frame.message);
                        drop(state);
                        for reads in parked {
                            let _told = self.commands.send(Command::Read(reads));
                        }
                    }
                    // An error about a READ: whoever waits sees its responders go.
                    Some(Pending::Chunks(_)) | None => {}
                }
                true
            }
        }
    }
}

impl ConnectionState {
    fn chunk(&mut self, request: u64, place: u16, reply: Reply) {
        // A READ that was called off may still be answered.
        let Some(Pending::Chunks(wants)) = self.pending.get_mut(&request) else {
            return;
        };
        if let Some(responder) = wants.get_mut(usize::from(place)).and_then(Option::take) {
            responder.tell(reply);
        }
        if wants.iter().all(Option::is_none) {
            self.pending.remove(&request);
        }
    }

    /// Notes the handle of a source, and returns the reads that waited for it.
    fn opened(&mut self, source: &RegisteredSource, answer: &Message) -> Vec<Reads> {
        let name = String::from_utf8_lossy(&source.name);
        match answer {
            Message::Opened { handle, id, .. } if *id == source.id => {
                self.handles.insert(source.number, *handle);
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
        self.opening.remove(&source.number).unwrap_or_default()
    }
}
