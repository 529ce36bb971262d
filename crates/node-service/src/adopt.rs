//! Assigning a mount to a worker, and to another worker when that one dies.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use yolofs::{Busy, Readahead};

use super::asked::Asked;
use super::assignment::Service;
use super::deaths::{Cause, Verdict};
use super::few::few_at_a_time;
use super::owned::Owned;
use super::owner::Owner;
use super::wire::{WorkerRequest, WorkerResponse};
use super::workers::{Served, Worker};
use host::caught::caught_round;
use node_api::control::NodeError;

/// How long a worker may take to adopt a mount: the first one scans the source. One that hangs is
/// noticed by the probes, long before.
const ADOPTION: Duration = Duration::from_secs(600);
/// How long a response from counters or memory may take.
pub(crate) const QUICK: Duration = Duration::from_secs(5);
/// So many mounts of a dead worker are adopted at a time.
const AT_A_TIME: usize = 4;
/// So often a mount that was served before may be refused until it is given up.
const REFUSALS: u32 = 5;
/// The pause after the first refusal, or when no worker can be started; it doubles each time.
const PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How long the unmount of a mount that was given up may take.
const UNMOUNT: Duration = Duration::from_secs(5);

impl Owner {
    /// Has a mount served for the first time.
    ///
    /// # Errors
    /// What the worker refused; the mount is not served then.
    pub(crate) fn serve_first(&self, mount: &Arc<Owned>) -> Result<(), NodeError> {
        self.ask_one(mount).first("unmounted", || {
            mount.assigned.wait_until_served(Instant::now() + ADOPTION)
        })
    }

