//! A START that is being answered: the index and the plan come in pieces, before the first chunk.

use std::sync::Weak;
use std::time::Instant;

use blocks::ContentId;
use bootimg::PLAN_MAX;
use chunks::Codec;
use chunks::index::INDEX_MAX;
use chunks::links::LINKS_BYTES_MAX;
use fetch::StreamId;

use super::super::registered::{Receiver, RegisteredSource};
use crate::wire::versions::LINKS_SINCE;
use crate::wire::{Ask, ErrorCode, Frame, Message};
use std::sync::Arc;

/// Bytes of an index and a plan that suffice to measure a rate.
const RATED_MIN: u64 = 64 << 10;

/// What a START brought before its chunks.
#[derive(Debug)]
pub(in crate::client) struct StartAnswer {
    /// The id of the index.
    pub(in crate::client) id: ContentId,
    /// The index, packed, and its raw length; `None` if the client has it.
    pub(in crate::client) index: Option<(Codec, Vec<u8>, u64)>,
    /// The plan, if there is one.
    pub(in crate::client) plan: Option<Vec<u8>>,
    /// The links of programs, if they came.
    pub(in crate::client) links: Option<Vec<u8>>,
    /// The stream that follows, if one does, and the number of its request.
    pub(in crate::client) stream: Option<(StreamId, u64)>,
}

/// Why a START was not answered.
#[derive(Debug)]
pub(in crate::client) enum StartRefused {
    /// The service uses version 1 of the protocol, which has no START.
    Old,
    /// The service refused it.
    Refused(ErrorCode, String),
    /// The response is not valid.
    Wrong(&'static str),
}

/// Receives the response to a START, and returns the receiver of the chunks that follow. Dropped
/// without a call if the connection is lost.
pub(in crate::client) type Begin = Box<
    dyn FnOnce(Result<StartAnswer, StartRefused>) -> Option<Weak<dyn Receiver>> + Send + 'static,
>;

/// A START that is wanted.
pub(in crate::client) struct StartRequest {
    pub(in crate::client) source: Arc<RegisteredSource>,
    pub(in crate::client) ask: Ask,
    /// The index that the client has; zeros for none.
    pub(in crate::client) have: ContentId,
    /// The plan that the client has, and from which of its chunks on it lacks some: it wants these, and nothing else.
    pub(in crate::client) rest: Option<(ContentId, u32)>,
    /// Chosen by the client, for the stream that may follow.
    pub(in crate::client) stream: StreamId,
    /// Dropped when no thread waits for it any more.
    pub(in crate::client) waiter: Weak<()>,
    pub(in crate::client) begin: Begin,
}

impl std::fmt::Debug for StartRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StartRequest")
            .field("source", &self.source.number)
            .field("ask", &self.ask)
            .finish_non_exhaustive()
    }
}

/// What STARTED announced.
#[derive(Debug)]
struct Announced {
    handle: u32,
    id: ContentId,
    codec: Codec,
    raw_len: u64,
    packed_len: u64,
    plan_len: u64,
    plan_chunks: u32,
    links_len: u64,
}

/// A START that was sent.
#[derive(Debug)]
pub(super) struct Starting {
    pub(super) request: StartRequest,
    announced: Option<Announced>,
    /// When STARTED arrived.
    began: Instant,
    index: Vec<u8>,
    plan: Vec<u8>,
    links: Vec<u8>,
}

/// How far a START is answered.
#[derive(Debug)]
pub(super) enum Progress {
    /// More frames follow.
    Going,
    /// Index, plan and links are there.
    Complete,
    /// It is refused, or the response breaks a rule.
    Over(StartRefused),
}

impl Starting {
    pub(super) fn new(request: StartRequest) -> Self {
        Self {
            request,
            announced: None,
            began: Instant::now(),
            index: Vec::new(),
            plan: Vec::new(),
            links: Vec::new(),
        }
    }

    /// Returns the request.
    pub(super) fn message(&self) -> Message {
        let (have, name) = (self.request.have, self.request.source.name.clone());
        let ask = self.request.ask;
        match self.request.rest {
            None => Message::Start { ask, have, name },
            Some((plan, first)) => Message::Resume {
                have,
                plan,
                first,
                name,
            },
        }
    }

