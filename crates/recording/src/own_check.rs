//! An image's health check, run by us: for engines that do not.

use std::time::{Duration, Instant};

use engine::{Follow, Followed};
use oci::RunConfig;

/// How long to wait from the end of one check to the next, as with Docker's.
const CHECK_EVERY: Duration = Duration::from_millis(500);

/// The health check of a container.
#[derive(Debug)]
pub(crate) struct OwnCheck {
    command: Vec<String>,
    timeout: Duration,
    going_on: Option<(Follow, Instant)>,
    last_end: Option<Instant>,
    number: u32,
}

impl OwnCheck {
    /// Returns the health check of an image; without one it never succeeds.
    pub(crate) fn new(config: &RunConfig) -> Self {
        let check = config.healthcheck.clone().unwrap_or_default();
        Self {
            command: config.health_command().unwrap_or_default(),
            timeout: check.timeout(),
            going_on: None,
            last_end: None,
            number: 0,
        }
    }

    /// Looks after the check that is going on, or starts the next with `start` when it is time;
    /// `start` gets a number and the command. Returns whether one has succeeded.
    ///
    /// # Errors
    /// If a check cannot be started.
    pub(crate) fn poll(
        &mut self,
        start: impl FnOnce(u32, &[String]) -> anyhow::Result<Option<Follow>>,
    ) -> anyhow::Result<bool> {
        if let Some((follow, since)) = &mut self.going_on {
            // What it says is of no interest, and must not fill its pipes.
            while let Followed::Bytes(_) = follow.next(Duration::ZERO) {}
            let code = follow.exit_code()?;
            if code.is_none() && since.elapsed() < self.timeout {
                return Ok(false);
            }
            self.going_on = None; // kills one that takes too long
            self.last_end = Some(Instant::now());
            return Ok(code == Some(0));
        }
        let due = self.last_end.is_none_or(|end| end.elapsed() >= CHECK_EVERY);
        if due && !self.command.is_empty() {
            self.number += 1;
            let started = start(self.number, &self.command)?;
            self.going_on = started.map(|follow| (follow, Instant::now()));
        }
        Ok(false)
    }
}
