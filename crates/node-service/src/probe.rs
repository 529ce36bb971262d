//! Requests for the status of workers: for clients of the API, and to find workers that hang.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::wire::{WorkerRequest, WorkerResponse, WorkerStatus};
use super::workers::Worker;
use host::caught::caught_round;
use node_api::device::DeviceStatus;
use node_api::status::MountStatus;

/// How long a probe waits for its answer, which comes from counters.
const PATIENCE: Duration = Duration::from_secs(2);
/// The time between the beginnings of two probes.
const EVERY: Duration = Duration::from_secs(2);
/// A worker that misses so many in a row, 10 s, is killed, and its mounts go to another.
const MISSES: u32 = 5;

/// What workers said.
#[derive(Debug, Default)]
pub(crate) struct Statuses {
    /// Of their mounts, by key.
    pub mounts: HashMap<String, MountStatus>,
    /// Of their devices, by name.
    pub devices: HashMap<String, DeviceStatus>,
}

/// Requests the status of all at once, and returns the responses in time, and the workers that did not respond.
pub(crate) fn ask_all(workers: &[Arc<Worker>], patience: Duration) -> (Statuses, Vec<Arc<Worker>>) {
    ask_about(workers, None, patience)
}

/// The same, about one mount if `key` names one.
pub(crate) fn ask_about(
    workers: &[Arc<Worker>],
    key: Option<&str>,
    patience: Duration,
) -> (Statuses, Vec<Arc<Worker>>) {
    let question = WorkerRequest::Status {
        id: key.map(str::to_owned),
    };
    let ask = |worker: &Arc<Worker>| match worker.ask(&question, patience) {
        Ok(WorkerResponse::Status(status)) => Some(status),
        Ok(other) => {
            log::warn!("unexpected response of a worker: {other:?}");
            None
        }
        Err(error) => {
            log::debug!("{error:#}");
            None
        }
    };
    let answers: Vec<_> = std::thread::scope(|scope| {
        let asked: Vec<_> = workers
            .iter()
            .map(|worker| (worker, scope.spawn(move || ask(worker))))
            .collect();
        // A panic is no answer.
        let joined = asked.into_iter();
        joined
            .map(|(worker, thread)| (worker, thread.join().ok().flatten()))
            .collect()
    });
    let (mut heard, mut silent) = (Statuses::default(), Vec::new());
    for (worker, answer) in answers {
        match answer {
            Some(WorkerStatus {
                mounts, devices, ..
            }) => {
                let mounts = mounts.into_iter().map(|mount| (mount.id.clone(), mount));
                heard.mounts.extend(mounts);
                let devices = devices
                    .into_iter()
                    .map(|device| (device.name.clone(), device));
                heard.devices.extend(devices);
            }
            None => silent.push(Arc::clone(worker)),
        }
    }
    (heard, silent)
}

/// Starts to probe all workers periodically, on a thread of its own that ends with the
/// node.
///
/// # Errors
/// If no thread can be started.
pub(crate) fn start(
    workers: impl Fn() -> Option<Vec<Arc<Worker>>> + Send + 'static,
) -> anyhow::Result<()> {
    std::thread::Builder::new()
        .name("probe-workers".to_owned())
        .spawn(move || probe_each(EVERY, workers))
        .map(drop)
        .context("starting the thread that probes the workers")
}

/// Probes the workers until there is nobody to have some. A panic ends one round of it.
fn probe_each(every: Duration, workers: impl Fn() -> Option<Vec<Arc<Worker>>>) {
    let round = || {
        let Some(workers) = workers() else {
            return ControlFlow::Break(());
        };
        probe(&workers);
        ControlFlow::Continue(())
    };
    loop {
        let began = Instant::now();
        if caught_round("probing the workers", round) == Some(ControlFlow::Break(())) {
            return;
        }
        std::thread::sleep(every.saturating_sub(began.elapsed()));
    }
}

fn probe(workers: &[Arc<Worker>]) {
    let (_, silent) = ask_all(workers, PATIENCE);
    for worker in workers {
        let answered = !silent.iter().any(|s| Arc::ptr_eq(s, worker));
        if worker.probed(answered) >= MISSES {
            log::error!("worker {} does not respond: killing it", worker.process.pid);
            worker.kill();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// It ended the thread: from then on a worker that hung was never found.
    #[test]
    fn a_panic_in_one_round_keeps_no_other_from_its_turn() {
        let (rounds, before) = (Cell::new(0), host::caught::panics());
        let workers = || {
            rounds.set(rounds.get() + 1);
            match rounds.get() {
                1 => panic!("part of the test"),
                2 => Some(Vec::new()),
                _ => None,
            }
        };
        probe_each(Duration::ZERO, workers);
        assert_eq!(rounds.get(), 3);
        assert!(host::caught::panics() > before);
    }
}
