//! The data of a page about one image.

use serde::{Deserialize, Serialize};

use crate::content::Content;
use crate::measured::Comparison;
use crate::mount::MountReport;
use crate::sum::sum;
use crate::timeline::Timeline;

/// Everything that is known of one image.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ImageReport {
    /// Its name: a reference, a name of the store, or a file.
    pub name: String,
    /// Its other names.
    pub other_names: Vec<String>,
    /// The recorded source, with its kind: `dir:/srv/root`, `disk:/srv/disk.raw`.
    pub source: String,
    /// Its digests.
    pub digests: Vec<NamedDigest>,
    /// When and how it was recorded.
    pub recording: RecordingReport,
    /// The reads of boots by time.
    pub timeline: Timeline,
    /// The content that they read.
    pub content: Content,
    /// How alike the recorded runs were.
    pub stability: StabilityReport,
    /// The layers, bottom first; a tree or a disk is one layer.
    pub layers: Vec<LayerReport>,
    /// The mounts that use it now.
    pub mounts: Vec<MountReport>,
    /// The duration of its boot by source.
    pub measured: Vec<Comparison>,
}

/// A digest, and of what.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedDigest {
    /// Such as `boot image` or `manifest`.
    pub of: String,
    /// As it is usually written.
    pub digest: String,
}

/// When and how an image was recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordingReport {
    /// Seconds since 1970.
    pub recorded_at: i64,
    /// Name and version of the program that recorded it; may be empty.
    pub tool: String,
    /// The command that booted it; empty if unknown.
    pub command: Vec<String>,
    /// Recordings that were merged.
    pub runs: u16,
    /// Milliseconds from the start to readiness, run by run; empty if unknown.
    pub ready_ms: Vec<u64>,
}

/// How much of what boots read is the same every time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StabilityReport {
    /// Bytes that every run needed.
    pub every_run_bytes: u64,
    /// Bytes that some runs did not need, but at least half of them.
    pub most_runs_bytes: u64,
    /// Bytes that fewer than half of the runs needed.
    pub few_runs_bytes: u64,
    /// How alike two runs are on average, in millionths (Jaccard index of their blocks).
    pub similarity_ppm: Option<u32>,
}

impl StabilityReport {
    /// Counts bytes that `seen` of `runs` runs needed.
    pub const fn count(&mut self, seen: u16, runs: u16, bytes: u64) {
        let class = if seen >= runs {
            &mut self.every_run_bytes
        } else if seen.saturating_mul(2) >= runs {
            &mut self.most_runs_bytes
        } else {
            &mut self.few_runs_bytes
        };
        *class = class.saturating_add(bytes);
    }
}

/// The cost of one layer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerReport {
    /// Its digest, or what its source is called.
    pub name: String,
    /// The id of its boot image; nothing if boots read nothing of the layer.
    pub boot_image: Option<String>,
    /// Bytes of all files of the layer; `None` if unknown.
    pub source_bytes: Option<u64>,
    /// Bytes that boots read.
    pub touched_bytes: u64,
    /// Files that they are in.
    pub files: u64,
    /// Runs of blocks that they are read in.
    pub extents: u64,
    /// Uses of metadata that a prewarm repeats.
    pub touches: u64,
    /// Bytes in the store that only this boot image uses.
    pub own_bytes: u64,
    /// Bytes in the store that other boot images have as well.
    pub shared_bytes: u64,
}

impl ImageReport {
    /// Returns the bytes that boots read, of all layers.
    #[must_use]
    pub fn touched_bytes(&self) -> u64 {
        sum(self.layers.iter().map(|layer| layer.touched_bytes))
    }

    /// Returns the bytes of all layers; nothing unless they are known of each.
    #[must_use]
    pub fn source_bytes(&self) -> Option<u64> {
        let known: Option<Vec<u64>> = self.layers.iter().map(|layer| layer.source_bytes).collect();
        known.map(sum).filter(|bytes| *bytes > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stability_has_three_classes() {
        let mut stability = StabilityReport::default();
        for (seen, bytes) in [(4, 1), (3, 10), (2, 100), (1, 1000)] {
            stability.count(seen, 4, bytes);
        }
        assert_eq!(stability.every_run_bytes, 1);
        assert_eq!(stability.most_runs_bytes, 110);
        assert_eq!(stability.few_runs_bytes, 1000);
    }

    #[test]
    fn the_size_of_an_image_is_known_if_that_of_each_layer_is() {
        let layer = |source_bytes| LayerReport {
            source_bytes,
            ..LayerReport::default()
        };
        let image = |layers: &[Option<u64>]| ImageReport {
            layers: layers.iter().copied().map(layer).collect(),
            ..ImageReport::default()
        };
        assert_eq!(
            image(&[Some(1), Some(u64::MAX)]).source_bytes(),
            Some(u64::MAX)
        );
        assert_eq!(image(&[Some(1), None]).source_bytes(), None);
        assert_eq!(image(&[]).source_bytes(), None);
    }
}
