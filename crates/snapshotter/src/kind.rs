//! Kinds of snapshots.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What may be done with a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Writable: may become committed.
    Active,
    /// Read only, for a while.
    View,
    /// A layer: read-only, and can be a parent.
    Committed,
}

impl Kind {
    /// Returns the name that containerd's filters use for it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::View => "view",
            Self::Committed => "committed",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}
