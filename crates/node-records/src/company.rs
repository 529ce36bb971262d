//! What kind of worker a mount has.

use node_api::spec::MountSpec;

/// What kind of worker a mount has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Company {
    /// A worker that serves other mounts, too.
    Shared,
    /// A worker for this mount only, because it crashed others.
    Alone,
    /// A worker for this mount only, which may connect to a block service.
    OnNetwork,
}

impl Company {
    /// Returns which kind of worker a mount needs.
    pub const fn of(spec: &MountSpec, crashed_others: bool) -> Self {
        match (&spec.nic, crashed_others) {
            (Some(_), _) => Self::OnNetwork,
            (None, true) => Self::Alone,
            (None, false) => Self::Shared,
        }
    }

    /// Returns whether the worker serves other mounts, too.
    #[must_use]
    pub const fn is_shared(self) -> bool {
        matches!(self, Self::Shared)
    }
}
