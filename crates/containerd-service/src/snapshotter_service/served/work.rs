//! The threads that mount and unmount layers.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use host::caught::caught;
use snapshotter::SnapshotId;

use super::Shared;
use super::queue::{Job, LATER, ServingState};
use layers::server::{Attach, LayerPlace};

/// How often the store is looked at for images that others recorded or pulled.
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl Shared {
    pub(super) fn work(&self) {
        loop {
            let mut now = self.now.lock();
            if now.ending {
                return;
            }
            let job = now.next_job(|| self.server.hold_warming());
            if job.is_none() {
                let patience = if now.commits.is_some() {
                    LATER
                } else {
                    LOOK_EVERY
                };
                self.changed.wait_for(&mut now, patience);
            }
            drop(now);
            let Some(job) = job else {
                if let Err(panicked) = caught(|| self.refresh()) {
                    log::error!("looking for images that are new in the store: {panicked}");
                }
                continue;
            };
            let id = job.layer();
            if let Err(panicked) = caught(|| self.handle(&job)) {
                log::error!("snapshot {id}: {panicked}");
            }
            self.now.lock().at_work.remove(&id);
            self.changed.notify_all();
        }
    }

    fn handle(&self, job: &Job) {
        match *job {
            Job::Attach(id) => self.attach(id),
            Job::Detach(id) => {
                self.detach(id);
            }
            Job::Reattach(id) => self.reattach(id),
            Job::Warm(id) => self.server.warm_again(&self.place(id)),
        }
    }

    fn attach(&self, id: SnapshotId) {
        let place = {
            let now = self.now.lock();
            // Removed since.
            let Some(known) = now.layers.get(&id) else {
                return;
            };
            let layer = known.layer.chain_id().and_then(|c| now.chains.layer(&c));
            layer.map(|layer| LayerPlace {
                layer,
                source: known.layer.dir.clone(),
                target: self.place(id),
                label: self.label.clone(),
            })
        };
        let mut failed = None;
        let began = Instant::now();
        // One that panics has failed: others would wait for one that is coming.
        let mounted = place.map_or(Ok(Attach::Unknown), |place| {
            caught(|| self.mount(&place)).unwrap_or_else(|panicked| {
                Err(panicked).with_context(|| format!("mounting layer {}", place.layer.short()))
            })
        });
        let state = match mounted {
            Ok(Attach::Attached) => {
                self.now.lock().attach_time.note(began.elapsed());
                ServingState::Served
            }
            Ok(Attach::Already) => ServingState::Served,
            Err(error) if self.server.serves(&self.place(id)) => {
                log::warn!("{error:#}; still serving its older boot image");
                ServingState::Served
            }
            Ok(Attach::Unknown) => ServingState::Plain,
            Err(error) => {
                log::warn!("{error:#}; using its plain directory");
                failed = Some(Instant::now());
                ServingState::Plain
            }
        };
        let mut now = self.now.lock();
        match now.layers.get_mut(&id) {
            Some(known) => {
                known.state = state;
                known.failed = failed;
            }
            None => now.jobs.push_back(Job::Detach(id)),
        }
        drop(now);
        self.changed.notify_all();
    }

    fn mount(&self, place: &LayerPlace) -> anyhow::Result<Attach> {
        let target = &place.target;
        std::fs::create_dir_all(target).with_context(|| format!("making {}", target.display()))?;
        self.server.attach(place)
    }

    /// Has a layer served from where its directory leads now. What is served stays as it is if it
    /// cannot be detached, and is tried again.
    fn reattach(&self, id: SnapshotId) {
        let detached = self.detach(id);
        if detached {
            self.attach(id);
        }
        if let Some(known) = self.now.lock().layers.get_mut(&id) {
            known.follows = detached;
            if !detached {
                known.state = ServingState::Served;
            }
        }
    }

    /// Returns whether nothing is served at the layer's place any more.
    fn detach(&self, id: SnapshotId) -> bool {
        let place = self.place(id);
        if let Err(error) = self.server.detach(&place) {
            log::warn!("{error:#}");
            return false;
        }
        if let Err(error) = std::fs::remove_dir(&place) {
            log::debug!("{}: {error}", place.display());
        }
        true
    }
}
