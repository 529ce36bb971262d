//! A connection on the service's side: handles the requests of a client, frame by frame.

mod answer;
mod read;
mod refusal;
mod start;
mod upload;

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, BufReader, split};
use tokio::join;
use tokio::sync::watch;
use tokio::time::timeout;

use super::counters::MachineCounters;
use super::handshake::{Authenticated, meet};
use super::machine::Vm;
use super::outgoing::Outgoing;
use super::stream::Stream;
use super::{Shared, ended};
use crate::wire::stream::{ReadError, read_frame, write_frame};
use crate::wire::{Direction, ErrorCode, Frame, Message, Seal};
use chunks::index::Index;
use refusal::Refusal;
use serving::transport::{Connected, drain, part};
use start::Rest;
use upload::{Upload, overdue};

/// What is read of a connection at once: some READs, and of a PUT the beginning.
const READ_BUFFER: usize = 4 << 10;
/// How long it may take to tell somebody that there is no place, and before that to agree on keys.
const TURNING_AWAY: Duration = Duration::from_secs(2);
/// Where log lines go that say who asks for what.
const ACCESS: &str = "nicfetch::access";

/// Serves a connection until it ends or the service does.
pub(super) async fn serve(
    shared: &Arc<Shared>,
    stream: impl Future<Output = io::Result<Connected>>,
    stop: watch::Receiver<bool>,
) {
    let transcript = async {
        let mut connected = stream.await?;
        let guest = meet(shared, &mut connected).await;
        io::Result::Ok((connected, guest))
    };
    let (connected, guest) = match timeout(shared.limits.handshake, transcript).await {
        Ok(Ok((connected, Ok(guest)))) => (connected, guest),
        Ok(Ok((mut connected, Err(refused)))) => {
            refuse(shared, &refused);
            return part(&mut connected.stream).await;
        }
        Ok(Err(error)) => return refuse(shared, &error),
        Err(_) => return refuse(shared, &"the handshake took too long"),
    };
    shared.counts.connections.fetch_add(1, Relaxed);
    let (read, write) = split(connected.stream);
    let mut read = BufReader::with_capacity(READ_BUFFER, read);
    let Authenticated {
        vm,
        name,
        seat,
        sources,
        protocol,
        link,
        incoming,
        outgoing,
    } = guest;
    let (to, writer) = Outgoing::new(shared.readers.room_listener(), link, shared.limits.raw_rate);
    let patience = shared.limits.write;
    let writing = tokio::spawn(writer.run(write, outgoing, patience, vm.pace.clone()));
    let connection = Connection {
        shared,
        tally: shared.counts.chunks.machine(&name),
        name: name.clone(),
        vm,
        may_open: sources,
        protocol,
        to,
        sources: HashMap::new(),
        reads: HashMap::new(),
        next_handle: 1,
        put: None,
        stream: Weak::new(),
        starting: Arc::default(),
    };
    let began = Instant::now();
    connection.run(&mut read, incoming, stop).await;
    log::info!(
        target: ACCESS,
        "{} left after {} s",
        name.escape_ascii(),
        began.elapsed().as_secs()
    );
    // Ends when the readers have let go of what they still had to send, or nobody reads it. Until
    // the client has all of that, what it still sends must not lie unread.
    let _ended = join!(timeout(patience, writing), drain(&mut read));
    drop(seat);
    shared.counts.connections.fetch_sub(1, Relaxed);
}

/// Refuses a connection because the limit is reached, before authentication.
pub(super) async fn turn_away(stream: impl Future<Output = io::Result<Connected>>) {
    let tell = async {
        let mut connected = stream.await?;
        let busy = error_of(ErrorCode::Busy, "too many connections");
        let mut seal = Seal::open(Direction::ToClient);
        let busy = Frame::new(0, busy);
        write_frame(&mut connected.stream, &busy, &mut seal).await?;
        io::Result::Ok(connected)
    };
    if let Ok(Ok(mut connected)) = timeout(TURNING_AWAY, tell).await {
        part(&mut connected.stream).await;
    }
}

fn refuse(shared: &Shared, why: &dyn std::fmt::Display) {
    shared.counts.refused.fetch_add(1, Relaxed);
    log::info!("a connection was refused: {why}");
}

