//! What can be asked of the node: the seam between the API and what owns the mounts.

use std::path::Path;

use super::spec::MountSpec;
use super::view::{Drained, MountView, NodeView, Upgraded};
use crate::boot_choice::BootChoice;
use crate::device::{Attached, DeviceSpec, DeviceView};
use crate::mount_daemon::PrewarmSummary;

/// The node, as the API sees it. Calls block, each within a deadline of its own; they are made
/// from threads that may wait.
pub trait NodeControl: Send + Sync + std::fmt::Debug {
    /// Tells of the node itself. Never waits for a worker.
    fn node(&self) -> NodeView;

    /// Tells of all mounts, by mount point. A worker that does not answer in time is shown as
    /// what the node knows of it.
    fn mounts(&self) -> Vec<MountView>;

    /// Tells of one mount.
    ///
    /// # Errors
    /// [`NodeError::Unknown`].
    fn mount(&self, id: &str) -> Result<MountView, NodeError>;

    /// Mounts, and returns when it is served. The same mount again changes nothing.
    ///
    /// # Errors
    /// [`NodeError::Conflict`] if something else is mounted there or the node drains;
    /// [`NodeError::Invalid`] for a source or a place that cannot be used.
    fn make(&self, spec: MountSpec) -> Result<Made, NodeError>;

    /// Unmounts; `lazy` even if it is in use.
    ///
    /// # Errors
    /// [`NodeError::Unknown`]; [`NodeError::Conflict`] if it is in use.
    fn unmount(&self, id: &str, lazy: bool) -> Result<(), NodeError>;

    /// Brings the boot image of a mount into its page cache, and returns when that is done.
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

/// A mount that was asked for.
#[derive(Clone, Debug)]
pub struct Made {
    /// The mount, as it is now.
    pub mount: MountView,
    /// Whether it was not there before.
    pub new: bool,
}

/// Why the node did not do what was asked.
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
    /// It cannot be done as things stand.
    #[error("{0}")]
    Conflict(String),
    /// A deadline passed, or a limit is reached; it may work later.
    #[error("{0}")]
    Unavailable(String),
    /// Everything else, with its causes.
    #[error("{0:#}")]
    Failed(#[from] anyhow::Error),
}
