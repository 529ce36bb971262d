//! A node that is only a list of mounts, for tests of the node's clients.

use std::collections::BTreeMap;
use std::path::Path;

use parking_lot::Mutex;

use super::control::{Made, NodeControl, NodeError, WhenInUse};
use super::spec::MountSpec;
use super::view::{Drained, MountView, NodeView, Upgraded, WorkerView};
use crate::boot_choice::BootChoice;
use crate::device::{Attached, DeviceSpec, DeviceStatus, DeviceView};
use crate::image::KeptPlan;
use crate::mount_daemon::PrewarmSummary;
use crate::mount_state::{MountState, PrewarmState};
use crate::serve_mode::ServeMode;
use crate::status::{BootStatus, MountStatus, ServedStatus};
use host::run_dir::RunDir;

/// The list of mounts, and whether it drains.
#[derive(Debug, Default)]
pub struct MemoryNode {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    mounts: BTreeMap<String, (MountSpec, MountView)>,
    devices: BTreeMap<String, (DeviceSpec, DeviceView)>,
    draining: bool,
}

impl MemoryNode {
    /// Adds a mount as it is.
    pub fn put(&self, view: MountView) {
        let text = serde_json::json!({
            "source": view.status.source, "mountpoint": view.status.mountpoint, "store": "/s",
        });
        let spec = serde_json::from_value(text).expect("a specification that is valid");
        let id = view.status.id.clone();
        self.state.lock().mounts.insert(id, (spec, view));
    }

    fn with<T>(
        &self,
        id: &str,
        act: impl FnOnce(&mut MountView) -> Result<T, NodeError>,
    ) -> Result<T, NodeError> {
        match self.state.lock().mounts.get_mut(id) {
            Some((_, view)) => act(view),
            None => Err(NodeError::Unknown(id.to_owned())),
        }
    }
}

/// Returns a mount with a different number in every field that counts something.
pub fn busy_mount(mountpoint: &str) -> MountView {
    let text = serde_json::json!({"source": "/srv/a", "mountpoint": mountpoint, "store": "/s"});
    let spec = serde_json::from_value(text).expect("a specification that is valid");
    let mut view = view_of(&spec);
    view.restarts = 2;
    view.last_gap_ms = Some(85);
    if let Some(boot) = &mut view.status.boot {
        boot.stale_files = 4;
        boot.stale_blocks = 5;
        boot.damaged = 6;
        boot.copy_failures = 8;
        boot.evicted_pages = 9;
    }
    if let Some(served) = &mut view.status.served {
        served.hits = 11;
        served.misses = 12;
        served.hit_bytes = 11 * 4096;
        served.fallthrough_bytes = 12 * 4096;
        served.divergence_permille = 25;
        served.diverted_files = 1;
        served.late_answers = 7;
        served.hung_threads = 3;
    }
    view
}

/// Returns the status of a node at two moments, two seconds apart: `a` is read from, `b` loses its
/// worker, `c` has a new worker and drifts, `new` appears.
pub fn two_sights() -> [(NodeView, Vec<MountView>); 2] {
    let node = MemoryNode::default();
    let [mut a, mut b, mut c] = ["/mnt/a", "/mnt/b", "/mnt/c"].map(busy_mount);
    let count = |mount: &mut MountView, reads, bytes| {
        if let Some(served) = &mut mount.status.served {
            *served.requests.entry("read".to_owned()).or_default() += reads;
            served.fallthrough_bytes += bytes;
        }
    };
    count(&mut c, 100, 0);
    for mount in [&a, &b, &c] {
        node.put(mount.clone());
    }
    let before = (node.node(), node.mounts());
    count(&mut a, 100, 4 << 20);
    b.status.state = MountState::Restarting;
    b.status.served = None;
    b.restarts = 3;
    c.restarts = 0;
    c.status.served = Some(ServedStatus {
        hits: 10,
        divergence_permille: 300,
        ..ServedStatus::default()
    });
    count(&mut c, 10, 0);
    for mount in [a, b, c, busy_mount("/mnt/new")] {
        node.put(mount);
    }
    [before, (node.node(), node.mounts())]
}

