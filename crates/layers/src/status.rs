//! What `status` shows of a layer.

use std::path::PathBuf;

use blocks::Digest;
use serde::{Deserialize, Serialize};

use super::served::Served;
use node_api::mount_state::MountState;
use node_api::status::{BootStatus, ServedStatus};

/// A layer at one moment. Counts are since it was attached.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LayerStatus {
    /// Its diff ID.
    pub layer: Digest,
    /// Where it is served.
    pub target: PathBuf,
    /// Serving, or leaving if it was detached and still has users.
    pub state: MountState,
    /// Its boot image.
    pub boot: BootStatus,
    /// Some of the files that were changed in the layer since the recording.
    pub changed: Vec<String>,
    /// Names in the layer that are not in the recording.
    pub names_added: u64,
    /// Names in the recording that the layer no longer has.
    pub names_removed: u64,
    /// Counters of its requests.
    pub served: ServedStatus,
}

impl LayerStatus {
    /// Returns the status of a layer in this state.
    pub fn of(
        layer: Digest,
        target: PathBuf,
        state: MountState,
        boot: BootStatus,
        served: ServedStatus,
    ) -> Self {
        let (mut boot, mut served) = (boot, served);
        // An answer tells of hundreds of layers.
        served.requests.retain(|_, count| *count > 0);
        Self {
            layer,
            target,
            state,
            changed: std::mem::take(&mut boot.changed),
            names_added: boot.names_added,
            names_removed: boot.names_removed,
            boot,
            served,
        }
    }
}

impl Served {
    /// Returns its status, as that of a layer in this state.
    pub fn status(&self, state: MountState) -> LayerStatus {
        let counters = self.mount.counters();
        let boot = self.parts.boot_status(&counters, self.prewarm_state());
        LayerStatus::of(
            *self.layer(),
            self.place.target.clone(),
            state,
            boot.unwrap_or_default(),
            self.parts.served_status(&counters),
        )
    }
}
