//! Snapshots whose files are a file system on a block device of their own.
//!
//! overlaybd's label has one made for a container on a block image: on the layers of the image is a writable one, and what
//! the container writes goes there, instead of the upper directory of an overlay. Committed, the writable layer becomes
//! one more layer of the block image.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// What has a device made for a snapshot.
pub(crate) const WRITABLE: &str = "containerd.io/snapshot/overlaybd.writable";
/// Where the blob of a layer is that was committed; overlaybd's snapshotter says so.
pub(crate) const COMMITTED: &str = "containerd.io/snapshot/overlaybd.localcommitpath";

/// Bytes that a container may write, as overlaybd's snapshotter calls it: `20G`.
pub(crate) const QUOTA: &str = "containerd.io/snapshot/disk_quota";

/// The device that is wanted for a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WantedDevice<'a> {
    /// How its file system is shown.
    pub form: DeviceForm,
    /// Bytes that may be written to it, as its label `disk_quota` says it: `20G`.
    pub quota: Option<&'a str>,
}

/// How a container gets the file system of its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceForm {
    /// Mounted on a directory, which is bound.
    Dir,
    /// As a block device, to be mounted.
    Dev,
}

impl DeviceForm {
    /// Returns what is asked for by the value of [`WRITABLE`]. As in overlaybd's snapshotter, any other value asks for nothing.
    pub(crate) fn of(value: &str) -> Option<Self> {
        match value {
            "dir" => Some(Self::Dir),
            "dev" => Some(Self::Dev),
            _ => None,
        }
    }
}

/// The device of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnDevice {
    /// Where its file system is mounted; the device itself for [`DeviceForm::Dev`].
    pub path: PathBuf,
    /// The kernel's name of the file system.
    pub fs_type: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_asks_for_a_device() {
        assert_eq!(DeviceForm::of("dir"), Some(DeviceForm::Dir));
        assert_eq!(DeviceForm::of("dev"), Some(DeviceForm::Dev));
        assert_eq!(DeviceForm::of("overlayfs"), None);
    }
}
