//! Writes received chunks to the local store, on a separate thread: a reader does not wait for the
//! disk.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};

use super::flights::Keepable;
use chunks::ChunkStore;

/// Chunks that wait for the disk, at most: 32 MiB. What does not fit is not kept.
const QUEUE: usize = 256;

/// A thread that stores chunks until this is dropped; pending chunks are stored then.
#[derive(Debug)]
pub(super) struct StoreThread {
    queue: Option<SyncSender<Keepable>>,
    thread: Option<JoinHandle<()>>,
}

impl StoreThread {
    /// Starts to store chunks in `store`; without a thread, none are stored.
    pub(super) fn start(store: Arc<dyn ChunkStore>) -> Self {
        let (queue, chunks) = sync_channel(QUEUE);
        let work = move || keep(&*store, &chunks);
        let thread = Builder::new().name("nic-keep".to_owned()).spawn(work);
        let thread = thread
            .inspect_err(|error| log::warn!("chunks are not kept on the disk: {error}"))
            .ok();
        Self {
            queue: Some(queue),
            thread,
        }
    }

    /// Returns the way to it.
    pub(super) fn queue(&self) -> Option<SyncSender<Keepable>> {
        self.queue.clone()
    }

    /// Keeps a chunk, unless there is too much to do.
    pub(super) fn keep(&self, chunk: Keepable) {
        if let Some(queue) = &self.queue {
            let _kept = queue.try_send(chunk);
        }
    }
}

impl Drop for StoreThread {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            // A panic is on the log, and costs speed only.
            let _ended = thread.join();
        }
    }
}

fn keep(store: &dyn ChunkStore, chunks: &Receiver<Keepable>) {
    while let Ok(chunk) = chunks.recv() {
        let kept = match chunk {
            Keepable::Arrived(arrived) => {
                let (id, stored, class) = arrived.parts();
                store.put_stored(id, stored, class)
            }
            Keepable::Raw(id, chunk, class) => store.put(&id, &chunk, class),
        };
        if let Err(error) = kept {
            log::debug!("a chunk was not kept: {error}");
        }
    }
}
