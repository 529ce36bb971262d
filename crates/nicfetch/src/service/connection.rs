//! One connection: what a client asks, frame by frame.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use blocks::ContentId;
use tokio::io::{AsyncRead, BufReader, split};
use tokio::sync::watch;
use tokio::time::timeout;

use super::handshake::{Guest, meet};
use super::memory::Held;
use super::outgoing::Outgoing;
use super::readers::{Job, status};
use super::{Shared, ended};
use crate::index::Index;
use crate::transport::Connected;
use crate::wire::stream::{ReadError, read_frame};
use crate::wire::{DATA_MAX, ErrorCode, Frame, Message, Priority, Seal, Status, What};
use crate::{BOOT_MAX, CatalogError};

/// The most sources that one connection may open: one for each layer of a node's images.
const SOURCES_MAX: usize = 1024;
/// What is read of a connection at once: some READs, and of a PUT the beginning.
const READ_BUFFER: usize = 4 << 10;
/// Where log lines go that say who asks for what.
const ACCESS: &str = "nicfetch::access";
/// The most READs of a connection that have not been answered.
const READS_MAX: usize = 1024;

/// Serves a connection until it ends or the service does.
pub(super) async fn serve(
    shared: &Arc<Shared>,
    stream: impl Future<Output = io::Result<Connected>>,
    stop: watch::Receiver<bool>,
) {
    let meeting = async {
        let mut connected = stream.await?;
        let guest = meet(shared, &mut connected).await;
        io::Result::Ok((connected, guest))
    };
    let (connected, guest) = match timeout(shared.limits.handshake, meeting).await {
        Ok(Ok((connected, Ok(guest)))) => (connected, guest),
        Ok(Ok((_, Err(refused)))) => return refuse(shared, &refused),
        Ok(Err(error)) => return refuse(shared, &error),
        Err(_) => return refuse(shared, &"it took too long to say who it is"),
    };
    shared.counts.connections.fetch_add(1, Relaxed);
    let (read, write) = split(connected.stream);
    let read = BufReader::with_capacity(READ_BUFFER, read);
    let Guest {
        vm,
        seat,
        sources,
        incoming,
        outgoing,
    } = guest;
    let (to, writer) = Outgoing::new(shared.readers.queue());
    let patience = shared.limits.write;
    let writing = tokio::spawn(writer.run(write, outgoing, patience, vm.pace.clone()));
    let connection = Connection {
        shared,
        vm: Arc::clone(&vm),
        may_open: sources,
        to,
        sources: HashMap::new(),
        reads: HashMap::new(),
        next_handle: 1,
        put: None,
    };
    let began = Instant::now();
    connection.run(read, incoming, stop).await;
    log::info!(
        target: ACCESS,
        "{} left after {} s",
        vm.name.escape_ascii(),
        began.elapsed().as_secs()
    );
    // Ends when the readers have let go of what they still had to send, or nobody reads it.
    let _ended = timeout(patience, writing).await;
    drop(seat);
    shared.counts.connections.fetch_sub(1, Relaxed);
}

fn refuse(shared: &Shared, why: &dyn std::fmt::Display) {
    shared.counts.refused.fetch_add(1, Relaxed);
    log::info!("a connection was refused: {why}");
}

struct Connection<'a> {
    shared: &'a Arc<Shared>,
    vm: Arc<super::Vm>,
    may_open: crate::identity::Sources,
    to: Arc<Outgoing>,
    sources: HashMap<u32, Arc<Index>>,
    /// The READs that may not be answered yet, and how to call them off.
    reads: HashMap<u64, Arc<AtomicBool>>,
    next_handle: u32,
    put: Option<Upload>,
}

/// A boot image that is on its way.
struct Upload {
    index: ContentId,
    id: ContentId,
    total: u64,
    bytes: Vec<u8>,
    held: Held,
}

/// Why a request was not done; the connection goes on unless it was a broken rule.
struct Refusal(ErrorCode, String);

impl Refusal {
    fn rule(text: &str) -> Self {
        Self(ErrorCode::Rule, text.to_owned())
    }
}

impl From<CatalogError> for Refusal {
    fn from(error: CatalogError) -> Self {
        let code = match &error {
            CatalogError::BootLength { .. } => ErrorCode::TooLarge,
            CatalogError::WrongBoot { .. } => ErrorCode::Rule,
            _ => {
                // The client has no use for our paths.
                log::warn!("{error}: {:?}", std::error::Error::source(&error));
                return Self(ErrorCode::Failed, "the catalog failed".to_owned());
            }
        };
        Self(code, error.to_string())
    }
}

