//! What the next boot will need, and in which order.

use crate::{BlockRange, FileId, Touch};

/// A run of blocks of one file that boots need at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The file.
    pub file: FileId,
    /// The blocks; never empty.
    pub range: BlockRange,
    /// When it is first needed: bins of [`ReplayPlan::bin_ms`] since the start of the boot.
    pub bin: u32,
    /// How many of the recorded runs needed it: from 1 to [`ReplayPlan::runs`].
    pub seen: u16,
}

/// Everything that recorded boots of one source touched, in the order in which to bring it back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplayPlan {
    /// How many recordings it was merged from.
    pub runs: u16,
    /// Milliseconds in a time bin.
    pub bin_ms: u32,
    /// Content, in replay order; no block appears twice.
    pub extents: Vec<Extent>,
    /// Metadata, in the order of first use.
    pub touches: Vec<Touch>,
}

impl ReplayPlan {
    /// Returns the number of blocks of content, saturating: extents are as long
    /// as the files of a tree, whose sizes may be anything.
    #[must_use]
    pub fn block_count(&self) -> u64 {
        let lens = self.extents.iter().map(|extent| extent.range.len());
        lens.fold(0, u64::saturating_add)
    }
}
