//! The queue of frames that wait to be written to a connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;

use super::machine::Credit;
use crate::wire::stream::write_frames;
use crate::wire::{Frame, HEAD_BYTES, Seal};
use serving::rate::RateLimiter;

/// With so many bytes queued, no more chunks are read for the connection: later and more urgent
/// ones would wait behind them.
const ROOM: u64 = 512 << 10;

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
    over: AtomicBool,
    wrote: Notify,
    readers: Arc<dyn RoomListener>,
}

impl Outgoing {
    pub(crate) fn new(readers: Arc<dyn RoomListener>) -> (Arc<Self>, Writer) {
        let (sender, frames) = mpsc::unbounded_channel();
        let gauge = Arc::new(Gauge {
            bytes: AtomicU64::new(0),
            over: AtomicBool::new(false),
            wrote: Notify::new(),
            readers,
        });
        let outgoing = Arc::new(Self {
            frames: sender,
            gauge: Arc::clone(&gauge),
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
        self.gauge.bytes.load(SeqCst) < ROOM || self.is_over()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.gauge.over.load(SeqCst)
    }

    /// Waits until there is room for an answer that needs no credit.
    pub(crate) async fn wait_for_room(&self) {
        self.wait_below(ANSWERS).await;
    }

    /// Waits until there is room for a piece of something long, behind which urgent chunks would
    /// have to wait.
    pub(crate) async fn wait_for_piece(&self) {
        self.wait_below(ROOM).await;
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
    fn wrote(&self, bytes: u64) {
        let before = self.bytes.fetch_sub(bytes, SeqCst);
        self.wrote.notify_waiters();
        if before >= ROOM && before - bytes < ROOM {
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
        while let Some(first) = self.frames.recv().await {
            let (batch, bytes) = self.batch(first);
            if let Some(pace) = &pace {
                pace.wait(bytes).await;
            }
            let frames = batch.iter().map(|(frame, _)| frame);
            let written = timeout(patience, write_frames(&mut to, frames, &mut seal)).await;
            // With the credits.
            drop(batch);
            self.gauge.wrote(bytes);
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
