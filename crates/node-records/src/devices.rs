//! What the node writes down of devices: which process serves each, and which are to be there after a reboot.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::instance::{Found, Lasts, ProcessRef, private_dir, read, remove, write};
use node_api::device::DeviceSpec;

/// A device that is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceInstance {
    /// What was asked for.
    pub spec: DeviceSpec,
    /// The worker that serves it.
    pub worker: Option<ProcessRef>,
    /// How often its worker was replaced, upgrades not counted.
    pub restarts: u64,
    /// Milliseconds from the death of the last worker until its successor served.
    pub last_gap_ms: Option<u64>,
}

/// A device that shall be there after a reboot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredDevice {
    /// What was asked for.
    pub spec: DeviceSpec,
}

/// Where the records of devices are.
#[derive(Clone, Debug)]
pub struct DeviceRecords {
    instances: PathBuf,
    desired: PathBuf,
}

impl DeviceRecords {
    /// Opens the directories, and makes them if they are not there.
    ///
    /// # Errors
    /// If they cannot be made.
    pub fn open(run_dir: &Path, state_dir: &Path) -> anyhow::Result<Self> {
        let records = Self {
            instances: run_dir.join("devices"),
            desired: state_dir.join("devices"),
        };
        private_dir(&records.instances)?;
        private_dir(&records.desired)?;
        Ok(records)
    }

    /// Writes that a device is there.
    ///
    /// # Errors
    /// If the run directory cannot be written.
    pub fn keep(&self, device: &DeviceInstance) -> anyhow::Result<()> {
        write(
            &self.instances,
            &device.spec.name,
            device,
            Lasts::UntilReboot,
        )
    }

    /// Removes the record of a device that is over.
    pub fn forget(&self, name: &str) {
        remove(&self.instances.join(format!("{name}.json")));
    }

    /// Returns all devices that are there.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn instances(&self) -> anyhow::Result<Found<DeviceInstance>> {
        read(&self.instances)
    }

    /// Writes down that a device is desired.
    ///
    /// # Errors
    /// If the state directory cannot be written.
    pub fn keep_desired(&self, spec: &DeviceSpec) -> anyhow::Result<()> {
        let desired = DesiredDevice { spec: spec.clone() };
        write(&self.desired, &spec.name, &desired, Lasts::ForEver)
    }

    /// Removes the record that a device is desired, and returns whether there was one.
    pub fn forget_desired(&self, name: &str) -> bool {
        remove(&self.desired.join(format!("{name}.json")))
    }

    /// Returns whether a device is desired.
    #[must_use]
    pub fn is_desired(&self, name: &str) -> bool {
        self.desired.join(format!("{name}.json")).exists()
    }

    /// Returns all desired devices.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn desired(&self) -> anyhow::Result<Found<DesiredDevice>> {
        read(&self.desired)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_kept_until_they_are_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let (run, state) = (dir.path().join("run"), dir.path().join("state"));
        let records = DeviceRecords::open(&run, &state).unwrap();
        let text =
            r#"{"name": "web", "image": "/i", "kind": "nbd", "at": "/s", "store": "/store"}"#;
        let spec: DeviceSpec = serde_json::from_str(text).unwrap();
        let device = DeviceInstance {
            spec: spec.clone(),
            worker: None,
            restarts: 3,
            last_gap_ms: Some(4),
        };
        records.keep(&device).unwrap();
        records.keep_desired(&spec).unwrap();
        std::fs::write(state.join("devices/half.json"), "{").unwrap();
        let found = records.instances().unwrap();
        assert_eq!(found.records, [("web".to_owned(), device)]);
        let desired = records.desired().unwrap();
        assert_eq!(desired.records[0].1.spec, spec);
        assert_eq!(desired.damaged, [state.join("devices/half.json")]);
        records.forget("web");
        assert!(records.is_desired("web") && records.forget_desired("web"));
        assert!(!records.is_desired("web") && !records.forget_desired("web"));
        assert!(records.instances().unwrap().records.is_empty());
    }
}
