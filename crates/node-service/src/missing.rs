//! Mounts that are not there: those that are being made, and desired ones that could not be made.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::{Condvar, Mutex};

use node_api::mount_state::{MountMode, MountState};
use node_api::spec::MountSpec;
use node_api::status::MountStatus;
use node_api::view::MountView;

/// The mounts that are not there, by id.
#[derive(Debug, Default)]
pub(crate) struct Missing {
    mounts: Mutex<BTreeMap<String, Absent>>,
    changed: Condvar,
}

/// A mount that is not there.
#[derive(Debug)]
struct Absent {
    spec: MountSpec,
    /// Why it could not be made; `None` if it is being made for the first time, or waits for its turn.
    why: Option<String>,
}

/// A mount that is shown as being made, until dropped.
#[derive(Debug)]
pub(crate) struct BeingMade<'a> {
    missing: &'a Missing,
    id: String,
}

impl Missing {
    /// Shows a mount as being made while the returned guard lives, unless it is listed already.
    pub(crate) fn show(&self, id: &str, spec: &MountSpec) -> Option<BeingMade<'_>> {
        self.expect(id, spec).then(|| BeingMade {
            missing: self,
            id: id.to_owned(),
        })
    }

    /// Adds one whose first attempt is still to come. Returns whether it was not listed yet.
    pub(crate) fn expect(&self, id: &str, spec: &MountSpec) -> bool {
        let mut mounts = self.mounts.lock();
        if mounts.contains_key(id) {
            return false;
        }
        let spec = spec.clone();
        mounts.insert(id.to_owned(), Absent { spec, why: None });
        true
    }

    /// Adds one that could not be made.
    pub(crate) fn fail(&self, id: &str, spec: MountSpec, why: String) {
        let why = Some(why);
        self.mounts
            .lock()
            .insert(id.to_owned(), Absent { spec, why });
        self.changed.notify_all();
    }

    /// Removes one that is made, or not desired any more. Returns whether it was there.
    pub(crate) fn remove(&self, id: &str) -> bool {
        self.mounts.lock().remove(id).is_some()
    }

    /// Returns those that could not be made.
    pub(crate) fn failed(&self) -> Vec<(String, MountSpec)> {
        let mounts = self.mounts.lock();
        let failed = mounts.iter().filter(|(_, absent)| absent.why.is_some());
        failed
            .map(|(id, absent)| (id.clone(), absent.spec.clone()))
            .collect()
    }

    /// Returns whether one could not be made.
    pub(crate) fn has_failed(&self, id: &str) -> bool {
        let mounts = self.mounts.lock();
        mounts.get(id).is_some_and(|absent| absent.why.is_some())
    }

    /// Waits until there is one that could not be made.
    pub(crate) fn wait_for_failed(&self) {
        let mut mounts = self.mounts.lock();
        while mounts.values().all(|absent| absent.why.is_none()) {
            self.changed.wait(&mut mounts);
        }
    }

    /// Returns the view of one.
    pub(crate) fn view(&self, id: &str) -> Option<MountView> {
        let mounts = self.mounts.lock();
        mounts.get(id).map(|absent| absent.view(id))
    }

    /// Returns the views of all.
    pub(crate) fn views(&self) -> Vec<MountView> {
        let mounts = self.mounts.lock();
        mounts.iter().map(|(id, absent)| absent.view(id)).collect()
    }
}

impl Drop for BeingMade<'_> {
    fn drop(&mut self) {
        let mut mounts = self.missing.mounts.lock();
        if mounts.get(&self.id).is_some_and(|its| its.why.is_none()) {
            mounts.remove(&self.id);
        }
    }
}

impl Absent {
    fn view(&self, id: &str) -> MountView {
        let state = match self.why {
            None => MountState::Starting,
            Some(_) => MountState::Failed,
        };
        let again = |why: &String| format!("not mounted yet, and tried again: {why}");
        MountView {
            status: MountStatus {
                id: id.to_owned(),
                mountpoint: self.spec.mountpoint.clone(),
                source: self.spec.source.clone(),
                source_inode: None,
                mode: MountMode::Unknown,
                state,
                pid: None,
                boot: None,
                served: None,
                nic: None,
                image: None,
                warnings: Vec::new(),
            },
            restarts: 0,
            last_gap_ms: None,
            error: self.why.as_ref().map(again),
            auto: self.spec.auto,
            label: self.spec.label.clone(),
        }
    }
}

/// Returns views of the mounts that are `missing`, and of those that are `there`, by mount point. One that is
/// both has just been made.
pub(crate) fn listed(missing: Vec<MountView>, there: Vec<MountView>) -> Vec<MountView> {
    let ids: BTreeSet<String> = there.iter().map(|view| view.status.id.clone()).collect();
    let mut views: Vec<MountView> = missing
        .into_iter()
        .filter(|view| !ids.contains(&view.status.id))
        .chain(there)
        .collect();
    views.sort_by(|a, b| {
        let place = |view: &MountView| (view.status.mountpoint.clone(), view.status.id.clone());
        place(a).cmp(&place(b))
    });
    views
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &str) -> MountSpec {
        let json = format!(r#"{{"source": "/s", "mountpoint": "/mnt/{name}", "store": "/store"}}"#);
        serde_json::from_str(&json).unwrap()
    }

    fn states(missing: &Missing) -> Vec<(String, MountState)> {
        let views = missing.views().into_iter();
        views
            .map(|view| (view.status.id, view.status.state))
            .collect()
    }

    #[test]
    fn what_is_being_made_is_listed_until_it_is_made_or_fails() {
        let missing = Missing::default();
        let guard = missing.show("one", &spec("one"));
        assert!(missing.expect("two", &spec("two")));
        let of = |id: &str, state| (id.to_owned(), state);
        let (one, two) = (
            of("one", MountState::Starting),
            of("two", MountState::Starting),
        );
        assert_eq!(states(&missing), [one, two.clone()]);
        assert!(missing.failed().is_empty(), "they have not failed");
        drop(guard);
        assert_eq!(states(&missing), [two]);
        // Whoever makes what is listed already does not end that.
        assert!(missing.show("two", &spec("two")).is_none());
        missing.fail("two", spec("two"), "gone".to_owned());
        assert_eq!(states(&missing), [of("two", MountState::Failed)]);
        assert!(missing.has_failed("two"));
        let error = missing.view("two").unwrap().error.unwrap();
        assert!(error.ends_with("gone"), "{error}");
        assert!(missing.show("two", &spec("two")).is_none());
        assert!(missing.remove("two") && states(&missing).is_empty());
    }

    #[test]
    fn a_mount_is_listed_once() {
        let missing = Missing::default();
        missing.expect("one", &spec("one"));
        missing.expect("two", &spec("two"));
        let mut there = missing.views();
        there.truncate(1);
        there[0].status.state = MountState::Serving;
        let listed = listed(missing.views(), there);
        let states = listed.iter().map(|view| view.status.state);
        assert_eq!(
            states.collect::<Vec<_>>(),
            [MountState::Serving, MountState::Starting]
        );
    }
}