    /// Has a mount served that was served before, however often that must be tried.
    pub(crate) fn serve_again(&self, mount: &Arc<Owned>) {
        let (mut refusals, mut pause) = (0, PAUSE);
        loop {
            match self.ask_one(mount) {
                Asked::Served | Asked::Lost | Asked::Over => return,
                Asked::NoWorker(error) => log::error!("{}: {error:#}", mount.id),
                Asked::Refused(_, why) => {
                    refusals += 1;
                    log::error!("{}: its worker refuses: {why}", mount.id);
                    if refusals == REFUSALS {
                        return self.give_up(mount, &format!("no worker serves it: {why}"));
                    }
                }
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn ask_one(&self, mount: &Arc<Owned>) -> Asked {
        let watched = |worker: &Arc<Worker>| self.watch_worker(worker);
        let (company, spec) = (mount.company(), mount.spec());
        let worker = match self
            .pool
            .place(&mount.key, &company, Served::Mount(&spec), watched)
        {
            Ok(worker) => worker,
            Err(error) => return Asked::NoWorker(error),
        };
        if !mount.assigned.ask(&worker) {
            worker.release(&mount.key);
            return Asked::Over;
        }
        // Whoever finds the mount after a crash of ours finds its worker.
        self.record(mount);
        let (adoption, held) = mount.adoption();
        let descriptors = mount.descriptors(&held);
        let beside = descriptors.in_order();
        let served_before = !adoption.hello.answer.is_empty();
        let question = WorkerRequest::Adopt(Box::new(adoption));
        match worker.ask_with(&question, &beside, ADOPTION) {
            Ok((WorkerResponse::Adopted { hello }, _)) => {
                mount.served(&worker, hello);
                if let Some(kib) = mount.spec().readahead_kib {
                    mount.visible.set_readahead(Readahead::Kib(kib));
                }
                self.record(mount);
                let [_, private] = &held;
                match private {
                    None => mount.set_told(),
                    // It went while the worker was asked.
                    Some(_) if mount.is_leaving() => Self::tell_to_let_go(mount),
                    Some(_) => {}
                }
                if served_before {
                    self.watch_for_lost([(Arc::clone(mount), Arc::clone(&worker))]);
                }
                Asked::Served
            }
            Ok((WorkerResponse::Refused { fault, why }, _)) => {
                mount.assigned.refused(&worker);
                worker.release(&mount.key);
                Asked::Refused(fault, why)
            }
            Ok((answer, _)) => {
                log::error!("unexpected response of a worker: {answer:?}");
                worker.kill();
                Asked::Lost
            }
            Err(error) => {
                log::warn!("{}: {error:#}", mount.id);
                worker.kill();
                Asked::Lost
            }
        }
    }

    /// Notifies the worker of a mount that the visible mount is gone. One that does not respond is
    /// notified later, or its successor learns it from the descriptors it receives.
    pub(crate) fn tell_to_let_go(mount: &Owned) {
        let Service::By(worker) = mount.assigned.service() else {
            return;
        };
        if !worker.answers() {
            return;
        }
        let question = WorkerRequest::LetGo {
            id: mount.key.clone(),
        };
        match worker.ask(&question, QUICK) {
            Ok(_) => mount.set_told(),
            Err(error) => log::warn!("{}: {error:#}", mount.id),
        }
    }

    /// Watches a worker on a thread of its own, and has its mounts served by another worker when it
    /// dies.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(crate) fn watch_worker(&self, worker: &Arc<Worker>) -> anyhow::Result<()> {
        let (owner, worker) = (self.me.clone(), Arc::clone(worker));
        let watch = move || {
            let cause = worker.wait();
            if let Some(owner) = owner.upgrade() {
                caught_round("replacing a worker", || owner.succeed(&worker, cause));
            }
        };
        std::thread::Builder::new()
            .name("watch-worker".to_owned())
            .spawn(watch)
            .map(drop)
            .map_err(|error| anyhow!(error).context("watching over a worker"))
    }

    /// Has the mounts of a dead worker served by others.
    fn succeed(&self, worker: &Arc<Worker>, cause: Cause) {
        let at = Instant::now();
        let keys = self.pool.bury(worker);
        let (mounts, devices) = (self.with_keys(&keys), self.devices.with_keys(&keys));
        if mounts.is_empty() && devices.is_empty() {
            return;
        }
        if !worker.is_replaced() {
            self.worker_restarts.fetch_add(1, SeqCst);
            let pid = worker.process.pid;
            log::warn!(
                "worker {pid} died ({cause:?}) and had {} mounts and {} devices",
                mounts.len(),
                devices.len()
            );
        }
        let (mut together, mut wait) = (Vec::new(), Duration::ZERO);
        let mut apart = Vec::new();
        for mount in mounts {
            match mount.assigned.lost(worker, at, cause) {
                None => {}
                Some(Verdict::GiveUp) => {
                    self.give_up(&mount, "its workers crash one after the other");
                }
                Some(Verdict::Isolate(pause)) => apart.push((mount, pause)),
                Some(Verdict::Go(pause)) => {
                    wait = wait.max(pause);
                    together.push(mount);
                }
            }
        }
        std::thread::scope(|scope| {
            if !devices.is_empty() {
                scope.spawn(|| {
                    let replace = || self.succeed_devices(devices, worker, (at, cause));
                    caught_round("replacing the worker of devices", replace)
                });
            }
            for (mount, pause) in apart {
                scope.spawn(move || {
                    std::thread::sleep(pause);
                    let serving = format!("{}: serving it again", mount.id);
                    caught_round(&serving, || self.serve_again(&mount));
                });
            }
            if !together.is_empty() {
                std::thread::sleep(wait);
                self.serve_all(together);
            }
        });
    }

    /// Has many mounts served that were served before, a few at a time.
    pub(crate) fn serve_all(&self, mounts: Vec<Arc<Owned>>) {
        let name = |mount: &Arc<Owned>| mount.id.clone();
        few_at_a_time(AT_A_TIME, mounts, name, |mount| self.serve_again(&mount));
    }

    /// Ends a mount that cannot be served: its users get errors instead of waiting forever, and the
    /// place shows the source's own directory again. It stays listed, as failed.
    pub(crate) fn give_up(&self, mount: &Arc<Owned>, why: &str) {
        log::error!(
            "giving up the mount {}: {why}",
            mount.visible.target().display()
        );
        mount.assigned.give_up(why.to_owned());
        if let Err(error) = mount.visible.abort() {
            log::error!("{}: ending its connection: {error}", mount.id);
        }
        if let Err(error) = mount.visible.unmount(Busy::Lazy, UNMOUNT) {
            log::error!("{}: {error}", mount.id);
        }
    }
}
