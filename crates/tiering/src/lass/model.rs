//! The model: what a boundary between disk and fast memory costs.
//!
//! The equations are numbered as in the paper (Gu et al., N-Docker). Its symbols are these:
//!
//! | there | here |
//! | --- | --- |
//! | N layers, LDL is the K-th, BL the M-th, from 1 | [`Stack`] with its `last`, [`Boundary`], from 0 |
//! | S_LBL, S_LDL, S_LAL | [`Stack::below_last`], [`Stack::last`], [`Stack::above_last`] |
//! | S_d, S_bl, S_n | [`Stack::under`], [`Stack::at`], [`Stack::over`] a boundary |
//! | α, β | the reciprocals of [`Speeds::disk`] and [`Speeds::fast`] |
//! | T_D, T_Disk, T_NVM, T_Total | [`Outcome::download`], [`Outcome::disk`], [`Outcome::fast`], [`Outcome::total`] |
//! | U_Total | [`Outcome::fast_bytes`] |

use std::time::Duration;

use crate::Rate;

/// The sizes of an image's layers, unpacked, the lowest first, and which one is downloaded last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stack {
    layers: Vec<u64>,
    last: usize,
}

/// The lowest layer that goes to fast memory, counted from 0; those above it go there, too.
///
/// 0 is everything on fast memory; the number of layers, or more, is everything on the disk,
/// which the paper leaves out of its model and compares with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Boundary(pub usize);

/// How long the download takes, and how fast what was downloaded can be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speeds {
    /// Duration of the download, wherever layers are stored.
    pub download: Duration,
    /// Rate of writing to the disk.
    pub disk: Rate,
    /// Rate of writing to fast memory.
    pub fast: Rate,
}

/// The cost of a boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Duration of the download.
    pub download: Duration,
    /// Time after the download in which layers are stored on the disk.
    pub disk: Duration,
    /// Time after the download in which layers are stored in fast memory.
    pub fast: Duration,
    /// Bytes taken in fast memory.
    pub fast_bytes: u64,
}

/// The paper's three kinds of boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// Strategy 1: the boundary is below the last downloading layer. As fast as the third, and
    /// needs more space.
    BelowLast,
    /// Strategy 2: it is above. Needs less space than the third, and is slower: the layers between
    /// the two are written to the disk after the download.
    AboveLast,
    /// Strategy 3, and the best: it is the last downloading layer.
    Last,
}

impl Outcome {
    /// Returns the time of the deployment (equation 1).
    #[must_use]
    pub fn total(&self) -> Duration {
        self.download.saturating_add(self.storing())
    }

    /// Returns the time from the end of the download to the end of the deployment.
    #[must_use]
    pub fn storing(&self) -> Duration {
        self.disk.saturating_add(self.fast)
    }
}

impl Stack {
    /// Returns the stack of `layers` of which the one at `last` is downloaded last; `None` if
    /// there is no such layer, or the sum of the sizes overflows.
    #[must_use]
    pub fn new(layers: Vec<u64>, last: usize) -> Option<Self> {
        let sum = layers
            .iter()
            .try_fold(0u64, |sum, layer| sum.checked_add(*layer));
        (last < layers.len() && sum.is_some()).then_some(Self { layers, last })
    }

    /// Returns the number of layers.
    #[must_use]
    pub fn layer_count(&self) -> usize {
        self.layers.len()
    }

    /// Returns the bytes below the last downloading layer.
    #[must_use]
    pub fn below_last(&self) -> u64 {
        self.under(Boundary(self.last))
    }

    /// Returns the bytes of the last downloading layer.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.at(Boundary(self.last))
    }

    /// Returns the bytes above the last downloading layer.
    #[must_use]
    pub fn above_last(&self) -> u64 {
        self.over(Boundary(self.last))
    }

    /// Returns the bytes below a boundary.
    #[must_use]
    pub fn under(&self, boundary: Boundary) -> u64 {
        self.layers.iter().take(boundary.0).sum()
    }

    /// Returns the bytes of the layer that is the boundary.
    #[must_use]
    pub fn at(&self, boundary: Boundary) -> u64 {
        self.layers.get(boundary.0).copied().unwrap_or(0)
    }

    /// Returns the bytes above the layer that is the boundary.
    #[must_use]
    pub fn over(&self, boundary: Boundary) -> u64 {
        self.layers.iter().skip(boundary.0.saturating_add(1)).sum()
    }

    /// Returns which kind of boundary one is.
    #[must_use]
    pub fn strategy(&self, boundary: Boundary) -> Strategy {
        match boundary.0.cmp(&self.last) {
            std::cmp::Ordering::Less => Strategy::BelowLast,
            std::cmp::Ordering::Equal => Strategy::Last,
            std::cmp::Ordering::Greater => Strategy::AboveLast,
        }
    }

    /// Returns the cost of a boundary (equations 2, 3 and 5; with [`Outcome::total`] equation 4,
    /// and for the three strategies equations 6, 7 and 8).
    ///
    /// The model assumes that layers below the last downloading one are stored when the download ends.
    /// That holds if the disk writes faster than the network brings.
    #[must_use]
    pub fn outcome(&self, boundary: Boundary, speeds: &Speeds) -> Outcome {
        let after_download = self.last() + self.above_last();
        let in_fast = self.at(boundary) + self.over(boundary);
        let (to_disk, to_fast) = match self.strategy(boundary) {
            Strategy::AboveLast => (after_download - in_fast, in_fast),
            Strategy::BelowLast | Strategy::Last => (0, after_download),
        };
        Outcome {
            download: speeds.download,
            disk: speeds.disk.time_for(to_disk),
            fast: speeds.fast.time_for(to_fast),
            fast_bytes: in_fast,
        }
    }

    /// Returns the fastest boundary, and of these the one that needs the least space: all are
    /// tried. It is the last downloading layer where fast memory is faster than the disk.
    #[must_use]
    pub fn best(&self, speeds: &Speeds) -> Boundary {
        let cost = |boundary: &Boundary| {
            let outcome = self.outcome(*boundary, speeds);
            (outcome.total(), outcome.fast_bytes)
        };
        let boundaries = (0..=self.layers.len()).map(Boundary);
        boundaries.min_by_key(cost).unwrap_or(Boundary(self.last))
    }
}
