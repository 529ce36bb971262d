//! What a boot needs when.

use serde::{Deserialize, Serialize};

/// Most moments that a timeline has: twice as many as the columns of a wide picture.
const MOMENTS_MAX: u64 = 240;

/// Content of one layer that is needed at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// Milliseconds since the start of the boot.
    pub at_ms: u64,
    /// Index of the layer, from the bottom.
    pub layer: usize,
    /// How many bytes.
    pub bytes: u64,
}

/// The needed data by time, in slices of equal length.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timeline {
    /// Milliseconds in a slice; 0 if nothing is needed.
    pub slice_ms: u64,
    /// The slices in which something is needed, by time.
    pub moments: Vec<Moment>,
}

/// One slice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment {
    /// Its number: it begins at this many times `slice_ms`.
    pub slice: u64,
    /// Bytes needed, layer by layer, bottom first; layers behind the last need nothing.
    pub layer_bytes: Vec<u64>,
    /// Runs of blocks they are in.
    pub extents: u64,
}

impl Timeline {
    /// Makes a timeline of needs, in any order. A slice is `bin_ms` long, or a multiple
    /// of it, so that there are few slices.
    #[must_use]
    pub fn of(needs: &[Need], bin_ms: u64) -> Self {
        let Some(last) = needs.iter().map(|need| need.at_ms).max() else {
            return Self::default();
        };
        let bin_ms = bin_ms.max(1);
        let bins = (last / bin_ms).saturating_add(1);
        let slice_ms = bin_ms.saturating_mul(bins.div_ceil(MOMENTS_MAX));
        let mut moments = std::collections::BTreeMap::<u64, Moment>::new();
        for need in needs {
            let slice = need.at_ms / slice_ms;
            let moment = moments.entry(slice).or_default();
            moment.slice = slice;
            moment.extents += 1;
            if moment.layer_bytes.len() <= need.layer {
                moment.layer_bytes.resize(need.layer + 1, 0);
            }
            let bytes = &mut moment.layer_bytes[need.layer];
            *bytes = bytes.saturating_add(need.bytes);
        }
        Self {
            slice_ms,
            moments: moments.into_values().collect(),
        }
    }

    /// Returns the same in at most `slices` slices.
    #[must_use]
    pub(crate) fn coarser(&self, slices: u64) -> Self {
        let last = self.moments.last().map_or(0, |moment| moment.slice);
        let merged = (last / slices.max(1)).saturating_add(1);
        let mut coarser = Self {
            slice_ms: self.slice_ms.saturating_mul(merged),
            moments: Vec::new(),
        };
        for moment in &self.moments {
            let slice = moment.slice / merged;
            match coarser.moments.last_mut() {
                Some(same) if same.slice == slice => same.add(moment),
                _ => coarser.moments.push(Moment {
                    slice,
                    ..moment.clone()
                }),
            }
        }
        coarser
    }

    /// Returns when the last slice ends, in milliseconds.
    #[must_use]
    pub fn end_ms(&self) -> u64 {
        let last = self.moments.last().map(|moment| moment.slice);
        last.map_or(0, |slice| {
            slice.saturating_add(1).saturating_mul(self.slice_ms)
        })
    }
}

impl Moment {
    fn add(&mut self, other: &Self) {
        let layers = self.layer_bytes.len().max(other.layer_bytes.len());
        self.layer_bytes.resize(layers, 0);
        for (bytes, more) in self.layer_bytes.iter_mut().zip(&other.layer_bytes) {
            *bytes = bytes.saturating_add(*more);
        }
        self.extents += other.extents;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn need(at_ms: u64, layer: usize, bytes: u64) -> Need {
        Need {
            at_ms,
            layer,
            bytes,
        }
    }

    #[test]
    fn slices_hold_what_falls_into_them() {
        let needs = [
            need(10, 0, 5),
            need(250, 2, 7),
            need(19, 1, 1),
            need(12, 0, 3),
        ];
        let timeline = Timeline::of(&needs, 20);
        assert_eq!(timeline.slice_ms, 20);
        let moment = |slice, layer_bytes: &[u64], extents| Moment {
            slice,
            layer_bytes: layer_bytes.to_vec(),
            extents,
        };
        let wanted = [moment(0, &[8, 1], 3), moment(12, &[0, 0, 7], 1)];
        assert_eq!(timeline.moments, wanted);
        assert_eq!(timeline.end_ms(), 260);
    }

    #[test]
    fn long_boots_have_longer_slices_and_lose_nothing() {
        let needs: Vec<_> = (0..10_000).map(|n| need(n * 100, 0, 1)).collect();
        let timeline = Timeline::of(&needs, 100);
        assert!(timeline.moments.len() <= 240);
        let bytes = timeline.moments.iter().map(|moment| moment.layer_bytes[0]);
        assert_eq!(bytes.sum::<u64>(), 10_000);
        assert_eq!(timeline.slice_ms % 100, 0);
    }

    #[test]
    fn a_coarser_timeline_has_the_same_in_it() {
        let needs: Vec<_> = (0..100).map(|n| need(n * 7, 0, 1)).collect();
        let fine = Timeline::of(&needs, 7);
        let coarse = fine.coarser(10);
        assert!(coarse.moments.len() <= 10);
        assert_eq!(coarse.slice_ms, 70);
        assert_eq!(coarse.moments[3].layer_bytes, [10]);
        assert_eq!(fine.coarser(100), fine);
        assert_eq!(Timeline::default().coarser(0), Timeline::default());
    }

    #[test]
    fn times_may_be_anything() {
        assert_eq!(Timeline::of(&[], 100), Timeline::default());
        let far = Timeline::of(&[need(u64::MAX, 0, u64::MAX), need(u64::MAX, 0, 1)], 0);
        assert_eq!(far.moments.len(), 1);
        assert_eq!(far.moments[0].layer_bytes, [u64::MAX]);
        assert_eq!(far.end_ms(), u64::MAX);
    }
}