struct Connection<'a> {
    shared: &'a Arc<Shared>,
    vm: Arc<Vm>,
    /// Its name.
    name: Vec<u8>,
    /// Its counters.
    tally: Arc<MachineCounters>,
    may_open: crate::identity::Sources,
    /// The agreed version of the protocol.
    protocol: u16,
    to: Arc<Outgoing>,
    sources: HashMap<u32, Arc<Index>>,
    /// The READs and STARTs that may not be answered yet, and how to call them off.
    reads: HashMap<u64, Arc<AtomicBool>>,
    next_handle: u32,
    put: Option<Upload>,
    /// The last stream, until it is over.
    stream: Weak<Stream>,
    /// A clone for each START that is going on.
    starting: Arc<()>,
}

impl Connection<'_> {
    async fn run<R: AsyncRead + Unpin>(
        mut self,
        from: &mut R,
        mut seal: Seal,
        mut stop: watch::Receiver<bool>,
    ) {
        loop {
            // One future for all of a frame: half of it may be read when something is due.
            let frame = read_frame(from, &mut seal);
            tokio::pin!(frame);
            let frame = loop {
                tokio::select! {
                    frame = &mut frame => break frame,
                    () = overdue(self.put.as_ref()) => self.give_up_put(),
                    () = ended(&mut stop) => {
                        let leave = self.shared.limits.leave;
                        let within_ms = u32::try_from(leave.as_millis()).unwrap_or(u32::MAX);
                        self.say(0, Message::GoAway { within_ms });
                        self.finish(leave).await;
                        return;
                    }
                }
            };
            if !self.take(frame).await {
                return;
            }
        }
    }

    /// Waits until what was asked is answered, or the time is over.
    async fn finish(&mut self, leave: Duration) {
        let done = async {
            while !self.to.is_over() && self.reads.values().any(|read| Arc::strong_count(read) > 1)
            {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let _left = timeout(leave, done).await;
        self.call_off();
    }

    /// Handles a received frame; returns whether the connection continues.
    async fn take(&mut self, frame: Result<Frame, ReadError>) -> bool {
        let frame = match frame {
            Ok(frame) => frame,
            Err(ReadError::Frame(error)) => {
                log::info!("a client violated the protocol: {error}");
                self.say(0, error_of(ErrorCode::Rule, &error.to_string()));
                self.call_off();
                return false;
            }
            Err(error) => {
                log::debug!("a connection is over: {error}");
                self.call_off();
                return false;
            }
        };
        let request = frame.request;
        match self.handle(frame).await {
            Ok(()) => !self.to.is_over(),
            Err(Refusal(ErrorCode::Rule, text)) => {
                self.say(0, error_of(ErrorCode::Rule, &text));
                self.call_off();
                false
            }
            Err(Refusal(code, text)) => {
                self.shared.counts.refused.fetch_add(1, Relaxed);
                self.say(request, error_of(code, &text));
                true
            }
        }
    }

    async fn handle(&mut self, frame: Frame) -> Result<(), Refusal> {
        let Frame {
            request,
            message,
            data,
        } = frame;
        self.to.wait_for_room().await;
        match message {
            Message::Read {
                handle,
                priority,
                form,
                deadline_ms,
                chunks,
            } => self.read(request, handle, priority, form, deadline_ms, &chunks),
            Message::Cancel => {
                if let Some(read) = self.reads.remove(&request) {
                    read.store(true, Relaxed);
                }
                Ok(())
            }
            Message::Start { ask, have, name } => self.start(request, ask, have, name).await,
            Message::Resume {
                have,
                plan,
                first,
                name,
            } => {
                let rest = Rest { plan, first };
                self.resume(request, have, rest, name).await
            }
            Message::Skip { chunks } => self.skip(request, &chunks),
            Message::Promote { chunks } => self.promote(request, &chunks),
            other => self.answer(request, other, data).await,
        }
    }

    fn source(&self, handle: u32) -> Result<Arc<Index>, Refusal> {
        let index = self.sources.get(&handle);
        index
            .cloned()
            .ok_or_else(|| Refusal::rule("there is no such handle"))
    }

    fn call_off(&self) {
        for read in self.reads.values() {
            read.store(true, Relaxed);
        }
    }

    fn say(&self, request: u64, message: Message) {
        self.to.send(Frame::new(request, message), None);
    }
}

fn error_of(code: ErrorCode, text: &str) -> Message {
    let text = text.to_owned();
    Message::Error { code, text }
}
