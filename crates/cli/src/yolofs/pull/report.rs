//! What a pull did, for people and for programs.

use std::time::Instant;

use blocks::Digest;
use serde::Serialize;
use tiering::lass::Place;

use super::wanted::{Layer, Wanted};
use crate::output::duration;
use host::size::Size;

/// What `yolofs pull --json` prints.
#[derive(Debug, Serialize)]
pub(super) struct PullReport {
    /// The name of the image.
    reference: String,
    /// Where it is in containerd.
    namespace: String,
    /// The image's ID.
    image: Digest,
    /// What the name points to: an index or a manifest.
    target: Digest,
    /// Whether nothing was done.
    pub(super) dry_run: bool,
    /// The lowest first.
    pub(super) layers: Vec<LayerReport>,
    /// Bytes of layers that came over the network.
    pub(super) fetched_bytes: u64,
    /// Milliseconds it took.
    took_ms: u64,
    /// Milliseconds of them that were left when the last byte had come.
    after_download_ms: u64,
    #[serde(skip)]
    pub(super) last_byte: Option<Instant>,
}

/// What became of a layer.
#[derive(Debug, Serialize)]
pub(super) struct LayerReport {
    /// Its diff ID.
    layer: Digest,
    /// What containerd calls it.
    chain: Digest,
    /// Bytes of its blob.
    bytes: u64,
    /// Where it went, or would go.
    pub(super) went: Went,
    /// Bytes of its files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) unpacked_bytes: Option<u64>,
}

/// Where a layer went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Went {
    /// Nowhere: it was there.
    Present,
    /// To the disk.
    Disk,
    /// To the fast place.
    Fast,
}

impl PullReport {
    /// Of an image of which nothing was done yet.
    pub(super) fn of(wanted: &Wanted, namespace: &str) -> Self {
        let found = &wanted.image;
        Self {
            reference: wanted.reference.to_string(),
            namespace: namespace.to_owned(),
            image: found.manifest.config.digest,
            target: found.index.as_ref().unwrap_or(&found.found).digest,
            dry_run: false,
            layers: Vec::new(),
            fetched_bytes: 0,
            took_ms: 0,
            after_download_ms: 0,
            last_byte: None,
        }
    }

    /// Notes that all is done by now.
    pub(super) fn took(&mut self, began: Instant) {
        let millis = |since: Instant| u64::try_from(since.elapsed().as_millis());
        self.took_ms = millis(began).unwrap_or(u64::MAX);
        let after = self.last_byte.map(millis);
        self.after_download_ms = after.and_then(Result::ok).unwrap_or(0);
    }
}

impl LayerReport {
    /// Of all layers of an image, of which so many are there; the others go to these places.
    pub(super) fn all(layers: &[Layer], there: usize, places: &[Place]) -> Vec<Self> {
        let went = |at: usize| match at.checked_sub(there) {
            None => Went::Present,
            Some(missing) => places.get(missing).copied().map_or(Went::Disk, Went::of),
        };
        let each = layers.iter().enumerate().map(|(at, layer)| Self {
            layer: layer.diff_id,
            chain: layer.chain,
            bytes: layer.blob.size,
            went: went(at),
            unpacked_bytes: None,
        });
        each.collect()
    }
}

/// Writes it for people.
pub(super) fn text(report: &PullReport) -> String {
    let mut text = String::new();
    for layer in &report.layers {
        let went = match (layer.went, report.dry_run) {
            (Went::Present, _) => "is there",
            (Went::Disk, false) => "pulled, to the disk",
            (Went::Fast, false) => "pulled, to the fast place",
            (Went::Disk, true) => "would go to the disk",
            (Went::Fast, true) => "would go to the fast place",
        };
        let bytes = Size(layer.bytes);
        text.push_str(&format!("layer {}: {bytes} {went}\n", layer.layer.short()));
    }
    let (reference, namespace) = (&report.reference, &report.namespace);
    if report.dry_run {
        let missing = report.layers.iter().filter(|of| of.went != Went::Present);
        let bytes = Size(missing.map(|layer| layer.bytes).sum());
        text.push_str(&format!(
            "{reference}: {bytes} would be downloaded for the namespace {namespace}\n"
        ));
        return text;
    }
    let millis = std::time::Duration::from_millis;
    let after = match report.fetched_bytes {
        0 => String::new(),
        _ => format!(
            ", {} of it after the last byte",
            duration(millis(report.after_download_ms))
        ),
    };
    text.push_str(&format!(
        "{reference}: {} downloaded in {}{after}; it is in the namespace {namespace}\n",
        Size(report.fetched_bytes),
        duration(millis(report.took_ms)),
    ));
    text
}
