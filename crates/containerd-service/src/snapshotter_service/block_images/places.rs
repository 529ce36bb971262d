//! Where the devices of block images are, and what they are called.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use host::run_dir::RunDir;
use snapshotter::SnapshotId;

/// What the name of a device ends with that one snapshot writes to.
const OWN: &str = "-own";

/// A device of a root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) enum DeviceId {
    /// That of the layers of which this snapshot has the topmost one: all snapshots above read it.
    Layers(SnapshotId),
    /// The one that this snapshot writes to.
    Own(SnapshotId),
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Layers(id) => write!(f, "{id}"),
            Self::Own(id) => write!(f, "{id}{OWN}"),
        }
    }
}

impl FromStr for DeviceId {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.strip_suffix(OWN) {
            Some(id) => id.parse().map(|id| Self::Own(SnapshotId(id))),
            None => text.parse().map(|id| Self::Layers(SnapshotId(id))),
        }
    }
}

/// Where the devices of a root are, and what the node calls them.
#[derive(Clone, Debug)]
pub(super) struct DevicePlaces {
    pub(super) dir: PathBuf,
    prefix: String,
}

impl DevicePlaces {
    pub(super) fn of_root(root: &Path) -> Self {
        Self {
            dir: root.join("devices"),
            prefix: format!("snapshots-{}-", RunDir::id_of(root)),
        }
    }

    pub(super) fn of(&self, id: DeviceId) -> PathBuf {
        self.dir.join(id.to_string())
    }

    pub(super) fn name(&self, id: DeviceId) -> String {
        format!("{}{id}", self.prefix)
    }

    /// Returns which device has a name, if it is one of here.
    pub(super) fn id(&self, name: &str) -> Option<DeviceId> {
        name.strip_prefix(&self.prefix)?.parse().ok()
    }

    /// Where the directory with the file of a device is, and where its file system.
    pub(super) fn mounts(&self, id: DeviceId) -> [PathBuf; 2] {
        ["file", "fs"].map(|name| self.of(id).join(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_known_by_its_name() {
        let places = DevicePlaces::of_root(Path::new("/root"));
        let others = DevicePlaces::of_root(Path::new("/other"));
        for of in [DeviceId::Layers, DeviceId::Own] {
            let id = of(SnapshotId(12));
            let name = places.name(id);
            node_api::device::check_name(&name).unwrap();
            assert_eq!(places.id(&name), Some(id));
            assert_eq!(others.id(&name), None);
        }
        assert_eq!(places.id("vm"), None);
    }
}
