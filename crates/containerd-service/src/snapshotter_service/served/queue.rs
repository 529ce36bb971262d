//! The layers of a snapshotter, and what is to be done about them, in order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use layers::warm::Hold;
use snapshotter::{LayerDir, SnapshotId};

use super::all_first::AllFirst;
use super::attach_time::AttachTime;
use super::looked::Looked;
use crate::snapshotter_service::chains::Chains;

/// How long after a layer was committed it is mounted: an image that is pulled has more of them.
pub(super) const LATER: Duration = Duration::from_millis(300);
/// The longest that layers which come one after another are not mounted.
const LATEST: Duration = Duration::from_secs(10);
/// How long it is left alone that a layer could not be mounted: the node may be away.
const TRIED_AGAIN_AFTER: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(super) struct QueueState {
    pub(super) chains: Chains,
    pub(super) looked: Looked,
    pub(super) all_first: AllFirst<Hold>,
    pub(super) layers: BTreeMap<SnapshotId, Known>,
    /// At most two for each layer.
    pub(super) jobs: VecDeque<Job>,
    /// Layers that a thread works on: a second one must not attach what the first detaches.
    pub(super) at_work: BTreeSet<SnapshotId>,
    /// How long it took to mount one.
    pub(super) attach_time: AttachTime,
    /// When the first and the last layer were committed that are mounted later.
    pub(super) commits: Option<(Instant, Instant)>,
    pub(super) ending: bool,
}

#[derive(Debug)]
pub(super) struct Known {
    pub(super) layer: LayerDir,
    pub(super) state: ServingState,
    /// Whether it was attached anew since its directory leads elsewhere.
    pub(super) follows: bool,
    /// When it could not be mounted, if it could not.
    pub(super) failed: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServingState {
    /// Its plain directory serves it.
    Plain,
    /// It is about to be mounted.
    Coming,
    Served,
    /// It is served, and about to be from a newer boot image.
    Renewing,
}

#[derive(Debug)]
pub(super) enum Job {
    Attach(SnapshotId),
    Detach(SnapshotId),
    /// Its directory leads elsewhere now.
    Reattach(SnapshotId),
    /// A container is about to start on it: what the kernel dropped since the last one is to be there.
    Warm(SnapshotId),
}

impl Job {
    pub(super) const fn layer(&self) -> SnapshotId {
        let (Self::Attach(id) | Self::Detach(id) | Self::Reattach(id) | Self::Warm(id)) = self;
        *id
    }
}

impl QueueState {
    /// Takes the first job of a layer that no thread works on. `hold` holds warming back.
    pub(super) fn next_job(&mut self, hold: impl FnOnce() -> Option<Hold>) -> Option<Job> {
        let is_later = self.is_pulled();
        let is_free = |job: &Job| {
            !(self.at_work.contains(&job.layer()) || is_later && matches!(job, Job::Attach(_)))
        };
        let job = self.jobs.remove(self.jobs.iter().position(is_free)?)?;
        self.at_work.insert(job.layer());
        if matches!(job, Job::Attach(_)) {
            let have_others = self.jobs.iter().any(|job| matches!(job, Job::Attach(_)));
            self.all_first.mounts(have_others, hold);
        }
        Some(job)
    }

    /// Returns whether an image is being pulled, as far as one can tell: mounting its layers would take
    /// processors and disk from that, and nobody needs them before it is over.
    fn is_pulled(&mut self) -> bool {
        let is_over = |(first, last): (Instant, Instant)| {
            last.elapsed() >= LATER || first.elapsed() >= LATEST
        };
        if self.commits.is_some_and(is_over) {
            self.commits = None;
        }
        self.commits.is_some()
    }

    /// Has layers mounted before all others, and at once: a container is about to start on them.
    pub(super) fn need_now(&mut self, layers: &[LayerDir]) {
        self.commits = None;
        let needed: BTreeSet<SnapshotId> = layers.iter().map(|layer| layer.id).collect();
        let jobs = self.jobs.make_contiguous();
        jobs.sort_by_key(|job| !needed.contains(&job.layer()));
    }

    /// Returns whether layers are being mounted, or are about to be.
    pub(super) fn is_mounting(&self) -> bool {
        let mut layers = self.layers.values();
        layers.any(|known| matches!(known.state, ServingState::Coming | ServingState::Renewing))
    }

