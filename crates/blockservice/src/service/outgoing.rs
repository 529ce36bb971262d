//! The queue of frames that wait to be written to a connection.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;

use super::link::{Form, Link};
use super::machine::Credit;
use crate::line_rate::LineRate;
use crate::wire::stream::write_frames;
use crate::wire::{Frame, HEAD_BYTES, Seal};
use serving::rate::RateLimiter;

/// With so many bytes queued, no more chunks are read for the connection: later and more urgent
/// ones would wait behind them. Less where the client takes less in [`QUEUE_MS`], but never less than the first.
const ROOM: (u64, u64) = (128 << 10, 512 << 10);
/// How long a chunk may wait behind others in the queue, in milliseconds.
const QUEUE_MS: u64 = 10;

/// Small frames that are written at once, up to so many bytes.
const BATCH: usize = 32;
const BATCH_BYTES: u64 = 64 << 10;

/// With so many bytes queued, no more frames of the client are read. It is more than the readers
/// queue, so that chunks alone never delay a READ or a CANCEL.
const ANSWERS: u64 = 2 << 20;

/// The sending half of a connection's queue. It is bounded by windows, and for other responses by
/// [`wait_for_room`](Self::wait_for_room). The writer ends when the last one is dropped.
pub(crate) struct Outgoing {
    frames: mpsc::UnboundedSender<(Frame, Option<Credit>)>,
    gauge: Arc<Gauge>,
    link: Link,
    raw_rate: u64,
}

/// The other end of an [`Outgoing`].
pub(crate) struct Writer {
    frames: mpsc::UnboundedReceiver<(Frame, Option<Credit>)>,
    gauge: Arc<Gauge>,
}

/// Waits for room in the queue of a connection.
pub(crate) trait RoomListener: Send + Sync {
    /// Called when there is room again, or the connection has ended.
    fn wake(&self);
}

/// How much waits to be written.
struct Gauge {
    bytes: AtomicU64,
    /// The client's rate in bytes per second; 0 before it is known.
    rate: AtomicU64,
    over: AtomicBool,
    wrote: Notify,
    readers: Arc<dyn RoomListener>,
}

impl Outgoing {
    pub(crate) fn new(
        readers: Arc<dyn RoomListener>,
        link: Link,
        raw_rate: u64,
    ) -> (Arc<Self>, Writer) {
        let (sender, frames) = mpsc::unbounded_channel();
        let gauge = Arc::new(Gauge {
            bytes: AtomicU64::new(0),
            rate: AtomicU64::new(0),
            over: AtomicBool::new(false),
            wrote: Notify::new(),
            readers,
        });
        let outgoing = Arc::new(Self {
            frames: sender,
            gauge: Arc::clone(&gauge),
            link,
            raw_rate,
        });
        (outgoing, Writer { frames, gauge })
    }

    /// Queues a frame; its credit is returned when it was written.
    pub(crate) fn send(&self, frame: Frame, credit: Option<Credit>) {
        self.gauge.bytes.fetch_add(len(&frame), SeqCst);
        // A connection that is over needs no answers.
        let _sent = self.frames.send((frame, credit));
    }

    pub(crate) fn has_room(&self) -> bool {
        self.gauge.bytes.load(SeqCst) < self.gauge.room() || self.is_over()
    }

    /// Returns in which form chunks are sent now.
    pub(crate) fn form(&self) -> Form {
        self.link.form(self.gauge.rate(), self.raw_rate)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.gauge.over.load(SeqCst)
    }

    /// Waits until there is room for a response that needs no credit.
    pub(crate) async fn wait_for_room(&self) {
        self.wait_below(ANSWERS).await;
    }

    /// Waits until there is room for a piece of a long response, so that urgent chunks do not wait behind
    /// it.
    pub(crate) async fn wait_for_piece(&self) {
        self.wait_below(self.gauge.room()).await;
    }

    async fn wait_below(&self, bytes: u64) {
        loop {
            let wrote = self.gauge.wrote.notified();
            tokio::pin!(wrote);
            wrote.as_mut().enable();
            if self.gauge.bytes.load(SeqCst) < bytes || self.is_over() {
                return;
            }
            wrote.await;
        }
    }
}

impl Gauge {
    fn rate(&self) -> Option<u64> {
        Some(self.rate.load(Relaxed)).filter(|rate| *rate > 0)
    }

    /// Returns how many bytes may be queued before no more chunks are read.
    fn room(&self) -> u64 {
        let taken = |rate: u64| rate.saturating_mul(QUEUE_MS) / 1000;
        self.rate().map_or(ROOM.1, taken).clamp(ROOM.0, ROOM.1)
    }

    fn wrote(&self, bytes: u64, rate: Option<u64>) {
        let room = self.room();
        let before = self.bytes.fetch_sub(bytes, SeqCst);
        self.rate.store(rate.unwrap_or(0), Relaxed);
        self.wrote.notify_waiters();
        // Or there is room now because the client takes more.
        if before >= room.min(self.room()) && before - bytes < self.room() {
            self.readers.wake();
        }
    }

    fn end(&self) {
        self.over.store(true, SeqCst);
        self.wrote.notify_waiters();
        self.readers.wake();
    }
}

impl Writer {
    /// Takes the frames that wait behind `first` as long as all are small; returns their bytes,
    /// too.
    fn batch(&mut self, first: (Frame, Option<Credit>)) -> (Vec<(Frame, Option<Credit>)>, u64) {
        let mut bytes = len(&first.0);
        let mut batch = vec![first];
        while bytes < BATCH_BYTES && batch.len() < BATCH {
            let Ok(next) = self.frames.try_recv() else {
                break;
            };
            bytes += len(&next.0);
            batch.push(next);
        }
        (batch, bytes)
    }

    /// Writes frames, no quicker than `pace`, until there will be no more or the client does not
    /// read for `patience`.
    pub(crate) async fn run<W: AsyncWrite + Unpin>(
        mut self,
        mut to: W,
        mut seal: Seal,
        patience: Duration,
        pace: Option<Arc<RateLimiter>>,
    ) {
        let mut line = LineRate::default();
        while let Some(first) = self.frames.recv().await {
            let (batch, bytes) = self.batch(first);
            let began = Instant::now();
            if let Some(pace) = &pace {
                pace.wait(bytes).await;
            }
            let frames = batch.iter().map(|(frame, _)| frame);
            let written = timeout(patience, write_frames(&mut to, frames, &mut seal)).await;
            // With the credits.
            drop(batch);
            self.gauge.wrote(bytes, line.add(bytes, began.elapsed()));
            match written {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    log::debug!("a connection is over: {error}");
                    break;
                }
                Err(_) => {
                    log::info!("a client read nothing for {patience:?}: disconnected");
                    break;
                }
            }
        }
        // Credits of what was not written are given back; readers pass over the rest.
        drop(self.frames);
        self.gauge.end();
        let _gone = timeout(patience, to.shutdown()).await;
    }
}

fn len(frame: &Frame) -> u64 {
    (HEAD_BYTES + frame.data.len()) as u64
}
