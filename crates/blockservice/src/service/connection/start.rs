//! START requests: index, plan and chunks of a source in one exchange. RESUME: the rest of a plan's chunks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use blocks::ContentId;

use super::super::Shared;
use super::super::outgoing::Outgoing;
use super::super::prepared::{NotMade, Packed, Plan};
use super::super::stream::{Receiver, Stream};
use super::{Connection, Refusal, error_of};
use crate::wire::versions::{LINKS_SINCE, PROMOTE_SINCE, RESUME_SINCE, START_SINCE};
use crate::wire::{Ask, DATA_MAX, ErrorCode, Frame, Message};
use chunks::index::Index;

/// The most STARTs of a connection that are not answered yet.
const STARTS_MAX: usize = 8;

/// A START or RESUME whose answers are not all queued yet. It does not keep its connection from other
/// requests: a plan may take a while to make.
struct Starting {
    shared: Arc<Shared>,
    to: Arc<Outgoing>,
    request: u64,
    handle: u32,
    index: Arc<Index>,
    /// Whether the client has the index.
    has: Has,
    ask: Ask,
    /// What is streamed of a plan that the client has.
    rest: Option<Rest>,
    /// Whether the client understands links.
    takes_links: bool,
    cancelled: Arc<AtomicBool>,
    stream: Option<Arc<Stream>>,
}

/// A plan that a client has, and from which of its chunks on it lacks some.
#[derive(Clone, Copy)]
pub(super) struct Rest {
    pub(super) plan: ContentId,
    pub(super) first: u32,
}

/// What a client has of the index.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Has {
    Nothing,
    All,
}

impl Connection<'_> {
    /// Opens a source, and sends the requested parts.
    pub(super) async fn start(
        &mut self,
        request: u64,
        ask: Ask,
        have: ContentId,
        name: Vec<u8>,
    ) -> Result<(), Refusal> {
        self.needs(START_SINCE)?;
        self.begin(request, (ask, None), have, name).await
    }

    /// Opens a source, and sends the rest of a plan's chunks.
    pub(super) async fn resume(
        &mut self,
        request: u64,
        have: ContentId,
        rest: Rest,
        name: Vec<u8>,
    ) -> Result<(), Refusal> {
        self.needs(RESUME_SINCE)?;
        self.begin(request, (Ask::Chunks, Some(rest)), have, name)
            .await
    }

    async fn begin(
        &mut self,
        request: u64,
        (ask, rest): (Ask, Option<Rest>),
        have: ContentId,
        name: Vec<u8>,
    ) -> Result<(), Refusal> {
        let busy = |text: &str| Err(Refusal(ErrorCode::Busy, text.to_owned()));
        if ask == Ask::Chunks
            && self
                .stream
                .upgrade()
                .is_some_and(|stream| !stream.is_over())
        {
            return busy("a connection has one stream at a time");
        }
        // Each that is going on has a clone.
        if Arc::strong_count(&self.starting) > STARTS_MAX {
            return busy("too many sources are being opened");
        }
        let (handle, index) = self.open(name).await?;
        let cancelled = Arc::new(AtomicBool::new(false));
        self.reads.insert(request, Arc::clone(&cancelled));
        let stream = match ask {
            Ask::Chunks => self.stream_of(request, &index, &cancelled),
            Ask::Index | Ask::Plan => None,
        };
        if let Some(stream) = &stream {
            self.stream = Arc::downgrade(stream);
        }
        let starting = Starting {
            shared: Arc::clone(self.shared),
            to: Arc::clone(&self.to),
            request,
            handle,
            has: match index.id() == have {
                true => Has::All,
                false => Has::Nothing,
            },
            index,
            ask,
            rest,
            takes_links: self.protocol >= LINKS_SINCE,
            cancelled,
            stream,
        };
        let going_on = Arc::clone(&self.starting);
        tokio::spawn(async move {
            starting.run().await;
            drop(going_on);
        });
        Ok(())
    }

    /// Leaves chunks out of the stream.
    pub(super) fn skip(&self, request: u64, chunks: &[u32]) -> Result<(), Refusal> {
        self.needs(START_SINCE)?;
        // One that is over may be answered by what was on its way.
        if let Some(stream) = self.stream.upgrade()
            && stream.request() == request
        {
            stream.skip(chunks);
        }
        Ok(())
    }

    /// Sends chunks of the stream first.
    pub(super) fn promote(&self, request: u64, chunks: &[u32]) -> Result<(), Refusal> {
        self.needs(PROMOTE_SINCE)?;
        if let Some(stream) = self.stream.upgrade()
            && stream.request() == request
        {
            stream.promote(chunks);
        }
        Ok(())
    }

    /// Refuses a frame that a connection of this version does not have.
    pub(super) fn needs(&self, version: u16) -> Result<(), Refusal> {
        match self.protocol >= version {
            true => Ok(()),
            false => Err(Refusal::rule(&format!(
                "this frame is of version {version}"
            ))),
        }
    }

    /// Returns a stream, unless there are too many: then its client reads chunks by itself.
    fn stream_of(
        &self,
        request: u64,
        index: &Arc<Index>,
        cancelled: &Arc<AtomicBool>,
    ) -> Option<Arc<Stream>> {
        let Ok(seat) = Arc::clone(&self.shared.streams).try_acquire_owned() else {
            self.shared.counts.refused.fetch_add(1, Relaxed);
            return None;
        };
        let client = Receiver {
            to: Arc::clone(&self.to),
            vm: Arc::clone(&self.vm),
            machine: Arc::clone(&self.tally),
        };
        let counts = &self.shared.counts.streams;
        let (index, cancelled) = (Arc::clone(index), Arc::clone(cancelled));
        let stream = Stream::new(request, index, client, cancelled, counts, seat);
        Some(Arc::new(stream))
    }
}

