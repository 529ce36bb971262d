//! What kind of worker a mount has.

use node_api::spec::MountSpec;

/// What kind of worker a mount has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Company {
    /// One that serves others, too.
    Shared,
    /// One of its own, because it crashed others.
    Alone,
    /// One of its own, which may ask a block service: more than others may.
    OnNetwork,
}

impl Company {
    /// Returns what kind of worker a mount is to have, which crashed others or did not.
    pub const fn of(spec: &MountSpec, crashed_others: bool) -> Self {
        match (&spec.nic, crashed_others) {
            (Some(_), _) => Self::OnNetwork,
            (None, true) => Self::Alone,
            (None, false) => Self::Shared,
        }
    }

    /// Whether others are served by it, too.
    #[must_use]
    pub const fn is_shared(self) -> bool {
        matches!(self, Self::Shared)
    }
}
