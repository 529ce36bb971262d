//! The one budget of memory: for Zygotes and for the sandboxes of handlers that wait.

use std::time::Duration;

/// The limits of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Bytes of memory that Zygotes and frozen sandboxes of handlers alone use, together.
    pub memory_bytes: u64,
    /// Bytes of installed packages that no handler needs; `None` for no limit.
    pub package_bytes: Option<u64>,
    /// How long an idle sandbox runs before it is frozen.
    pub freeze_after: Duration,
    /// How long a sandbox stays idle before it is ended.
    pub end_after: Duration,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            memory_bytes: 1 << 30,
            package_bytes: None,
            freeze_after: Duration::from_millis(500),
            end_after: Duration::from_mins(30),
        }
    }
}