fn boot(choice: &BootChoice) -> Option<BootStatus> {
    let image = match choice {
        BootChoice::None => return None,
        BootChoice::Auto => "web".to_owned(),
        other => String::from(other.clone()),
    };
    Some(BootStatus {
        image,
        content: "1ab221de3be08a1f".to_owned(),
        source: "dir:/srv/web/root".to_owned(),
        files: 12,
        blocks: 484,
        stale_blocks: 0,
        stale_files: 0,
        changed: Vec::new(),
        names_added: 0,
        names_removed: 0,
        damaged: 0,
        tier: None,
        copy_failures: 0,
        injected_pages: 484,
        evicted_pages: 0,
        sampled_blocks: 4,
        sampled_asked: 3,
        wasted_bytes: Some(495_616),
        prewarm: PrewarmState::Done,
    })
}

fn view_of(spec: &MountSpec) -> MountView {
    let mode = spec.mode.unwrap_or(ServeMode::Lower);
    MountView {
        status: MountStatus {
            id: RunDir::id_of(&spec.mountpoint),
            mountpoint: spec.mountpoint.clone(),
            source: spec.source.clone(),
            source_inode: None,
            mode: mode.into(),
            state: MountState::Serving,
            pid: Some(4242),
            boot: boot(&spec.boot),
            nic: None,
            image: None,
            warnings: Vec::new(),
            served: Some(ServedStatus {
                requests: [("lookup".to_owned(), 7), ("read".to_owned(), 2)].into(),
                ..ServedStatus::default()
            }),
        },
        restarts: 0,
        last_gap_ms: None,
        error: None,
        auto: spec.auto,
        label: spec.label.clone(),
    }
}

fn device_of(spec: &DeviceSpec) -> DeviceView {
    DeviceView {
        name: spec.name.clone(),
        image: spec.image.clone(),
        kind: spec.kind,
        address: spec.address(),
        erofs: spec.erofs.clone(),
        loop_device: None,
        state: MountState::Serving,
        pid: Some(4242),
        restarts: 0,
        last_gap_ms: None,
        error: None,
        served: Some(DeviceStatus {
            name: spec.name.clone(),
            size: 1 << 30,
            writable: spec.writable,
            ..DeviceStatus::default()
        }),
    }
}

/// Returns a device with a number of its own in every field that counts something.
///
/// # Panics
/// If the name is none.
pub fn busy_device(name: &str) -> DeviceView {
    let text = serde_json::json!({
        "name": name, "image": "/images/a", "kind": "nbd", "at": "/run/a.sock", "store": "/s",
    });
    let spec = serde_json::from_value(text).expect("a specification that is valid");
    DeviceView {
        restarts: 2,
        last_gap_ms: Some(85),
        served: Some(DeviceStatus {
            name: name.to_owned(),
            size: 1 << 30,
            writable: true,
            clients: 3,
            requests: 4,
            errors: 5,
            bytes_read: 6,
            bytes_written: 7,
            fetched_bytes: 8,
            cached_bytes: 9,
            fetches: 10,
            start: None,
            joined: 10,
            hedged: 11,
            overtaken: 14,
            retried: 12,
            stalls: 13,
            pauses: 15,
        }),
        ..device_of(&spec)
    }
}

impl NodeControl for MemoryNode {
    fn node(&self) -> NodeView {
        let state = self.state.lock();
        let mounts = state.mounts.len() as u64;
        let devices = state.devices.len() as u64;
        NodeView {
            version: "0.1.0".to_owned(),
            pid: 4200,
            uptime_seconds: 86_400,
            draining: state.draining,
            mounts,
            devices,
            worker_restarts: 0,
            workers: vec![WorkerView {
                pid: 4242,
                mounts,
                devices,
                current: true,
            }],
            keeper: "systemd".to_owned(),
            damaged: Vec::new(),
            tiers: Vec::new(),
        }
    }

    fn mounts(&self) -> Vec<MountView> {
        let state = self.state.lock();
        let mut views: Vec<_> = state
            .mounts
            .values()
            .map(|(_, view)| view.clone())
            .collect();
        views.sort_by(|a, b| a.status.mountpoint.cmp(&b.status.mountpoint));
        views
    }

    fn mount(&self, id: &str) -> Result<MountView, NodeError> {
        self.with(id, |view| Ok(view.clone()))
    }

    fn make(&self, spec: MountSpec) -> Result<Made, NodeError> {
        if !spec.mountpoint.is_absolute() {
            return Err(NodeError::Invalid(
                "the mount point must be absolute".to_owned(),
            ));
        }
        let mut state = self.state.lock();
        let view = view_of(&spec);
        let id = view.status.id.clone();
        match state.mounts.get(&id) {
            Some((there, view)) if *there == spec => Ok(Made {
                mount: view.clone(),
                new: false,
            }),
            Some(_) => {
                let at = spec.mountpoint.display();
                Err(NodeError::Conflict(format!("{at} has another mount")))
            }
            None if state.draining => {
                Err(NodeError::Conflict("the node is being drained".to_owned()))
            }
            None => {
                state.mounts.insert(id, (spec, view.clone()));
                Ok(Made {
                    mount: view,
                    new: true,
                })
            }
        }
    }

