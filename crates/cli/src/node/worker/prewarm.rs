//! Bringing boot images into page caches, a few mounts at a time, and never in the way of answers.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::Instant;

use anyhow::Context as _;
use parking_lot::Mutex;
use yolofs::{PrewarmOptions, Serving};

use super::prepare::Boot;
use super::served::Served;
use crate::control::PrewarmSummary;

/// Mounts that are prewarmed at a time: it is one copy after the other, and more would only take
/// the processors from those who start containers.
const THREADS: usize = 2;

/// The prewarms of one mount; at most one runs at a time.
#[derive(Debug)]
pub(super) struct Prewarm {
    running: Mutex<()>,
    /// Ends the one that runs or comes next.
    cancel: Mutex<Arc<AtomicBool>>,
    state: Mutex<&'static str>,
}

impl Prewarm {
    pub(super) fn new() -> Self {
        Self {
            running: Mutex::new(()),
            cancel: Mutex::default(),
            state: Mutex::new("off"),
        }
    }

    /// Returns where the prewarm stands: `off`, `running`, `done`, `cancelled` or `failed`.
    pub(super) fn state(&self) -> &'static str {
        *self.state.lock()
    }

    /// Makes the prewarms that were begun so far end soon.
    pub(super) fn cancel(&self) {
        let begun = std::mem::take(&mut *self.cancel.lock());
        begun.store(true, SeqCst);
    }

    /// Prewarms on this thread.
    ///
    /// # Errors
    /// If the mount is gone or the kernel takes nothing.
    pub(super) fn run(
        &self,
        serving: &Serving,
        boot: &Boot,
        options: PrewarmOptions<'_>,
    ) -> anyhow::Result<PrewarmSummary> {
        let cancel = Arc::clone(&self.cancel.lock());
        let _one_at_a_time = self.running.lock();
        *self.state.lock() = "running";
        let started = Instant::now();
        let options = PrewarmOptions {
            cancel: Some(&cancel),
            ..options
        };
        let result = serving.prewarm(boot.image.plan(), boot, &options);
        *self.state.lock() = match &result {
            Ok(report) if report.cancelled => "cancelled",
            Ok(_) => "done",
            Err(_) => "failed",
        };
        let report = result.context("bringing the boot image into the page cache")?;
        Ok(PrewarmSummary {
            touches: report.touches,
            injected_bytes: report.injected_bytes,
            skipped_bytes: report.skipped_bytes,
            took_ms: u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
        })
    }
}

/// Prewarms in the background, in the order in which mounts come. An entry for each adoption and
/// each swap; a mount that is gone before its turn is not kept for it.
#[derive(Debug)]
pub(super) struct Queue(Sender<Weak<Served>>);

impl Queue {
    /// # Errors
    /// If no threads can be had.
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
