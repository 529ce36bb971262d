//! Devices whose snapshots were removed, and the thread that ends them.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::places::{DeviceId, DevicePlaces};
use anyhow::Context as _;
use blockimages::CONFIG_NAME;
use host::caught::caught_or;
use layers::patient_node::PatientClient;
use node_api::client::CallError;
use parking_lot::{Condvar, Mutex};

/// How soon a device that is in use, or a node that is away, is tried again.
const AGAIN: Duration = Duration::from_secs(1);
/// What HTTP says of things that are not there.
const NOT_FOUND: u16 = 404;

/// The devices that are to be ended.
#[derive(Debug)]
pub(in super::super) struct Retired {
    places: DevicePlaces,
    node: PatientClient,
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    ids: BTreeSet<DeviceId>,
    ending: bool,
}

impl Retired {
    pub(super) fn new(places: DevicePlaces, node: PatientClient) -> Self {
        Self {
            places,
            node,
            waiting: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Has a device ended, if there is one.
    pub(super) fn add(&self, id: DeviceId) {
        self.waiting.lock().ids.insert(id);
        self.changed.notify_all();
    }

    /// Starts the thread. Devices that are not among those that are `needed` are ended, too: a former process may have
    /// been killed before it did so.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(in super::super) fn start(
        self: &Arc<Self>,
        needed: &BTreeSet<DeviceId>,
    ) -> anyhow::Result<JoinHandle<()>> {
        for id in self.left().into_iter().filter(|id| !needed.contains(id)) {
            self.add(id);
        }
        let retired = Arc::clone(self);
        let thread = std::thread::Builder::new().name("block-images".to_owned());
        let thread = thread.spawn(move || retired.work());
        thread.context("starting the thread that ends block images")
    }

    /// Has the thread end. Devices stay with the node.
    pub(in super::super) fn leave(&self) {
        self.waiting.lock().ending = true;
        self.changed.notify_all();
    }

    /// Returns the devices that there are, or directories of.
    fn left(&self) -> BTreeSet<DeviceId> {
        let entries = std::fs::read_dir(&self.places.dir).into_iter().flatten();
        let names = entries.flatten().map(|entry| entry.file_name());
        let mut left: BTreeSet<_> = names
            .filter_map(|name| name.to_str()?.parse().ok())
            .collect();
        // One that is away has nothing that has no directory.
        let devices = self.node.ask(Duration::ZERO, |node| node.devices());
        let devices = devices.unwrap_or_default().into_iter();
        left.extend(devices.filter_map(|device| self.places.id(&device.name)));
        left
    }

    fn work(&self) {
        loop {
            let ids = {
                let mut waiting = self.waiting.lock();
                while waiting.ids.is_empty() && !waiting.ending {
                    self.changed.wait(&mut waiting);
                }
                if waiting.ending {
                    return;
                }
                waiting.ids.clone()
            };
            let mut failed = false;
            for id in ids {
                match caught_or(|| self.end(id)) {
                    Ok(()) => {
                        self.waiting.lock().ids.remove(&id);
                    }
                    Err(error) => {
                        log::debug!("the device {id} stays for now: {error:#}");
                        failed = true;
                    }
                }
            }
            let mut waiting = self.waiting.lock();
            if failed && !waiting.ending {
                self.changed.wait_for(&mut waiting, AGAIN);
            }
        }
    }

    fn end(&self, id: DeviceId) -> anyhow::Result<()> {
        let dir = self.places.of(id);
        if !dir.exists() {
            // It has never been used.
            return Ok(());
        }
        let name = self.places.name(id);
        match self.node.ask(Duration::ZERO, |node| node.detach(&name)) {
            Ok(())
            | Err(CallError::Refused {
                status: NOT_FOUND, ..
            }) => {}
            Err(error) => return Err(error.into()),
        }
        for dir in self.places.mounts(id) {
            remove(&dir, |dir| std::fs::remove_dir(dir))?;
        }
        remove(&dir.join(CONFIG_NAME), |file| std::fs::remove_file(file))?;
        // Nothing is mounted in it any more, so what is left was not finished.
        remove(&dir, |dir| std::fs::remove_dir_all(dir))
    }
}

fn remove(path: &Path, how: impl Fn(&Path) -> std::io::Result<()>) -> anyhow::Result<()> {
    match how(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", path.display()))
        }
        _ => Ok(()),
    }
}
