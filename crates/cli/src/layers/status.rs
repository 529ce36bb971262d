//! What `status` shows of a layer.

use std::path::PathBuf;

use blocks::Digest;
use serde::{Deserialize, Serialize};

use super::served::Served;
use crate::output::{count, percent, table};
use crate::size::Size;
use crate::status::{BootStatus, ServedStatus};

/// How many changed files are named; the others are counted.
const CHANGED_NAMED: usize = 8;

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

impl Served {
    /// Returns its status, as that of a layer in this state.
    pub(super) fn status(&self, state: &str) -> LayerStatus {
        let report = self.image.report();
        let changed = report.dropped.iter().take(CHANGED_NAMED);
        let changed = changed.map(|file| {
            let path = String::from_utf8_lossy(&file.path);
            format!("{path}: {}", file.reason)
        });
        LayerStatus {
            layer: *self.layer(),
            target: self.place.target.clone(),
            state: state.to_owned(),
            boot: self.boot_status(),
            changed: changed.collect(),
            names_added: report.names_added,
            names_removed: report.names_removed,
            served: self.served_status(),
        }
    }

    fn boot_status(&self) -> BootStatus {
        let name = bootimg::layer_name(self.layer());
        let counters = self.mount.counters();
        BootStatus::of(&name, &self.image, &counters, self.prewarm_state())
    }

    fn served_status(&self) -> ServedStatus {
        let mut served = ServedStatus::of(
            &self.mount.counters(),
            Some(self.source.counts()),
            self.image.plan().block_count(),
            self.source.source().timekeeping(),
            None,
        );
        // An answer tells of hundreds of layers.
        served.requests.retain(|_, count| *count > 0);
        served
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
