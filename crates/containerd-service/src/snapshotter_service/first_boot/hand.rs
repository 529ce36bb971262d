//! The snapshotter's hand on its recorder.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use blocks::Digest;
use parking_lot::Mutex;
use snapshotter::{LayerDir, Snapshot, SnapshotId};

use super::asked::Policy;
use super::talk::{Boots, Request, Response, START, Wanted};
use super::{FirstBootStatus, recorder};
use host::control::call;
use host::interrupt::Interrupt;
use host::run_dir::RunDir;

/// How often it is looked whether it does.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long mounting the layers may take, from a disk that may be busy.
const MOUNTING: Duration = Duration::from_secs(60);
/// How long anything else may take.
const QUICK: Duration = Duration::from_secs(5);

/// The client of the recorder.
#[derive(Debug)]
pub(crate) struct FirstBootsHand {
    policy: Policy,
    socket: PathBuf,
    /// Where the layers of the containers that are recorded, or were, are mounted.
    places: Mutex<HashMap<SnapshotId, Vec<PathBuf>>>,
}

impl FirstBootsHand {
    pub(crate) fn new(policy: Policy, run_dir: &RunDir, root: &Path) -> Self {
        Self {
            policy,
            socket: recorder::socket(run_dir, root),
            places: Mutex::default(),
        }
    }

    /// Finds the recorder, and its boots of a former snapshotter. `present` are the existing
    /// snapshots: others are gone. Without a recorder no boot is recorded; all else works.
    pub(crate) fn start(&self, present: &BTreeSet<SnapshotId>, interrupt: &Interrupt) {
        let boots = match self.hello(interrupt) {
            Ok(boots) => boots,
            Err(error) => return log::error!("cannot record first boots: {error:#}"),
        };
        for (id, places) in boots.places {
            let id = SnapshotId(id);
            self.places.lock().insert(id, places);
            if !present.contains(&id) {
                self.removed(id);
            }
        }
    }

    fn hello(&self, interrupt: &Interrupt) -> anyhow::Result<Boots> {
        let deadline = Instant::now() + START;
        loop {
            match self.ask(&Request::Hello(std::process::id()), QUICK) {
                Ok(Response::Boots(boots)) => return Ok(boots),
                Ok(other) => bail!("unexpected response of the recorder: {other:?}"),
                Err(error) if Instant::now() >= deadline => return Err(error),
                // It does not listen yet, or another is about to.
                Err(_) => {}
            }
            interrupt.check()?;
            std::thread::sleep(LOOK_EVERY);
        }
    }

    fn ask(&self, ask: &Request, patience: Duration) -> anyhow::Result<Response> {
        match call(&self.socket, ask, patience).context("asking the recorder")? {
            Response::Failed(why) => bail!("{why}"),
            told => Ok(told),
        }
    }

    /// Returns where the layers of a container are recorded; `None` if they are not. Starts recording
    /// if it is the first of its image and the policy or a label requires it.
    pub(crate) fn places(
        &self,
        snapshot: &Snapshot,
        layers: &[LayerDir],
        is_known: impl FnOnce(&Digest) -> bool,
    ) -> Option<Vec<Option<PathBuf>>> {
        if let Some(places) = self.places.lock().get(&snapshot.id) {
            return Some(by_layer(layers, places));
        }
        let ending = self.policy.asked_for(snapshot)?;
        // Docker puts a layer of its own between the image and the container.
        let of_image = layers.iter().filter(|layer| layer.chain_id().is_some());
        let of_image: Vec<LayerDir> = of_image.cloned().collect();
        let top = of_image.first()?.chain_id()?;
        if is_known(&top) {
            return None;
        }
        let container = (snapshot.id, &*snapshot.name);
        let wanted = Wanted::new(container, &of_image, top, ending);
        match self.ask(&Request::Record(Box::new(wanted)), MOUNTING) {
            Ok(Response::Places(Some(places))) => {
                let found = by_layer(layers, &places);
                self.places.lock().insert(snapshot.id, places);
                Some(found)
            }
            Ok(Response::Places(None)) => None,
            Ok(other) => {
                log::warn!("unexpected response of the recorder: {other:?}");
                None
            }
            Err(error) => {
                let name = &snapshot.name;
                log::warn!("the first boot of {name} is not recorded: {error:#}");
                None
            }
        }
    }

    /// Returns whether boots without a label are recorded.
    pub(crate) const fn are_recorded(&self) -> bool {
        self.policy.always.is_some()
    }

    /// Has a plan made of the start of a container on a device that records it, unless the policy or a label is against it.
    pub(crate) fn follow(&self, container: &Snapshot, top: Digest, device: &str) {
        if self.places.lock().contains_key(&container.id) {
            return;
        }
        let Some(ending) = self.policy.asked_for(container) else {
            return;
        };
        let name = (container.id, &*container.name);
        let wanted = Wanted::new(name, &[], top, ending).on_device(device);
        match self.ask(&Request::Record(Box::new(wanted)), QUICK) {
            Ok(Response::Places(Some(places))) => {
                self.places.lock().insert(container.id, places);
            }
            Ok(_) => {}
            Err(error) => {
                let name = &container.name;
                log::warn!("the first boot of {name} is not recorded: {error:#}");
            }
        }
    }

    /// Notifies that a snapshot was removed.
    pub(crate) fn removed(&self, id: SnapshotId) {
        self.forget(id, &Request::Removed(id.0));
    }

    /// Notifies that a snapshot was committed: if it was recorded, it was not a boot.
    pub(crate) fn committed(&self, id: SnapshotId) {
        self.forget(id, &Request::Committed(id.0));
    }

    fn forget(&self, id: SnapshotId, request: &Request) {
        if self.places.lock().remove(&id).is_none() {
            return;
        }
        if let Err(error) = self.ask(request, QUICK) {
            log::warn!("cannot unmount the recorders of snapshot {id}: {error:#}");
        }
    }

    /// Returns the boots that are or were recorded, those that are not over at the end.
    pub(crate) fn status(&self) -> Vec<FirstBootStatus> {
        match self.ask(&Request::Boots, QUICK) {
            Ok(Response::Boots(boots)) => boots.status,
            Ok(_) => Vec::new(),
            Err(error) => {
                log::warn!("cannot query the first boots: {error:#}");
                Vec::new()
            }
        }
    }
}

/// Returns where each layer is recorded: each at a directory with the layer's number. Layers that are
/// not of the image are at none.
fn by_layer(layers: &[LayerDir], places: &[PathBuf]) -> Vec<Option<PathBuf>> {
    let is_of = |place: &&PathBuf, layer: &LayerDir| {
        let number = place.file_name().and_then(|name| name.to_str());
        number.and_then(|number| number.parse().ok()) == Some(layer.id.0)
    };
    let layers = layers.iter();
    layers
        .map(|layer| places.iter().find(|place| is_of(place, layer)).cloned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_that_is_not_of_the_image_is_not_recorded() {
        let layer = |number: u64| LayerDir {
            id: SnapshotId(number),
            name: format!("moby/{number}/x"),
            dir: PathBuf::new(),
        };
        let places = [PathBuf::from("/r/9/4"), PathBuf::from("/r/9/2")];
        let found = by_layer(&[layer(7), layer(4), layer(2)], &places);
        let expected = [None, Some(places[0].clone()), Some(places[1].clone())];
        assert_eq!(found, expected);
    }
}
