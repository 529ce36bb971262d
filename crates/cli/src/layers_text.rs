//! The status of layers, for people.

use crate::output::{count, percent, table};
use host::size::Size;
use layers::status::LayerStatus;

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
            layer.state.to_string(),
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
