//! What `status` shows of a layer.

use mounting::mount_status::boot_status;
use mounting::mount_status::served_status;
use std::path::PathBuf;

use blocks::Digest;
use serde::{Deserialize, Serialize};

use super::served::Served;
use crate::output::{count, percent, table};
use host::size::Size;
use node_api::status::{BootStatus, ServedStatus};

/// A layer at one moment. Counts are since it was attached.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LayerStatus {
    /// Its diff ID.
    pub(crate) layer: Digest,
    /// Where it is served.
    pub(crate) target: PathBuf,
    /// `serving`, or `leaving` if it was detached and somebody still uses it.
    pub(crate) state: String,
    /// Its boot image.
    pub(crate) boot: BootStatus,
    /// Files that somebody changed in the layer since the recording, some of them.
    pub(crate) changed: Vec<String>,
    /// Names in the layer that the recording does not know.
    pub(crate) names_added: u64,
    /// Names that the recording knows and the layer no longer has.
    pub(crate) names_removed: u64,
    /// What it was asked and what it answered.
    pub(crate) served: ServedStatus,
}

impl LayerStatus {
    /// Returns the status of a layer in this state.
    pub(super) fn of(
        layer: Digest,
        target: PathBuf,
        state: &str,
        boot: BootStatus,
        served: ServedStatus,
    ) -> Self {
        let (mut boot, mut served) = (boot, served);
        // An answer tells of hundreds of layers.
        served.requests.retain(|_, count| *count > 0);
        Self {
            layer,
            target,
            state: state.to_owned(),
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
    pub(super) fn status(&self, state: &str) -> LayerStatus {
        let (layer, target) = (*self.layer(), self.place.target.clone());
        LayerStatus::of(
            layer,
            target,
            state,
            self.boot_status(),
            self.served_status(),
        )
    }

    fn boot_status(&self) -> BootStatus {
        let name = bootimg::layer_name(self.layer());
        let counters = self.mount.counters();
        boot_status(&name, &self.image, &counters, self.prewarm_state())
    }

    fn served_status(&self) -> ServedStatus {
        served_status(
            &self.mount.counters(),
            Some(self.source.counts()),
            self.image.plan().block_count(),
            self.source.source().timekeeping(),
            None,
        )
    }
}

/// Writes the status of layers for people, a line each.
#[must_use]
pub(crate) fn layers_text(layers: &[LayerStatus]) -> String {
    let head = ["LAYER", "STATE", "BOOT IMAGE", "INJECTED", "FROM SOURCE"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for layer in layers {
        let served = &layer.served;
        let all = served.hit_bytes + served.fallthrough_bytes;
        let injected = Size(layer.boot.injected_pages.saturating_mul(4096));
        rows.push(vec![
            layer.layer.short(),
            layer.state.clone(),
            Size(layer.boot.blocks.saturating_mul(4096)).to_string(),
            format!("{injected} ({})", layer.boot.prewarm),
            format!(
                "{} ({})",
                Size(served.fallthrough_bytes),
                percent(served.fallthrough_bytes, all)
            ),
        ]);
    }
    let mut text = table(&rows);
    for layer in layers {
        text.push_str(&changes_text(layer));
    }
    text
}

/// Says what somebody changed in a layer, which nobody should.
fn changes_text(layer: &LayerStatus) -> String {
    let (files, while_served) = (layer.boot.stale_files, layer.served.diverted_files);
    if files + while_served == 0 {
        return String::new();
    }
    let mut text = format!(
        "layer {} was changed: {} since the recording, {} while served; these are read from {}\n",
        layer.layer.short(),
        count(files, "file"),
        while_served,
        layer.target.display()
    );
    for changed in &layer.changed {
        text.push_str(&format!("  {changed}\n"));
    }
    text
}