impl Starting {
    async fn run(self) {
        let prepared = &self.shared.prepared;
        let packed = match self.has {
            Has::All => Ok(None),
            // It has the plan of another index.
            Has::Nothing if self.rest.is_some() => Ok(None),
            Has::Nothing => prepared.packed(&self.index).await.map(Some),
        };
        let packed = match packed {
            Ok(packed) => packed,
            Err(NotMade) => return self.fail(),
        };
        let wanted = self.rest.map(|rest| rest.plan);
        let plan = match (self.ask, self.has, wanted) {
            (Ask::Index, ..) | (_, Has::Nothing, Some(_)) => None,
            _ => {
                let catalog = &self.shared.catalog;
                prepared.plan(catalog, &self.index, wanted).await
            }
        };
        let order = plan.as_deref().map_or(&[][..], |plan| self.streamed(plan));
        if let Some(stream) = &self.stream {
            // Before the client knows of them.
            stream.set_order(order);
        }
        let chunks = order.len();
        // Who asks for the rest has the plan.
        let plan = plan.as_deref().filter(|_| wanted.is_none());
        let links = match plan {
            None => self.links(),
            Some(_) => None,
        };
        self.say(self.started(packed.as_deref(), plan, links.as_deref(), chunks));
        if let Some(packed) = packed {
            self.send(&Message::Index, &packed.bytes).await;
        }
        if let Some(plan) = plan {
            let counts = &self.shared.counts.streams;
            counts.plan_bytes.inc_by(plan.bytes.len() as u64);
            self.send(&Message::Plan, &plan.bytes).await;
        }
        if let Some(links) = links {
            self.send(&Message::Links, &links).await;
        }
        match self.stream {
            // Its end is sent with it.
            Some(stream) => self.shared.readers.stream(stream),
            None => self.say(Message::StreamEnd {
                sent: 0,
                skipped: 0,
                failed: 0,
            }),
        }
    }

    /// Returns the chunks of a plan that are sent unasked.
    fn streamed<'a>(&self, plan: &'a Plan) -> &'a [u32] {
        let first = self.rest.map_or(0, |rest| rest.first);
        let first = usize::try_from(first).unwrap_or(usize::MAX);
        match self.stream {
            Some(_) => plan.order.get(first..).unwrap_or_default(),
            None => &[],
        }
    }

    /// Returns the links of programs, for a client that would be sent a plan if there were one.
    fn links(&self) -> Option<Arc<Vec<u8>>> {
        let wanted = self.takes_links && self.rest.is_none() && self.ask != Ask::Index;
        wanted.then(|| self.shared.links.of(&self.index)).flatten()
    }

    fn started(
        &self,
        packed: Option<&Packed>,
        plan: Option<&Plan>,
        links: Option<&Vec<u8>>,
        plan_chunks: usize,
    ) -> Message {
        Message::Started {
            handle: self.handle,
            codec: packed.map_or(0, |packed| packed.codec as u8),
            id: self.index.id(),
            raw_len: self.index.bytes().len() as u64,
            packed_len: packed.map_or(0, |packed| packed.bytes.len() as u64),
            plan_len: plan.map_or(0, |plan| plan.bytes.len() as u64),
            plan_chunks: u32::try_from(plan_chunks).unwrap_or(u32::MAX),
            // It has a limit.
            links_len: links.map_or(0, |links| u32::try_from(links.len()).unwrap_or(0)),
        }
    }

    /// Sends something long in pieces, no quicker than the client takes them.
    async fn send(&self, message: &Message, bytes: &[u8]) {
        for piece in bytes.chunks(DATA_MAX) {
            self.to.wait_for_piece().await;
            if self.cancelled.load(Relaxed) || self.to.is_over() {
                return;
            }
            let (request, message, data) = (self.request, message.clone(), piece.to_vec());
            let frame = Frame {
                request,
                message,
                data,
            };
            self.to.send(frame, None);
        }
    }

    fn fail(&self) {
        if let Some(stream) = &self.stream {
            stream.give_up();
        }
        let text = "the index could not be compressed";
        self.say(error_of(ErrorCode::Failed, text));
    }

    fn say(&self, message: Message) {
        self.to.send(Frame::new(self.request, message), None);
    }
}
