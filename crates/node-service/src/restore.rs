//! Making the desired mounts again: after a reboot, and after whatever kept a mount from being made.

use std::sync::Weak;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::few::few_at_a_time;
use super::owner::Owner;
use super::place;
use host::caught::{caught, caught_round};
use node_api::control::NodeError;
use node_api::spec::MountSpec;

/// So many are made at a time: each scans its source.
const AT_A_TIME: usize = 4;
/// The pause before the second attempt; it doubles with each further one.
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

impl Owner {
    /// Makes the desired mounts that are missing, a few at a time. One that cannot be made does not delay
    /// the others.
    pub(crate) fn restore(&self) {
        match self.records.desired_mounts() {
            Ok(found) => {
                let absent = found
                    .records
                    .into_iter()
                    .map(|(id, desired)| (id, desired.spec))
                    .filter(|(id, _)| self.visible_at(id).is_none());
                let absent: Vec<_> = absent.collect();
                for (id, spec) in &absent {
                    self.missing.expect(id, spec);
                }
                self.restore_these(absent);
            }
            Err(error) => log::error!("cannot restore any mount: {error:#}"),
        }
    }

    fn restore_these(&self, desired_mounts: Vec<(String, MountSpec)>) {
        let name = |(id, _): &(String, MountSpec)| id.clone();
        few_at_a_time(AT_A_TIME, desired_mounts, name, |(id, spec)| {
            self.restore_one(&id, spec);
        });
    }

    fn restore_one(&self, id: &str, spec: MountSpec) {
        let known = self.missing.has_failed(id);
        let make = || {
            let place = place::check(&spec)?;
            let lock = self.mount_locks.take(&place)?;
            // It may have been unmounted by name since.
            if !self.records.is_desired(id) {
                return Ok(());
            }
            self.make_in_turn(&place, &spec, &lock).map(drop)
        };
        // What panics is tried again as what fails is.
        let made = caught(make).unwrap_or_else(|panicked| Err(NodeError::Failed(panicked.into())));
        let Err(error) = made else {
            self.missing.remove(id);
            return;
        };
        let why = match error {
            NodeError::Failed(error) => format!("{error:#}"),
            error => error.to_string(),
        };
        if !known {
            log::error!("cannot restore {}: {why}", spec.mountpoint.display());
        }
        self.missing.fail(id, spec, why);
    }
}

/// Retries the mounts that could not be restored, on a thread of its own.
///
/// # Errors
/// If no thread can be started.
pub(crate) fn start(owner: Weak<Owner>) -> anyhow::Result<()> {
    let retry = move || {
        let mut pause = PAUSE;
        while let Some(owner) = owner.upgrade() {
            owner.missing.wait_for_failed();
            let tried = Instant::now();
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
            // Only what is still desired: it may have been unmounted by name meanwhile.
            caught_round("restoring mounts", || {
                owner.restore_these(owner.missing.failed());
            });
            if owner.missing.failed().is_empty() {
                pause = PAUSE;
                log::info!("all mounts are restored, after {:?}", tried.elapsed());
            }
        }
    };
    std::thread::Builder::new()
        .name("restore".to_owned())
        .spawn(retry)
        .map(drop)
        .context("starting the thread that restores mounts")
}
