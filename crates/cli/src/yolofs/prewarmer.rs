//! The thread of a daemon that brings the boot image into the page cache.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Instant;

use anyhow::{Context as _, anyhow};
use bootimg::Attached;
use parking_lot::Mutex;
use yolofs::{Lock, Mount, PrewarmOptions};

use crate::control::PrewarmSummary;

/// Prewarms one mount; at most one prewarm runs at a time.
#[derive(Debug)]
pub(super) struct Prewarmer {
    mount: Arc<Mount>,
    image: Arc<Attached>,
    lock: Lock,
    cancel: AtomicBool,
    running: Mutex<()>,
    state: Mutex<&'static str>,
}

impl Prewarmer {
    pub(super) fn new(mount: Arc<Mount>, image: Arc<Attached>, lock: Lock) -> Arc<Self> {
        Arc::new(Self {
            mount,
            image,
            lock,
            cancel: AtomicBool::new(false),
            running: Mutex::new(()),
            state: Mutex::new("off"),
        })
    }

    /// Says where the prewarm stands: `off`, `running`, `done`, `cancelled` or `failed`.
    pub(super) fn state(&self) -> &'static str {
        *self.state.lock()
    }

    /// Makes a running prewarm end soon, and further ones at once.
    pub(super) fn cancel(&self) {
        self.cancel.store(true, SeqCst);
    }

    /// Prewarms on this thread, which must not be one that serves requests.
    pub(super) fn run(&self, budget_bytes: Option<u64>) -> anyhow::Result<PrewarmSummary> {
        let _one_at_a_time = self.running.lock();
        *self.state.lock() = "running";
        let started = Instant::now();
        let options = PrewarmOptions {
            lock: self.lock,
            cancel: Some(&self.cancel),
            budget_bytes,
            ..PrewarmOptions::default()
        };
        let result = self
            .mount
            .prewarm(self.image.plan(), &*self.image, &options);
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

    /// Prewarms on a thread of its own. A failure costs speed only: it is logged.
    pub(super) fn start(
        self: &Arc<Self>,
        budget: Option<u64>,
    ) -> anyhow::Result<std::thread::JoinHandle<()>> {
        let prewarmer = Arc::clone(self);
        std::thread::Builder::new()
            .name("prewarm".to_owned())
            .spawn(move || {
                if let Err(error) = prewarmer.run(budget) {
                    log::warn!("{error:#}; reads are answered one by one instead");
                }
            })
            .map_err(|error| anyhow!(error).context("starting the thread that prewarms"))
    }
}
