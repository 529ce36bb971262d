//! The operations of a node: the interface between the API and the owner of the mounts.

use std::path::Path;

use super::spec::MountSpec;
use super::view::{Drained, MountView, NodeView, Upgraded};
use crate::boot_choice::BootChoice;
use crate::device::{Attached, DeviceSpec, DeviceView};
use crate::image::KeptPlan;
use crate::mount_daemon::PrewarmSummary;

/// What becomes of a mount that is in use when it is to be unmounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenInUse {
    /// It stays, and the request is refused.
    Refuse,
    /// It is taken out of the mount table, and its users are served until they end.
    Detach,
}

/// The node, as the API sees it. Calls block, each within its own deadline; they are made from
/// threads that may wait.
pub trait NodeControl: Send + Sync + std::fmt::Debug {
    /// Returns the status of the node. Never waits for a worker.
    fn node(&self) -> NodeView;

    /// Returns the status of all mounts, sorted by mount point. For a worker that does not respond
    /// in time, it returns the node's own records.
    fn mounts(&self) -> Vec<MountView>;

    /// Returns the status of one mount.
    ///
    /// # Errors
    /// [`NodeError::Unknown`].
    fn mount(&self, id: &str) -> Result<MountView, NodeError>;

    /// Mounts, and returns when the mount is served. The same mount again changes nothing.
    ///
    /// # Errors
    /// [`NodeError::Conflict`] if something else is mounted there or the node drains;
    /// [`NodeError::Invalid`] for a source or a place that cannot be used.
    fn make(&self, spec: MountSpec) -> Result<Made, NodeError>;

    /// Unmounts.
    ///
    /// # Errors
    /// [`NodeError::Unknown`]; [`NodeError::Conflict`] if it is in use and is to stay then.
    fn unmount(&self, id: &str, when_in_use: WhenInUse) -> Result<(), NodeError>;

    /// Loads the boot image of a mount into its page cache, and returns when that is done.
    ///
    /// # Errors
    /// [`NodeError::Unknown`]; [`NodeError::Conflict`] if it has no boot image.
    fn prewarm(&self, id: &str, budget_bytes: Option<u64>) -> Result<PrewarmSummary, NodeError>;

    /// Serves a mount from another boot image from now on, or from none.
    ///
    /// # Errors
    /// [`NodeError::Unknown`]; [`NodeError::Invalid`] if the image cannot be used for it.
    fn swap(&self, id: &str, boot: BootChoice) -> Result<MountView, NodeError>;

    /// Tells of all devices, by name.
    fn devices(&self) -> Vec<DeviceView>;

    /// Has a device served, and returns when clients can connect. The same device again changes nothing.
    ///
    /// # Errors
    /// [`NodeError::Conflict`] if another device has its name or its place, or somebody else writes to its image;
    /// [`NodeError::Invalid`] for an image or a place that cannot be used.
    fn attach(&self, spec: DeviceSpec) -> Result<Attached, NodeError>;

    /// Ends a device, after what is in flight was answered.
    ///
    /// # Errors
    /// [`NodeError::NoDevice`]; [`NodeError::Conflict`] if what is mounted of it is in use.
    fn detach(&self, name: &str) -> Result<(), NodeError>;

    /// Makes a device larger, and returns when that is durable. The same size again changes nothing.
    ///
    /// # Errors
    /// [`NodeError::NoDevice`]; [`NodeError::Invalid`] if it would become smaller, or can only be read;
    /// [`NodeError::Conflict`] if nobody serves it now.
    fn resize(&self, name: &str, size: u64) -> Result<DeviceView, NodeError>;

    /// Makes a plan of what was read of a device since it was attached, and records no more.
    ///
    /// # Errors
    /// [`NodeError::NoDevice`]; [`NodeError::Conflict`] if it is not being recorded, or nothing was read.
    fn keep_plan(&self, name: &str) -> Result<KeptPlan, NodeError>;

    /// Takes no more mounts, and unmounts all.
    ///
    /// # Errors
    /// If the list of mounts cannot be read.
    fn drain(&self) -> Result<Drained, NodeError>;

    /// Has every mount served by `program` from now on, and the node itself run by it.
    ///
    /// # Errors
    /// [`NodeError::Invalid`] if the program does not run; nothing has changed then.
    fn upgrade(&self, program: &Path) -> Result<Upgraded, NodeError>;
}

/// The result of a request for a mount.
#[derive(Clone, Debug)]
pub struct Made {
    /// The mount, as it is now.
    pub mount: MountView,
    /// Whether this request made it.
    pub new: bool,
}

/// Why the node refused a request, or failed.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// There is no such mount.
    #[error("there is no mount {0}")]
    Unknown(String),
    /// There is no such device.
    #[error("there is no device {0}")]
    NoDevice(String),
    /// What was asked makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// The present state does not allow it.
    #[error("{0}")]
    Conflict(String),
    /// A deadline passed, or a limit is reached; a later attempt may succeed.
    #[error("{0}")]
    Unavailable(String),
    /// Everything else, with its causes.
    #[error("{0:#}")]
    Failed(#[from] anyhow::Error),
}
