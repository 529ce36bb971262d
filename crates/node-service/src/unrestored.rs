//! The desired mounts that could not be made.

use std::collections::BTreeMap;

use parking_lot::{Condvar, Mutex};

use node_api::mount_state::{MountMode, MountState};
use node_api::spec::MountSpec;
use node_api::status::MountStatus;
use node_api::view::MountView;

/// The desired mounts that could not be made, and why.
#[derive(Debug, Default)]
pub(crate) struct Unrestored {
    desired_mounts: Mutex<BTreeMap<String, (MountSpec, String)>>,
    changed: Condvar,
}

impl Unrestored {
    /// Removes one that is made, or not desired any more. Returns whether it was there.
    pub(crate) fn remove(&self, id: &str) -> bool {
        let removed = self.desired_mounts.lock().remove(id);
        self.changed.notify_all();
        removed.is_some()
    }

    pub(crate) fn put(&self, id: &str, spec: MountSpec, why: String) {
        self.desired_mounts
            .lock()
            .insert(id.to_owned(), (spec, why));
        self.changed.notify_all();
    }

    pub(crate) fn all(&self) -> Vec<(String, MountSpec)> {
        let desired_mounts = self.desired_mounts.lock();
        desired_mounts
            .iter()
            .map(|(id, (spec, _))| (id.clone(), spec.clone()))
            .collect()
    }

    pub(crate) fn has(&self, id: &str) -> bool {
        self.desired_mounts.lock().contains_key(id)
    }

    /// Waits until there is something.
    pub(crate) fn wait(&self) {
        let mut desired_mounts = self.desired_mounts.lock();
        while desired_mounts.is_empty() {
            self.changed.wait(&mut desired_mounts);
        }
    }

    /// Returns the view of one.
    pub(crate) fn view(&self, id: &str) -> Option<MountView> {
        let desired_mounts = self.desired_mounts.lock();
        desired_mounts
            .get(id)
            .map(|(spec, why)| view(id, spec, why))
    }

    /// Returns the views of all.
    pub(crate) fn views(&self) -> Vec<MountView> {
        let desired_mounts = self.desired_mounts.lock();
        desired_mounts
            .iter()
            .map(|(id, (spec, why))| view(id, spec, why))
            .collect()
    }
}

fn view(id: &str, spec: &MountSpec, why: &str) -> MountView {
    MountView {
        status: MountStatus {
            id: id.to_owned(),
            mountpoint: spec.mountpoint.clone(),
            source: spec.source.clone(),
            mode: MountMode::Unknown,
            state: MountState::Failed,
            pid: None,
            boot: None,
            served: None,
            nic: None,
            image: None,
            warnings: Vec::new(),
        },
        restarts: 0,
        last_gap_ms: None,
        error: Some(format!("not mounted yet, and tried again: {why}")),
        auto: spec.auto,
        label: spec.label.clone(),
    }
}
