//! The one budget of memory: for Zygotes and for the sandboxes of handlers that wait.

use std::time::Duration;

/// What may be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Bytes of memory that Zygotes and frozen sandboxes of handlers take for themselves, together.
    pub memory_bytes: u64,
    /// Bytes of installed packages that no handler needs; `None` does not bound them.
    pub package_bytes: Option<u64>,
    /// How long a sandbox waits before it is frozen. Until then its next request finds it running.
    pub freeze_after: Duration,
    /// How long a sandbox waits at all.
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
