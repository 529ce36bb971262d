//! What `status` shows of first boots.

use serde::{Deserialize, Serialize};

/// How many boots that are over are remembered.
pub(super) const REMEMBERED: usize = 32;

/// A first boot, as it is now or was at its end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FirstBootStatus {
    /// The container's snapshot: `namespace/number/name`.
    pub container: String,
    /// What its end is known by.
    pub until: String,
    /// Its result.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// What became of a recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum Outcome {
    /// It is being recorded.
    Recording,
    /// It is stored.
    Recorded {
        /// The image's reference.
        image: String,
    },
    /// It is not stored.
    Failed {
        /// The reason.
        why: String,
    },
}
