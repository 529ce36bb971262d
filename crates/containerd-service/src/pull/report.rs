//! The result of a pull, for people and for programs.

use std::time::Instant;

use blocks::Digest;
use serde::Serialize;
use tiering::lass::Placement;

use super::wanted::{Layer, Wanted};

/// What `yolofs pull --json` prints.
#[derive(Debug, Serialize)]
pub struct PullReport {
    /// The name of the image.
    pub reference: String,
    /// Where it is in containerd.
    pub namespace: String,
    /// The image's ID.
    pub image: Digest,
    /// What the name points to: an index or a manifest.
    pub target: Digest,
    /// Whether nothing was pulled.
    pub dry_run: bool,
    /// The lowest first.
    pub layers: Vec<LayerReport>,
    /// Bytes of layers that came over the network.
    pub fetched_bytes: u64,
    /// Duration in milliseconds.
    pub took_ms: u64,
    /// Milliseconds of it after the last byte.
    pub after_download_ms: u64,
    /// When the last byte arrived.
    #[serde(skip)]
    pub last_byte: Option<Instant>,
}

/// What became of a layer.
#[derive(Debug, Serialize)]
pub struct LayerReport {
    /// Its diff ID.
    pub layer: Digest,
    /// Its chain ID, the name of its snapshot.
    pub chain: Digest,
    /// Bytes of its blob.
    pub bytes: u64,
    /// Where it went, or would go.
    pub went: LayerOutcome,
    /// Bytes of its files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unpacked_bytes: Option<u64>,
}

/// The place of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LayerOutcome {
    /// It existed already.
    Present,
    /// The disk.
    Disk,
    /// The fast place.
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

    /// Records the duration, when all is done.
    pub(crate) fn took(&mut self, began: Instant) {
        let millis = |since: Instant| u64::try_from(since.elapsed().as_millis());
        self.took_ms = millis(began).unwrap_or(u64::MAX);
        let after = self.last_byte.map(millis);
        self.after_download_ms = after.and_then(Result::ok).unwrap_or(0);
    }
}

impl LayerReport {
    /// Reports all layers of an image: `there` of them exist; the others have these places.
    pub(super) fn all(layers: &[Layer], there: usize, places: &[Placement]) -> Vec<Self> {
        let went = |at: usize| match at.checked_sub(there) {
            None => LayerOutcome::Present,
            Some(missing) => places
                .get(missing)
                .copied()
                .map_or(LayerOutcome::Disk, LayerOutcome::of),
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
