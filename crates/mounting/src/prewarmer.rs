//! The thread of a daemon that brings the boot image into the page cache.

use std::sync::Arc;

use anyhow::{Context as _, anyhow};
use blocks::BlockCache;
use bootimg::Attached;
use yolofs::{Lock, Mount, PrewarmOptions};

use crate::nic::BootBlocks;
use crate::prewarming::{Prewarming, affordable};
use node_api::mount_daemon::PrewarmSummary;
use node_api::mount_state::PrewarmState;

/// Prewarms one mount; at most one prewarm runs at a time.
#[derive(Debug)]
pub struct Prewarmer {
    mount: Arc<Mount>,
    image: Arc<Attached>,
    blocks: Arc<BootBlocks>,
    lock: Lock,
    prewarming: Prewarming,
}

impl Prewarmer {
    /// Prewarms `mount` from an image whose blocks are `blocks`.
    pub fn new(
        mount: Arc<Mount>,
        image: Arc<Attached>,
        blocks: Arc<BootBlocks>,
        lock: Lock,
    ) -> Arc<Self> {
        Arc::new(Self {
            mount,
            image,
            blocks,
            lock,
            prewarming: Prewarming::new(PrewarmState::Off),
        })
    }

    /// Says where the prewarm stands.
    pub fn state(&self) -> PrewarmState {
        self.prewarming.state()
    }

    /// Makes a running prewarm end soon, and further ones at once.
    pub fn cancel(&self) {
        self.prewarming.close();
    }

    /// Prewarms on this thread, which must not be one that serves requests.
    pub fn run(&self, budget_bytes: Option<u64>) -> anyhow::Result<PrewarmSummary> {
        let prewarmed = self.prewarming.run(|cancel| {
            let options = PrewarmOptions {
                lock: affordable(self.lock, self.image.plan().block_count(), budget_bytes),
                cancel: Some(cancel),
                budget_bytes,
                ..PrewarmOptions::default()
            };
            let plan = self.image.plan();
            let prewarm = |blocks: &dyn BlockCache| self.mount.prewarm(plan, blocks, &options);
            self.blocks.in_order(prewarm)
        });
        prewarmed.context("bringing the boot image into the page cache")
    }

    /// Prewarms on a thread of its own. A failure costs speed only: it is logged.
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
