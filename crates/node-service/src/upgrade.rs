//! Replacing the program while mounts are served.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::assignment::Service;
use super::gap::millis;
use super::owner::Owner;
use super::workers::Worker;
use node_api::control::NodeError;
use node_api::view::Upgraded;

/// How long a program may take to say its version.
const TRIAL: Duration = Duration::from_secs(10);
/// How often it is looked whether it has.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// How long the mounts of one worker may take until the next one serves them.
const SUCCESSION: Duration = Duration::from_secs(60);

impl Owner {
    /// Has every worker replaced by one that runs `program`, one after the other, and then this
    /// process.
    ///
    /// # Errors
    /// As [`NodeControl::upgrade`](node_api::control::NodeControl::upgrade).
    pub(crate) fn upgrade_to(&self, program: &Path) -> Result<Upgraded, NodeError> {
        let Some(_one_at_a_time) = self.upgrading.try_lock() else {
            return Err(NodeError::Conflict(
                "another upgrade is under way".to_owned(),
            ));
        };
        let invalid = |why: String| NodeError::Invalid(format!("{}: {why}", program.display()));
        let program = program
            .canonicalize()
            .map_err(|error| invalid(error.to_string()))?;
        runs(&program).map_err(|error| invalid(format!("{error:#}")))?;
        self.pool
            .try_out(&program)
            .map_err(|error| invalid(format!("{error:#}")))?;
        let former = self.pool.all();
        self.pool.set_program(program.clone());
        let mut upgraded = Upgraded {
            program: program.clone(),
            workers: 0,
            longest_gap_ms: 0,
        };
        for worker in former {
            let keys = worker.keys();
            let (mounts, devices) = (self.with_keys(&keys), self.devices.with_keys(&keys));
            if mounts.iter().all(|mount| mount.kernel_resends()) {
                worker.replace();
            } else {
                worker.retire();
            }
            let succession = Succession {
                former: &worker,
                deadline: Instant::now() + SUCCESSION,
            };
            let mut gaps = Vec::new();
            for mount in mounts {
                let name = mount.visible.target().display().to_string();
                let service = || (!mount.assigned.is_over()).then(|| mount.assigned.service());
                succession.wait(&name, service)?;
                gaps.push(mount.assigned.last_gap());
            }
            for device in devices {
                let service = || (!device.assigned.is_over()).then(|| device.assigned.service());
                succession.wait(&device.spec.name, service)?;
                gaps.push(device.assigned.last_gap());
            }
            let longest = gaps.into_iter().flatten().max().map_or(0, millis);
            upgraded.longest_gap_ms = upgraded.longest_gap_ms.max(longest);
            upgraded.workers += 1;
        }
        self.keep.tell(|keeper| keeper.run_next(&program));
        self.keep.settle();
        self.restart();
        Ok(upgraded)
    }
}

/// What a worker that was replaced has served, on its way to the next one.
struct Succession<'a> {
    former: &'a Arc<Worker>,
    deadline: Instant,
}

impl Succession<'_> {
    /// Waits until another worker serves what is called `name`, by who `service` says does; none if it is over.
    fn wait(&self, name: &str, service: impl Fn() -> Option<Service>) -> Result<(), NodeError> {
        let waits = || match service() {
            Some(Service::By(now)) => Arc::ptr_eq(&now, self.former),
            Some(Service::Nobody | Service::Asked(_)) => true,
            Some(Service::GivenUp(_)) | None => false,
        };
        while waits() {
            if Instant::now() >= self.deadline {
                return Err(NodeError::Unavailable(format!(
                    "{name} is not served yet by the new program; the rest is left as it was"
                )));
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }
}

/// Makes sure that a program is a yolofs, and runs on this machine.
fn runs(program: &Path) -> anyhow::Result<()> {
    let mut child = Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("it cannot be run")?;
    let deadline = Instant::now() + TRIAL;
    // A version fits into the pipe: it can end before we read.
    while child.try_wait().context("waiting for it")?.is_none() {
        if Instant::now() >= deadline {
            let _killed = child.kill();
            let _ended = child.wait();
            anyhow::bail!("it printed no version within {} s", TRIAL.as_secs());
        }
        std::thread::sleep(LOOK_EVERY);
    }
    let said = child.wait_with_output().context("reading its version")?;
    let version = String::from_utf8_lossy(&said.stdout);
    if !said.status.success() || !version.starts_with("yolofs ") {
        anyhow::bail!(
            "it is not yolofs: as its version it printed {:?}",
            version.trim_end()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_yolofs_is_refused_in_words() {
        let said = |program: &str| format!("{:#}", runs(Path::new(program)).unwrap_err());
        assert!(said("/bin/true").contains("not yolofs"));
        assert!(said("/bin/false").contains("not yolofs"));
        assert!(said("/nonexistent").contains("cannot be run"));
    }
}
