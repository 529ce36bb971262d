//! One limit for the indexes of all layers of an image, which are in memory together.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::error::{LsmtError, Result};

/// Segments that the sealed layers of one image have together, at most: 512 MiB of indexes. The merged index has at most
/// as many again. The paper's largest image of 1 664 layers has 4 500.
pub const IMAGE_SEGMENTS_MAX: u64 = 32 << 20;

/// How many segments the layers that are opened for one image may still have. Layers are opened by several threads at
/// once, so each takes its share before it reads its index.
#[derive(Debug)]
pub struct SegmentBudget {
    left: AtomicU64,
    limit: u64,
}

impl Default for SegmentBudget {
    /// Returns that of an image: [`IMAGE_SEGMENTS_MAX`].
    fn default() -> Self {
        Self::of(IMAGE_SEGMENTS_MAX)
    }
}

impl SegmentBudget {
    /// Returns one of so many segments.
    pub const fn of(limit: u64) -> Self {
        Self {
            left: AtomicU64::new(limit),
            limit,
        }
    }

    /// Takes segments, before there is memory for them.
    ///
    /// # Errors
    ///
    /// Fails if there are not as many left; then none is taken.
    pub fn take(&self, segments: u64) -> Result<()> {
        let taken = self
            .left
            .try_update(Relaxed, Relaxed, |left| left.checked_sub(segments));
        match taken {
            Ok(_) => Ok(()),
            Err(left) => Err(LsmtError::ImageIndex {
                found: (self.limit - left).saturating_add(segments),
                limit: self.limit,
            }),
        }
    }

    /// Gives back what was taken for a layer that could not be opened.
    pub(crate) fn give_back(&self, segments: u64) {
        self.left.fetch_add(segments, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_takes_nothing() {
        let budget = SegmentBudget::of(10);
        budget.take(6).unwrap();
        let refused = budget.take(5).unwrap_err();
        assert!(
            matches!(
                refused,
                LsmtError::ImageIndex {
                    found: 11,
                    limit: 10
                }
            ),
            "{refused}"
        );
        budget.take(u64::MAX).unwrap_err();
        budget.take(4).unwrap();
        budget.take(1).unwrap_err();
        budget.give_back(1);
        budget.take(1).unwrap();
    }
}
