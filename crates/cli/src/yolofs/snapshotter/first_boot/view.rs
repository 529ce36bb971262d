//! What `status` shows of first boots.

use serde::{Deserialize, Serialize};

/// How many boots that are over are remembered.
pub(super) const REMEMBERED: usize = 32;

/// A first boot, as it is now or was at its end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in super::super) struct FirstBootStatus {
    /// The container's snapshot: `namespace/number/name`.
    pub(in super::super) container: String,
    /// What its end is known by.
    pub(in super::super) until: String,
    #[serde(flatten)]
    pub(in super::super) outcome: Outcome,
}

/// What became of a recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub(in super::super) enum Outcome {
    /// It goes on.
    Recording,
    /// It is kept.
    Recorded {
        /// The image's reference.
        image: String,
    },
    /// It is not kept.
    Failed {
        /// Why.
        why: String,
    },
}
