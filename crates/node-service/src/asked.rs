//! The result of asking a worker to serve a mount or a device.

use super::wire::Fault;

/// The result of asking one worker.
pub(crate) enum Asked {
    /// The worker serves it.
    Served,
    /// The worker died or hangs; the handler of its death takes care of it.
    Lost,
    /// The worker refused.
    Refused(Fault, String),
    /// No worker could be found or started.
    NoWorker(anyhow::Error),
    /// It was unmounted or detached meanwhile.
    Over,
}
