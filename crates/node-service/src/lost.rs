//! Requests that a dead worker took with it, on kernels that do not send them again (before Linux 6.9).
//!
//! Who waits for such a request waits for ever, and no signal ends that. So a mount that has some is given up.
//! The kernel counts the requests without an answer: those that a worker has in its hand, those that
//! nobody has read, and those that are lost.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::{Context as _, bail};
use yolofs::Control;

use super::adopt::QUICK;
use super::assignment::Service;
use super::owned::Owned;
use super::owner::Owner;
use super::wire::{WorkerRequest, WorkerResponse};
use super::workers::Worker;
use host::caught::caught_round;

/// The time between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// So many looks that find a lost request, and none that finds nothing, are enough: 5 s at least. A
/// single one may see a request that is on its way.
const LOOKS: u32 = 50;

/// What one look finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// All requests that wait are in the worker's hand.
    Nothing,
    /// A request is in nobody's hand.
    Lost,
    /// The mount is too busy to tell.
    Unclear,
}

/// What a worker has done, and what it does.
#[derive(Debug, PartialEq, Eq)]
struct Work {
    /// The requests that it has read, by kind.
    read: BTreeMap<String, u64>,
    /// The requests that it has not answered.
    in_hand: u64,
}

/// A mount that is watched.
struct Suspect {
    mount: Arc<Owned>,
    worker: Arc<Worker>,
    /// How many looks found a lost request.
    looks: u32,
}

impl Owner {
    /// Watches mounts that another worker served before, each with its worker, until it is known whether requests were
    /// lost, and gives those up that have some. Nothing is lost on kernels that send them again.
    pub(crate) fn watch_for_lost(
        &self,
        mounts: impl IntoIterator<Item = (Arc<Owned>, Arc<Worker>)>,
    ) {
        let old = mounts
            .into_iter()
            .filter(|(mount, _)| !mount.kernel_resends());
        let suspects: Vec<_> = old
            .map(|(mount, worker)| Suspect {
                mount,
                worker,
                looks: 0,
            })
            .collect();
        if suspects.is_empty() {
            return;
        }
        let owner = self.me.clone();
        let watching = std::thread::Builder::new().name("watch-lost".to_owned());
        if let Err(error) = watching.spawn(move || watch(&owner, suspects)) {
            log::error!("nobody looks for lost requests: {error}");
        }
    }
}

fn watch(owner: &Weak<Owner>, mut suspects: Vec<Suspect>) {
    let control = match Control::open() {
        Ok(control) => control,
        Err(error) => return log::error!("nobody looks for lost requests: {error}"),
    };
    loop {
        let Some(owner) = owner.upgrade() else { return };
        suspects.retain_mut(|suspect| {
            let id = suspect.mount.id.clone();
            let looking = format!("{id}: looking for lost requests");
            let stays = caught_round(&looking, || suspect.stays_one(&owner, &control));
            stays.unwrap_or(false)
        });
        drop(owner);
        if suspects.is_empty() {
            return;
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

impl Suspect {
    /// Looks once, and returns whether to look again. If another worker serves the mount, that one is watched anew.
    fn stays_one(&mut self, owner: &Owner, control: &Control) -> bool {
        let (mount, worker) = (&self.mount, &self.worker);
        let served =
            matches!(mount.assigned.service(), Service::By(its) if Arc::ptr_eq(&its, worker));
        if !served || mount.assigned.is_over() {
            return false;
        }
        match look(control, mount, worker) {
            Ok(Found::Nothing) => {
                log::info!("{}: no request was lost", mount.id);
                return false;
            }
            Ok(Found::Lost) => self.looks += 1,
            Ok(Found::Unclear) => {}
            // Its death, and its silence, are seen elsewhere.
            Err(error) => log::debug!("{}: {error:#}", mount.id),
        }
        if self.looks < LOOKS {
            return true;
        }
        owner.give_up(
            mount,
            "a worker died with requests that it had read, and this kernel does not send them \
             again (Linux 6.9 and newer do): mount it again",
        );
        false
    }
}

fn look(control: &Control, mount: &Owned, worker: &Worker) -> anyhow::Result<Found> {
    let before = work(mount, worker)?;
    let waiting = control
        .waiting(mount.visible.ids())
        .context("reading how many requests wait")?;
    let has_unread = mount.has_unread();
    let is_steady = before == work(mount, worker)?;
    let look = Look {
        waiting,
        in_hand: before.in_hand,
        has_unread,
        is_steady,
    };
    Ok(look.found())
}

/// What one look sees of the requests of a mount.
#[derive(Clone, Copy, Debug)]
struct Look {
    /// The requests without an answer, as the kernel counts them.
    waiting: u64,
    /// Those that the worker has read.
    in_hand: u64,
    /// Whether there are some that nobody has read.
    has_unread: bool,
    /// Whether the worker has done nothing meanwhile.
    is_steady: bool,
}

impl Look {
    const fn found(self) -> Found {
        match self.waiting {
            0 => Found::Nothing,
            _ if !self.is_steady => Found::Unclear,
            waiting if waiting <= self.in_hand => Found::Nothing,
            _ if self.has_unread => Found::Unclear,
            _ => Found::Lost,
        }
    }
}

fn work(mount: &Owned, worker: &Worker) -> anyhow::Result<Work> {
    let question = WorkerRequest::Status {
        id: Some(mount.key.clone()),
    };
    let status = match worker.ask(&question, QUICK)? {
        WorkerResponse::Status(status) => status.mounts.into_iter().next(),
        other => bail!("unexpected response of its worker: {other:?}"),
    };
    let served = status.and_then(|status| status.served);
    let served = served.context("its worker does not tell of it")?;
    Ok(Work {
        read: served.requests,
        in_hand: served.in_hand,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_nobodys_hand_is_lost() {
        let look = |waiting, in_hand| Look {
            waiting,
            in_hand,
            has_unread: false,
            is_steady: true,
        };
        let unread = |look| Look {
            has_unread: true,
            ..look
        };
        let unsteady = |look| Look {
            is_steady: false,
            ..look
        };
        assert_eq!(look(0, 0).found(), Found::Nothing);
        assert_eq!(unsteady(unread(look(0, 1))).found(), Found::Nothing);
        assert_eq!(look(2, 2).found(), Found::Nothing);
        assert_eq!(look(1, 0).found(), Found::Lost);
        assert_eq!(look(3, 2).found(), Found::Lost);
        // One that comes in, one that nobody has read, or a worker that went on meanwhile.
        assert_eq!(unread(look(3, 2)).found(), Found::Unclear);
        assert_eq!(unsteady(look(3, 2)).found(), Found::Unclear);
        assert_eq!(unsteady(look(2, 2)).found(), Found::Unclear);
    }
}
