//! The thread of a daemon that brings the boot image into the page cache.

use std::sync::Arc;

use anyhow::anyhow;
use yolofs::{Lock, Mount};

use crate::boot::Boot;
use crate::prewarming::{PrewarmRequest, Prewarming};
use node_api::mount_daemon::PrewarmSummary;
use node_api::mount_state::PrewarmState;

/// Prewarms one mount; at most one prewarm runs at a time.
#[derive(Debug)]
pub struct Prewarmer {
    mount: Arc<Mount>,
    boot: Arc<Boot>,
    lock: Lock,
    prewarming: Prewarming,
}

impl Prewarmer {
    /// Prewarms `mount` from a boot image.
    pub fn new(mount: Arc<Mount>, boot: Arc<Boot>, lock: Lock) -> Arc<Self> {
        Arc::new(Self {
            mount,
            boot,
            lock,
            prewarming: Prewarming::new(PrewarmState::Off),
        })
    }

    /// Returns the state of the prewarm.
    pub fn state(&self) -> PrewarmState {
        self.prewarming.state()
    }

    /// Makes a running prewarm end soon, and further ones at once.
    pub fn cancel(&self) {
        self.prewarming.close();
    }

    /// Prewarms on this thread, which must not be one that serves requests.
    ///
    /// # Errors
    /// If the mount cannot be used.
    pub fn run(&self, budget_bytes: Option<u64>) -> anyhow::Result<PrewarmSummary> {
        let request = PrewarmRequest {
            lock: self.lock,
            budget_bytes,
            ..PrewarmRequest::default()
        };
        self.prewarming
            .prewarm(&self.boot, &request, |plan, blocks, options| {
                self.mount.prewarm(plan, blocks, options)
            })
    }

    /// Prewarms on a separate thread. A failure costs speed only: it is logged.
    pub fn start(
        self: &Arc<Self>,
        budget: Option<u64>,
    ) -> anyhow::Result<std::thread::JoinHandle<()>> {
        let prewarmer = Arc::clone(self);
        std::thread::Builder::new()
            .name("prewarm".to_owned())
            .spawn(move || {
                if let Err(error) = prewarmer.run(budget) {
                    log::warn!("cannot prewarm: {error:#}; serving reads one by one");
                }
            })
            .map_err(|error| anyhow!(error).context("starting the thread that prewarms"))
    }
}