    /// Handles one frame of the response, in a connection of a version. Memory grows with the received bytes, not with the announced length.
    pub(super) fn take(&mut self, frame: Frame, version: u16) -> Progress {
        match (frame.message, &self.announced) {
            (Message::Error { code, text }, _) => {
                return Progress::Over(StartRefused::Refused(code, text));
            }
            (
                Message::Started {
                    handle,
                    codec,
                    id,
                    raw_len,
                    packed_len,
                    plan_len,
                    plan_chunks,
                    links_len,
                },
                None,
            ) => {
                let Some(codec) = Codec::from_number(codec) else {
                    return Progress::Over(StartRefused::Wrong("a codec of the index"));
                };
                let links_len = u64::from(links_len);
                if links_len > 0 && version < LINKS_SINCE {
                    return Progress::Over(StartRefused::Wrong("links in an earlier version"));
                }
                if raw_len > INDEX_MAX
                    || packed_len > raw_len
                    || plan_len > PLAN_MAX
                    || links_len > LINKS_BYTES_MAX
                {
                    return Progress::Over(StartRefused::Wrong("a length beyond its limit"));
                }
                self.began = Instant::now();
                self.announced = Some(Announced {
                    handle,
                    id,
                    codec,
                    raw_len,
                    packed_len,
                    plan_len,
                    plan_chunks,
                    links_len,
                });
            }
            (Message::Index, Some(_)) => self.index.extend_from_slice(&frame.data),
            (Message::Plan, Some(_)) => self.plan.extend_from_slice(&frame.data),
            (Message::Links, Some(_)) => self.links.extend_from_slice(&frame.data),
            _ => return Progress::Over(StartRefused::Wrong("an answer to START")),
        }
        self.progress()
    }

    fn progress(&self) -> Progress {
        let Some(announced) = &self.announced else {
            return Progress::Going;
        };
        let have = [&self.index, &self.plan, &self.links].map(|part| part.len() as u64);
        let expected = [
            announced.packed_len,
            announced.plan_len,
            announced.links_len,
        ];
        if have.iter().zip(expected).any(|(have, all)| *have > all) {
            Progress::Over(StartRefused::Wrong("more than was announced"))
        } else if have == expected {
            Progress::Complete
        } else {
            Progress::Going
        }
    }

    /// Returns the handle of the source, and the id of its index, when STARTED has come.
    pub(super) fn handle(&self) -> Option<(u32, ContentId)> {
        let announced = self.announced.as_ref()?;
        Some((announced.handle, announced.id))
    }

    /// Returns the bytes per second since STARTED; `None` if that was too short to measure.
    pub(super) fn rate(&self, now: Instant) -> Option<u64> {
        let bytes = (self.index.len() + self.plan.len()) as u64;
        let micros = now.duration_since(self.began).as_micros();
        let micros = u64::try_from(micros).unwrap_or(u64::MAX);
        (bytes >= RATED_MIN).then(|| bytes.saturating_mul(1_000_000) / micros.max(1))
    }

    /// Delivers the response, and returns the receiver of the chunks of the stream, if one follows.
    pub(super) fn begin(self, number: u64) -> Option<Weak<dyn Receiver>> {
        let Some(announced) = self.announced else {
            return (self.request.begin)(Err(StartRefused::Wrong("no STARTED")));
        };
        let streams = match self.request.rest {
            None => self.request.ask == Ask::Chunks && announced.plan_len > 0,
            Some(_) => announced.plan_chunks > 0,
        };
        let packed = announced.packed_len > 0;
        let answer = StartAnswer {
            id: announced.id,
            index: packed.then_some((announced.codec, self.index, announced.raw_len)),
            plan: (announced.plan_len > 0).then_some(self.plan),
            links: (announced.links_len > 0).then_some(self.links),
            stream: streams.then_some((self.request.stream, number)),
        };
        (self.request.begin)(Ok(answer))
    }
}