impl Connection<'_> {
    async fn run<R: AsyncRead + Unpin>(
        mut self,
        mut from: R,
        mut seal: Seal,
        mut stop: watch::Receiver<bool>,
    ) {
        loop {
            let frame = tokio::select! {
                frame = read_frame(&mut from, &mut seal) => frame,
                () = ended(&mut stop) => {
                    let leave = self.shared.limits.leave;
                    let within_ms = u32::try_from(leave.as_millis()).unwrap_or(u32::MAX);
                    self.say(0, Message::GoAway { within_ms });
                    self.finish(leave).await;
                    return;
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

    /// Handles what came; returns whether the connection goes on.
    async fn take(&mut self, frame: Result<Frame, ReadError>) -> bool {
        let frame = match frame {
            Ok(frame) => frame,
            Err(ReadError::Frame(error)) => {
                log::info!("a client broke a rule: {error}");
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
                deadline_ms,
                chunks,
            } => self.read(request, handle, priority, deadline_ms, &chunks),
            Message::Cancel => {
                if let Some(read) = self.reads.remove(&request) {
                    read.store(true, Relaxed);
                }
                Ok(())
            }
            other => self.answer(request, other, data).await,
        }
    }

    /// Answers what is answered at once.
    async fn answer(
        &mut self,
        request: u64,
        message: Message,
        data: Vec<u8>,
    ) -> Result<(), Refusal> {
        match message {
            Message::Open { name } => {
                let opened = self.open(name).await?;
                self.say(request, opened);
            }
            Message::Get {
                handle,
                what,
                id,
                offset,
                len,
            } => {
                let index = self.source(handle)?;
                let piece = self.piece(index, what, id, offset, len).await?;
                let message = Message::Piece;
                let data = piece;
                self.to.send(
                    Frame {
                        request,
                        message,
                        data,
                    },
                    None,
                );
            }
            Message::Boots { handle } => {
                let index = self.source(handle)?.id();
                let boots = self
                    .on_disk(move |shared| shared.catalog.boots(&index))
                    .await?;
                self.say(request, Message::BootList { boots });
            }
            Message::Put {
                handle,
                id,
                total,
                offset,
            } => {
                let index = self.source(handle)?.id();
                let whole = self.put(index, id, total, offset, &data).await?;
                self.say(request, Message::PutDone { whole });
            }
            Message::Prefetch {
                handle,
                first,
                count,
            } => {
                let index = self.source(handle)?;
                let (present, absent) = self.shared.readers.look(&index, first, count);
                self.say(request, Message::Prefetched { present, absent });
            }
            Message::Stat => {
                let s = self.shared.stats();
                let numbers = [
                    s.chunks,
                    s.bytes,
                    s.absent,
                    s.refused,
                    s.waiting,
                    s.connections,
                    s.sources,
                ];
                self.say(request, Message::Stats { numbers });
            }
            _ => return Err(Refusal::rule("this frame is not for a client to send")),
        }
        Ok(())
    }

    fn read(
        &mut self,
        request: u64,
        handle: u32,
        priority: Priority,
        deadline_ms: u32,
        chunks: &[u32],
    ) -> Result<(), Refusal> {
        let index = self.source(handle)?;
        if self.reads.len() >= READS_MAX {
            // Nobody but us holds the mark of a READ whose answers are all on their way.
            self.reads.retain(|_, read| Arc::strong_count(read) > 1);
        }
        let put_off = priority == Priority::Prefetch && !self.shared.limits.load.may_prepare();
        let full = put_off || self.reads.len() >= READS_MAX;
        let cancelled = Arc::new(AtomicBool::new(false));
        let within = Duration::from_millis(u64::from(deadline_ms));
        let asked = Instant::now();
        let deadline = (deadline_ms > 0).then(|| asked + within);
        let mut jobs = Vec::with_capacity(chunks.len());
        for (place, number) in (0_u16..).zip(chunks) {
            let (Some(id), Some(at)) = (index.chunk(*number), index.place(*number)) else {
                return Err(Refusal::rule("there is no such chunk in the index"));
            };
            let window = self.shared.limits.window_bytes;
            let credit = if full {
                None
            } else {
                self.vm.credit(at.len, window)
            };
            let Some(credit) = credit else {
                self.shared.counts.refused.fetch_add(1, Relaxed);
                self.shared.counts.tally.count(priority, Status::Busy);
                self.to.send(status(request, place, Status::Busy), None);
                continue;
            };
            let job = Job {
                request,
                place,
                id,
                priority,
                asked,
                machine: Arc::clone(&self.vm.machine),
                deadline,
                cancelled: Arc::clone(&cancelled),
                credit: Some(credit),
                to: Arc::clone(&self.to),
            };
            jobs.push((u64::from(at.len), job));
        }
        self.reads.insert(request, cancelled);
        self.shared.readers.push(priority, &self.vm, jobs);
        Ok(())
    }

    /// Opens a source, and tells the access log.
    async fn open(&mut self, name: Vec<u8>) -> Result<Message, Refusal> {
        let shown = name.escape_ascii().to_string();
        let opened = self.open_source(name).await;
        let came = match &opened {
            Ok(_) => "opened",
            Err(Refusal(_, why)) => why,
        };
        log::info!(target: ACCESS, "{} open {shown}: {came}", self.vm.name.escape_ascii());
        opened
    }

    async fn open_source(&mut self, name: Vec<u8>) -> Result<Message, Refusal> {
        // Absent and forbidden must look the same.
        let no_source = || Refusal(ErrorCode::NoSource, "there is no such source".to_owned());
        if !self.may_open.has(&name) {
            return Err(no_source());
        }
        if self.sources.len() >= SOURCES_MAX {
            let text = format!("a connection has at most {SOURCES_MAX} sources");
            return Err(Refusal(ErrorCode::Busy, text));
        }
        let index = self
            .on_disk(move |shared| shared.catalog.source(&name))
            .await?;
        let index = index.ok_or_else(no_source)?;
        let handle = self.next_handle;
        self.next_handle += 1;
        let opened = Message::Opened {
            handle,
            len: index.bytes().len() as u64,
            id: index.id(),
        };
        self.sources.insert(handle, index);
        Ok(opened)
    }

    async fn piece(
        &self,
        index: Arc<Index>,
        what: What,
        id: ContentId,
        offset: u64,
        len: u32,
    ) -> Result<Vec<u8>, Refusal> {
        let len = (len as usize).min(DATA_MAX);
        match what {
            What::Index => {
                let bytes = index.bytes();
                let from = usize::try_from(offset)
                    .unwrap_or(usize::MAX)
                    .min(bytes.len());
                let to = from.saturating_add(len).min(bytes.len());
                Ok(bytes[from..to].to_vec())
            }
            What::Boot => {
                let of = index.id();
                let read = move |shared: &Shared| shared.catalog.boot_piece(&of, &id, offset, len);
                let gone = || Refusal(ErrorCode::Failed, "there is no such boot image".to_owned());
                self.on_disk(read).await?.ok_or_else(gone)
            }
        }
    }

    /// Takes a piece of a boot image; returns whether it was the last.
    async fn put(
        &mut self,
        index: ContentId,
        id: ContentId,
        total: u64,
        offset: u64,
        piece: &[u8],
    ) -> Result<bool, Refusal> {
        if total == 0 || total > BOOT_MAX {
            return Err(CatalogError::BootLength { bytes: total }.into());
        }
        if offset == 0 {
            // Grows with what comes, not with what was promised.
            let bytes = Vec::new();
            self.put = Some(Upload {
                index,
                id,
                total,
                bytes,
                held: Held::none_of(&self.shared.memory),
            });
        }
        let fits = |put: &&mut Upload| {
            let end = offset.saturating_add(piece.len() as u64);
            (put.index, put.id, put.total) == (index, id, total)
                && put.bytes.len() as u64 == offset
                && end <= total
        };
        let Some(put) = self.put.as_mut().filter(fits) else {
            return Err(Refusal::rule(
                "a piece of a boot image does not follow the one before",
            ));
        };
        if !put.held.grow(piece.len() as u64) {
            self.put = None;
            let text = "there is no memory for a boot image now".to_owned();
            return Err(Refusal(ErrorCode::Busy, text));
        }
        put.bytes.extend_from_slice(piece);
        if (put.bytes.len() as u64) < total {
            return Ok(false);
        }
        let Some(Upload { bytes, held, .. }) = self.put.take() else {
            return Ok(false);
        };
        let keep = move |shared: &Shared| {
            let kept = shared.catalog.keep_boot(&index, &id, &bytes);
            drop((bytes, held));
            kept
        };
        self.on_disk(keep).await?;
        Ok(true)
    }

    /// Does what may wait for a disk, on a thread that may.
    async fn on_disk<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&Shared) -> Result<T, CatalogError> + Send + 'static,
    ) -> Result<T, Refusal> {
        let shared = Arc::clone(self.shared);
        let asked = tokio::task::spawn_blocking(move || ask(&shared)).await;
        let died = |_| Refusal(ErrorCode::Failed, "the catalog failed".to_owned());
        Ok(asked.map_err(died)??)
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
