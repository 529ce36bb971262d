//! One `docker run`, timed.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use super::engine::Docker;
use super::probe;
use super::program::Program;
use crate::process::{Guard, wait_for};

/// A boot from a disk with 50 requests a second and a busy neighbour takes minutes.
pub(super) const DEADLINE: Duration = Duration::from_secs(300);
/// What a container's first process is called until it becomes the image's program.
const RUNTIME: &str = "runc";

/// How long a container took, from the start of `docker run`.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Until the image's entry point was executed: what engine and runtime did by themselves.
    pub executed: Duration,
    /// Until the program answered.
    pub ready: Duration,
}

impl Times {
    /// Returns the program's part: from its first instruction until it answered.
    #[must_use]
    pub fn program(&self) -> Duration {
        self.ready.saturating_sub(self.executed)
    }
}

/// A container, removed with its owner.
#[derive(Debug)]
pub struct Running<'a> {
    docker: &'a Docker,
    name: String,
}

impl<'a> Running<'a> {
    /// Takes over the container of this name, which there may not be yet.
    #[must_use]
    pub fn adopt(docker: &'a Docker, name: &str) -> Self {
        Self {
            docker,
            name: name.to_owned(),
        }
    }
}

/// Runs a container called `name`, and returns it once its program answers. `home` is a directory
/// for what that needs.
///
/// # Errors
/// If the engine refuses, or the program does not answer.
pub fn launch<'a>(
    docker: &'a Docker,
    program: Program,
    name: &str,
    home: &Path,
) -> anyhow::Result<(Running<'a>, Times)> {
    let id_file = home.join(format!("{name}.id"));
    let _there_may_be_none = fs::remove_file(&id_file);
    let mut command = docker.client();
    command.args(["run", "--detach", "--network=none"]);
    // Readiness is asked for from outside; an engine that asks too would use the processor.
    command.args(["--no-healthcheck", "--name", name, "--cidfile"]);
    command.arg(&id_file).arg(program.image());
    command.stdout(Stdio::null());
    let running = Running::adopt(docker, name);
    let began = Instant::now();
    let mut client = Guard::spawn(&mut command)?;
    let pid = first_process(docker, &id_file, &mut client)?;
    let executed = wait_for("program in the container", DEADLINE, || {
        Ok((!is_runtime(pid)).then(Instant::now))
    })?;
    let ready = probe::ask(program, pid, DEADLINE).with_context(|| format!("starting {name}"))?;
    let status = client.wait_until(began + DEADLINE)?;
    ensure!(status.success(), "docker run failed ({status})");
    let times = Times {
        executed: executed.saturating_duration_since(began),
        ready: ready.saturating_duration_since(began),
    };
    Ok((running, times))
}

/// Waits for the container's first process.
pub(super) fn first_process(
    docker: &Docker,
    id_file: &Path,
    client: &mut Guard,
) -> anyhow::Result<u32> {
    let still_trying = |client: &mut Guard| -> anyhow::Result<()> {
        let failed = client.ended()?.filter(|status| !status.success());
        ensure!(failed.is_none(), "docker run failed: see dockerd's log");
        Ok(())
    };
    let id = wait_for("container", DEADLINE, || {
        still_trying(client)?;
        Ok(fs::read_to_string(id_file).ok().filter(|id| !id.is_empty()))
    })?;
    let pid_file = docker.pid_file(id.trim());
    wait_for("process of the container", DEADLINE, || {
        still_trying(client)?;
        let pid = fs::read_to_string(&pid_file).ok();
        Ok(pid.and_then(|pid| pid.trim().parse().ok()))
    })
}

/// Returns whether the process is not the image's program yet. One that is gone was, briefly.
pub(super) fn is_runtime(pid: u32) -> bool {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.starts_with(RUNTIME)
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        // Not `call`: that one gives up when interrupted, and this must be done all the more.
        let mut command = self.docker.client();
        command.args(["rm", "--force", "--volumes", &self.name]);
        match command.output() {
            Ok(done) if done.status.success() => {}
            Ok(done) => eprintln!("warning: {}", String::from_utf8_lossy(&done.stderr).trim()),
            Err(error) => eprintln!("warning: cannot run docker rm: {error}"),
        }
    }
}
