//! Where the devices of block images are, and what they are called.

use std::path::{Path, PathBuf};

use host::run_dir::RunDir;
use snapshotter::SnapshotId;

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

    pub(super) fn of(&self, id: SnapshotId) -> PathBuf {
        self.dir.join(id.to_string())
    }

    pub(super) fn name(&self, id: SnapshotId) -> String {
        format!("{}{id}", self.prefix)
    }

    /// Returns which snapshot a device is of, if it is of one here.
    pub(super) fn id(&self, name: &str) -> Option<SnapshotId> {
        let id = name.strip_prefix(&self.prefix)?.parse();
        id.ok().map(SnapshotId)
    }

    /// Where the directory with the file of a device is, and where its file system.
    pub(super) fn mounts(&self, id: SnapshotId) -> [PathBuf; 2] {
        ["file", "fs"].map(|name| self.of(id).join(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_known_by_its_name() {
        let places = DevicePlaces::of_root(Path::new("/root"));
        let name = places.name(SnapshotId(12));
        node_api::device::check_name(&name).unwrap();
        assert_eq!(places.id(&name), Some(SnapshotId(12)));
        let others = DevicePlaces::of_root(Path::new("/other"));
        assert_eq!(others.id(&name), None);
        assert_eq!(places.id("vm"), None);
    }
}