    /// Has the pages of layers that are served brought into memory again, before anything else, for a container is about to start;
    /// returns how many layers.
    pub(super) fn warm(&mut self, layers: impl IntoIterator<Item = SnapshotId>) -> usize {
        self.all_first.container_starts();
        let mut warmed = Vec::new();
        for id in layers {
            let known = self.layers.get(&id);
            let is_served = known.is_some_and(|known| known.state == ServingState::Served);
            let has_job = warmed.contains(&id) || self.jobs.iter().any(|job| job.layer() == id);
            if is_served && !has_job {
                warmed.push(id);
            }
        }
        for id in warmed.iter().rev() {
            self.jobs.push_front(Job::Warm(*id));
        }
        warmed.len()
    }

    /// Has a layer mounted that the store may have a boot image of.
    pub(super) fn want(&mut self, id: SnapshotId) {
        let Some(known) = self.layers.get_mut(&id) else {
            return;
        };
        let layer = known.layer.chain_id().and_then(|c| self.chains.layer(&c));
        if known.state == ServingState::Plain && layer.is_some() {
            known.state = ServingState::Coming;
            self.jobs.push_back(Job::Attach(id));
        }
    }

    /// Has a layer mounted again that is not mounted any more.
    pub(super) fn lost(&mut self, id: SnapshotId) {
        if let Some(known) = self.layers.get_mut(&id)
            && known.state == ServingState::Served
        {
            log::warn!("snapshot {id}: its layer mount was unmounted; mounting it again");
            known.state = ServingState::Plain;
            known.failed = None;
            self.want(id);
        }
    }

    /// Has a layer mounted that could not be some time ago.
    pub(super) fn try_again(&mut self, id: SnapshotId) {
        let failed = self.layers.get(&id).and_then(|known| known.failed);
        if failed.is_some_and(|failed| failed.elapsed() >= TRIED_AGAIN_AFTER) {
            self.want(id);
        }
    }

    /// Has a layer that is served mounted from a newer boot image: the next containers wait for it,
    /// as for one that is coming.
    pub(super) fn renew(&mut self, id: SnapshotId) {
        if let Some(known) = self.layers.get_mut(&id)
            && known.state == ServingState::Served
        {
            known.state = ServingState::Renewing;
            self.jobs.push_back(Job::Attach(id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(id: u64) -> LayerDir {
        LayerDir {
            id: SnapshotId(id),
            name: format!("ns/{id}/layer"),
            dir: "/nowhere".into(),
        }
    }

    /// Layers of which the first `coming` are to be mounted, and the others served.
    fn queue(coming: u64, served: u64) -> QueueState {
        let mut queue = QueueState::default();
        for id in 0..coming + served {
            let state = if id < coming {
                queue.jobs.push_back(Job::Attach(SnapshotId(id)));
                ServingState::Coming
            } else {
                ServingState::Served
            };
            let known = Known {
                layer: layer(id),
                state,
                follows: false,
                failed: None,
            };
            queue.layers.insert(SnapshotId(id), known);
        }
        queue
    }

    fn next(queue: &mut QueueState) -> Option<u64> {
        let job = queue.next_job(|| None)?;
        let SnapshotId(id) = job.layer();
        Some(id)
    }

    #[test]
    fn layers_of_a_pull_are_mounted_at_once_when_a_container_needs_them_and_before_others() {
        let mut queue = queue(6, 0);
        let now = Instant::now();
        queue.commits = Some((now, now));
        assert_eq!(next(&mut queue), None, "the pull goes on");
        queue.need_now(&[layer(5), layer(2)]);
        let order: Vec<_> = std::iter::from_fn(|| next(&mut queue)).collect();
        assert_eq!(order, [2, 5, 0, 1, 3, 4]);
    }

    /// What the kernel dropped comes back for a container that starts while other layers are mounted.
    #[test]
    fn warming_waits_for_no_layer_that_is_mounted_and_is_not_lost() {
        let mut queue = queue(3, 2);
        assert!(queue.is_mounting());
        assert_eq!(next(&mut queue), Some(0));
        assert_eq!(queue.warm([4, 3, 4, 0, 9].map(SnapshotId)), 2);
        for id in [4, 3] {
            let job = queue.next_job(|| None);
            assert!(
                matches!(job, Some(Job::Warm(SnapshotId(it))) if it == id),
                "{job:?}"
            );
        }
        // One that is being warmed is warmed again, and not by two at a time.
        assert_eq!(queue.warm([SnapshotId(3)]), 1);
        assert_eq!(next(&mut queue), Some(1));
        queue.at_work.remove(&SnapshotId(3));
        assert_eq!(next(&mut queue), Some(3));
        // A pull does not hinder it.
        let now = Instant::now();
        queue.commits = Some((now, now));
        queue.at_work.clear();
        assert_eq!(queue.warm([SnapshotId(4)]), 1);
        assert_eq!(next(&mut queue), Some(4));
        assert_eq!(next(&mut queue), None);
        assert!(queue.is_mounting());
    }
}
