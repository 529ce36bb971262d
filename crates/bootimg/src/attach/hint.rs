//! Using an image that was recorded elsewhere for a copy of its source.

use blocks::{ReplayPlan, Tree};

use super::matching::{Matching, Sameness};
use super::{report, translate};
use crate::{DroppedFile, FirstOf, Image};

/// A plan for a copy of the source that an image was recorded from, such as the same container
/// layer on another node.
///
/// It names files and ranges and nothing else: no byte and no attribute of the image is part of
/// it. So the image need not be trusted: write a boot image with this plan, from the copy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hint {
    /// What boots need, in the file ids of the copy.
    pub plan: ReplayPlan,
    /// Files that the copy does not have, or has with another length.
    pub dropped: FirstOf<DroppedFile>,
}

impl Image {
    /// Returns the image's plan for a copy of its source: files are the same if path, kind
    /// and length are.
    #[must_use]
    pub fn hint_for(&self, copy: &Tree) -> Hint {
        let matching = Matching::of(self.tree(), copy, Sameness::Shape);
        Hint {
            plan: translate(self.plan(), &matching),
            dropped: report(self, &matching).dropped,
        }
    }
}
