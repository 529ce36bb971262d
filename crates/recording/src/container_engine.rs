//! The interface to an engine that has an image and runs its containers while they are recorded.

use std::time::{Duration, Instant};

use engine::{Followed, LocalImage};

use crate::undo::Guard;
use crate::until::Until;

/// The engine that has the recorded image and runs it.
pub(crate) trait Engine {
    /// Returns the image.
    fn image(&self) -> &LocalImage;

    /// Checks that the image is still there: another user of the engine may have removed it.
    ///
    /// # Errors
    /// If it is not.
    fn check_is_there(&self) -> anyhow::Result<()>;

    /// Has the guard remove the containers that are to be started. They stay until all recordings are
    /// stored: while one exists, the engine keeps the layers.
    ///
    /// # Errors
    /// If the guard has ended.
    fn promise(&self, guard: &mut Guard, runs: u16) -> anyhow::Result<()>;

    /// Starts a container.
    ///
    /// # Errors
    /// If the engine does not start it.
    fn start(&self, start: &Start<'_>) -> anyhow::Result<Box<dyn Running>>;
}

/// How a container is started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start<'a> {
    /// The engine's own options.
    pub(crate) options: &'a [String],
    /// The command, if it is not the image's.
    pub(crate) command: &'a [String],
    /// The condition to wait for.
    pub(crate) until: &'a Until,
}

/// A container that was started to be recorded.
pub(crate) trait Running {
    /// Returns when its start was requested.
    fn started(&self) -> Instant;

    /// Waits for output, at most for `patience`.
    fn output(&mut self, patience: Duration) -> Followed;

    /// Returns the exit code of the first process, if it has ended.
    ///
    /// # Errors
    /// If the engine does not respond.
    fn exit_code(&mut self) -> anyhow::Result<Option<i64>>;

    /// Returns whether its health check succeeds.
    ///
    /// # Errors
    /// If the engine does not respond.
    fn is_healthy(&mut self) -> anyhow::Result<bool>;

    /// Returns the first process, if it runs: for its network namespace.
    ///
    /// # Errors
    /// If the engine does not respond.
    fn pid(&mut self) -> anyhow::Result<Option<u32>>;

    /// Ends it, and waits until its root is unmounted.
    ///
    /// # Errors
    /// If the engine does not do it.
    fn kill(&mut self) -> anyhow::Result<()>;
}