    fn unmount(&self, id: &str, when_in_use: WhenInUse) -> Result<(), NodeError> {
        self.with(id, |view| {
            let is_used = view.status.mountpoint.ends_with("busy");
            if is_used && when_in_use == WhenInUse::Refuse {
                return Err(NodeError::Conflict("it is in use".to_owned()));
            }
            Ok(())
        })?;
        self.state.lock().mounts.remove(id);
        Ok(())
    }

    fn prewarm(&self, id: &str, budget_bytes: Option<u64>) -> Result<PrewarmSummary, NodeError> {
        self.with(id, |view| {
            let Some(boot) = &view.status.boot else {
                return Err(NodeError::Conflict("it has no boot image".to_owned()));
            };
            let bytes = boot.blocks * 4096;
            let injected_bytes = bytes.min(budget_bytes.unwrap_or(bytes));
            Ok(PrewarmSummary {
                touches: 8,
                injected_bytes,
                skipped_bytes: 0,
                took_ms: 3,
            })
        })
    }

    fn swap(&self, id: &str, choice: BootChoice) -> Result<MountView, NodeError> {
        if choice == BootChoice::Image("nope".to_owned()) {
            return Err(NodeError::Invalid("there is no boot image nope".to_owned()));
        }
        self.with(id, |view| {
            view.status.boot = boot(&choice);
            Ok(view.clone())
        })
    }

    fn devices(&self) -> Vec<DeviceView> {
        let state = self.state.lock();
        state
            .devices
            .values()
            .map(|(_, view)| view.clone())
            .collect()
    }

    fn attach(&self, spec: DeviceSpec) -> Result<Attached, NodeError> {
        let invalid = |error: anyhow::Error| NodeError::Invalid(error.to_string());
        spec.check().map_err(invalid)?;
        let mut state = self.state.lock();
        match state.devices.get(&spec.name) {
            Some((there, view)) if *there == spec => Ok(Attached {
                device: view.clone(),
                new: false,
            }),
            Some(_) => {
                let why = format!("{} is another device", spec.name);
                Err(NodeError::Conflict(why))
            }
            None => {
                let device = device_of(&spec);
                let kept = (spec.clone(), device.clone());
                state.devices.insert(spec.name, kept);
                Ok(Attached { device, new: true })
            }
        }
    }

    fn detach(&self, name: &str) -> Result<(), NodeError> {
        let removed = self.state.lock().devices.remove(name);
        removed
            .map(drop)
            .ok_or(NodeError::NoDevice(name.to_owned()))
    }

    fn resize(&self, name: &str, size: u64) -> Result<DeviceView, NodeError> {
        let mut state = self.state.lock();
        let device = state.devices.get_mut(name);
        let (_, view) = device.ok_or(NodeError::NoDevice(name.to_owned()))?;
        let served = view.served.get_or_insert_default();
        if size < served.size {
            return Err(NodeError::Invalid("it would become smaller".to_owned()));
        }
        served.size = size;
        Ok(view.clone())
    }

    fn keep_plan(&self, name: &str) -> Result<KeptPlan, NodeError> {
        let state = self.state.lock();
        let device = state.devices.get(name);
        let (spec, _) = device.ok_or(NodeError::NoDevice(name.to_owned()))?;
        Ok(KeptPlan {
            file: spec.store.join("block-plans/0d.bplan"),
            bytes: 1 << 20,
        })
    }

    fn drain(&self) -> Result<Drained, NodeError> {
        let mut state = self.state.lock();
        state.draining = true;
        let unmounted = state.mounts.len() as u64;
        let detached = state.devices.len() as u64;
        state.mounts.clear();
        state.devices.clear();
        Ok(Drained {
            unmounted,
            in_use: 0,
            detached,
        })
    }

    fn upgrade(&self, program: &Path) -> Result<Upgraded, NodeError> {
        if program.ends_with("false") {
            return Err(NodeError::Failed(
                anyhow::anyhow!("root cause").context("it does not run"),
            ));
        }
        Ok(Upgraded {
            program: program.to_owned(),
            workers: 1,
            longest_gap_ms: 40,
        })
    }
}
