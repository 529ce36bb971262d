//! How far the download of a pull is.

use std::time::Instant;

use oci::Descriptor;
use tiering::lass::{CONCURRENT, Left};

use super::content::{PulledImage, arrived, ingested};
use super::{Layer, PlacingState, Shared, WAITING_MAX};
use crate::placement::network;
use crate::placement::predicted::Predicted;

/// The beginning of the download of a pull, and the prediction for it.
#[derive(Clone, Debug)]
pub(super) struct Foreseen {
    /// The lowest of its layers.
    first: usize,
    /// The one that was going to be downloaded last.
    pub(super) predicted: Predicted,
    /// Missing blobs.
    missing: Vec<usize>,
    /// When that was, and how much of the missing ones had arrived.
    began: Instant,
    came: u64,
}

impl Shared {
    /// Returns the missing layers of a pull. The parents of a layer were unpacked.
    pub(super) fn missing(&self, layer: &Layer) -> Vec<usize> {
        let above = match layer.unpack.parent {
            Some(_) => layer.index,
            None => 0,
        };
        let layers = layer.image.layers.iter().enumerate().skip(above);
        layers
            .filter(|(_, of)| arrived(&self.blobs, &of.digest).is_none())
            .map(|(index, _)| index)
            .collect()
    }

    /// Predicts the last layer of a pull, when its first layer is prepared.
    pub(super) fn foresee(&self, now: &mut PlacingState, layer: &Layer) {
        let pull = layer.image.pull;
        let known = now.foreseen.get(&pull);
        // The first layer again is another attempt.
        if known.is_some_and(|of| of.first < layer.index) {
            return;
        }
        let missing = self.missing(layer);
        let sizes: Vec<u64> = missing
            .iter()
            .map(|index| layer.image.layers[*index].size)
            .collect();
        let predicted = Predicted::of(&sizes, CONCURRENT);
        let last = predicted.map_or(layer.index, |predicted| missing[predicted.last()]);
        if now.foreseen.len() >= WAITING_MAX {
            now.foreseen.clear(); // Of pulls that failed.
        }
        let foreseen = Foreseen {
            first: layer.index,
            predicted: Predicted::at(last),
            began: Instant::now(),
            came: self.came(&layer.image, &missing),
            missing,
        };
        now.foreseen.insert(pull, foreseen);
    }

    /// Returns how many bytes are there of some layers of an image.
    fn came(&self, image: &PulledImage, layers: &[usize]) -> u64 {
        let ingested = ingested(&self.blobs);
        let came = |index: &usize| {
            let Descriptor { digest, size, .. } = &image.layers[*index];
            match arrived(&self.blobs, digest) {
                Some(_) => *size,
                None => ingested.get(digest).map_or(0, |came| (*came).min(*size)),
            }
        };
        layers.iter().map(came).fold(0, u64::saturating_add)
    }

    /// Returns the rest of a pull's download, if enough has arrived to measure the rate.
    pub(super) fn left(
        &self,
        now: &PlacingState,
        layer: &Layer,
        missing: &[usize],
    ) -> Option<Left> {
        let image = &layer.image;
        let begin = now.foreseen.get(&image.pull)?;
        let elapsed = begin.began.elapsed();
        let came = self.came(image, &begin.missing).checked_sub(begin.came)?;
        let sizes = missing.iter().map(|index| image.layers[*index].size);
        let bytes = sizes.fold(0, u64::saturating_add);
        Some(Left {
            bytes: bytes.saturating_sub(self.came(image, missing)),
            rate: network::rate(came, elapsed)?,
            elapsed,
        })
    }

    /// Looks whether the layer that came last is the one that was foreseen.
    pub(super) fn compare(&self, now: &mut PlacingState, image: &PulledImage) {
        let Some(foreseen) = now.foreseen.remove(&image.pull) else {
            return;
        };
        let came = |index: &usize| arrived(&self.blobs, &image.layers[*index].digest);
        let Some(last) = foreseen.missing.iter().copied().max_by_key(came) else {
            return;
        };
        let predicted = foreseen.predicted.last();
        log::debug!("layer {last} came last, {predicted} was predicted");
        match last == predicted {
            true => now.placed.foreseen += 1,
            false => now.placed.not_foreseen += 1,
        }
    }
}
