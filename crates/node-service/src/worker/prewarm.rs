//! Loads boot images into page caches, a few mounts at a time, with lower priority than requests.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};

use anyhow::Context as _;
use parking_lot::Mutex;

use super::served::Served;

/// Mounts that are prewarmed at a time: it is one copy after the other, and more would only take
/// the processors from those who start containers.
const THREADS: usize = 2;

/// Prewarms in the background, in the order in which mounts arrive. An entry for each adoption and
/// each swap; a mount that ends while it waits is not kept for it.
#[derive(Debug)]
pub(super) struct Queue(Sender<Weak<Served>>);

impl Queue {
    /// # Errors
    /// If no threads can be started.
    pub(super) fn start() -> anyhow::Result<Self> {
        let (sender, receiver) = channel();
        let receiver = Arc::new(Mutex::new(receiver));
        for _ in 0..THREADS {
            let receiver = Arc::clone(&receiver);
            std::thread::Builder::new()
                .name("prewarm".to_owned())
                .spawn(move || work(&receiver))
                .context("starting a thread that prewarms")?;
        }
        Ok(Self(sender))
    }

    pub(super) fn add(&self, served: &Arc<Served>) {
        // The threads live as long as the process.
        let _added = self.0.send(Arc::downgrade(served));
    }
}

fn work(waiting: &Mutex<Receiver<Weak<Served>>>) {
    loop {
        let next = waiting.lock().recv();
        let Ok(served) = next else { return };
        let Some(served) = served.upgrade() else {
            continue;
        };
        if let Err(error) = served.prewarm_first() {
            log::warn!("{}: {error:#}; reads are answered one by one", served.id());
        }
    }
}
