//! Images that yolofs records and serves, as a user has it do so.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde::Deserialize;
use serde_json::Value;

use super::engine::Docker;
use super::program::Program;
use crate::process::{run_heard, run_ok, wait_for};
use crate::programs::{self, Programs, Served, json};

/// Attaching reads boot images from the store and pushes them into the page cache.
const DEADLINE: Duration = Duration::from_secs(120);

/// A program does not do the same each time; what one run left out, another may have read.
const RUNS: &str = "3";

/// Images whose layers are mounted in place, until they are detached by dropping this.
#[derive(Debug)]
pub struct Attached<'a> {
    programs: &'a Programs,
    docker: &'a Docker,
}

/// What of `yolofs docker status --json` the rig looks at.
#[derive(Debug, Deserialize)]
struct Status {
    pid: Option<u32>,
    layers: Vec<Layer>,
}

#[derive(Debug, Deserialize)]
struct Layer {
    boot: Boot,
    served: Served,
}

#[derive(Debug, Deserialize)]
struct Boot {
    /// `waiting`, `running`, `done`, or why not.
    prewarm: String,
}

/// Records the boot of an image, and returns what `bootimg record` says of it.
///
/// # Errors
/// If the container does not become ready, or the recording fails.
pub fn record(programs: &Programs, docker: &Docker, program: Program) -> anyhow::Result<Value> {
    let mut command = recorder(programs, docker, program);
    command.args(["--runs", RUNS]);
    json(command).with_context(|| format!("recording the boot of {}", program.image()))
}

/// As [`record`], once, and until the program answers a client: what the rig waits for, too.
/// `reached` is called when a part of the start is over, with its name: the last of [`PARTS`] ends
/// when the program answers, and what comes after it is no part of the start.
///
/// # Errors
/// If the container does not become ready, or the recording fails, and those of `reached`.
pub fn record_until_answer(
    programs: &Programs,
    docker: &Docker,
    program: Program,
    reached: &mut dyn FnMut(&'static str) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut command = recorder(programs, docker, program);
    command.args([
        "--run-args",
        "--no-healthcheck",
        "--until",
        &program.until(),
    ]);
    command.env("YOLOFS_LOG", "warn,recording=debug");
    let recording = || format!("recording the boot of {}", program.image());
    let mut parts = PARTS.into_iter().peekable();
    let mut hear = |said: &str| {
        while let Some((part, _)) = parts.next_if(|(_, end)| said.contains(end)) {
            reached(part)?;
        }
        Ok(())
    };
    let recorded = run_heard(command, programs::DEADLINE, &mut hear).with_context(recording)?;
    let (status, errors) = (recorded.status, recorded.errors.trim());
    ensure!(
        status.success() && parts.peek().is_none(),
        "{} failed ({status}): {errors}",
        recording()
    );
    Ok(())
}

fn recorder(programs: &Programs, docker: &Docker, program: Program) -> Command {
    let mut command = programs.bootimg();
    command
        .arg("record")
        .arg(format!("docker://{}", program.image()));
    command.args(["--docker-host", &docker.address()]);
    command.args(["--run-args", "--network=none"]);
    command.env("PATH", docker.search_path());
    command
}

/// The parts of a recorded start, each with what `bootimg record` says at its end.
pub const PARTS: [(&str, &str); 4] = [
    ("bootimg record, until it knows the image", "the image is "),
    ("recorders are mounted", "recorders are mounted"),
    ("docker run", "the container is started"),
    ("until the program answers", "ready after "),
];

impl<'a> Attached<'a> {
    /// Attaches the images of these programs, and returns when they are prewarmed.
    ///
    /// # Errors
    /// If they have no boot images, or yolofs refuses.
    pub fn attach(
        programs: &'a Programs,
        docker: &'a Docker,
        images: &[Program],
    ) -> anyhow::Result<Self> {
        let attached = Self { programs, docker };
        let names: BTreeSet<_> = images.iter().map(|program| program.image()).collect();
        let mut command = attached.command("attach");
        command.args(names);
        run_ok(command, DEADLINE).context("attaching images")?;
        wait_for("prewarmed images", DEADLINE, || {
            let status = attached.status()?;
            ensure!(!status.layers.is_empty(), "nothing was attached");
            let states = status.layers.iter().map(|layer| &*layer.boot.prewarm);
            Ok(states
                .into_iter()
                .all(|state| state == "done")
                .then_some(()))
        })?;
        Ok(attached)
    }

    /// Returns what the mounts were asked so far, all together.
    ///
    /// # Errors
    /// If nobody says.
    pub fn served(&self) -> anyhow::Result<Served> {
        let mut all = Served::default();
        for layer in self.status()?.layers {
            all.fallthrough_bytes += layer.served.fallthrough_bytes;
            for (kind, count) in layer.served.requests {
                *all.requests.entry(kind).or_default() += count;
            }
        }
        Ok(all)
    }

    fn status(&self) -> anyhow::Result<Status> {
        json(self.command("status"))
    }

    fn command(&self, name: &str) -> Command {
        let mut command = self.programs.yolofs();
        command.args(["docker", name]);
        command.args(["--docker-host", &self.docker.address()]);
        command.env("PATH", self.docker.search_path());
        command
    }
}

impl Drop for Attached<'_> {
    fn drop(&mut self) {
        let pid = self.status().ok().and_then(|status| status.pid);
        // Not `run_ok`: that one gives up when interrupted, and this must be done all the more.
        match self.command("detach").arg("--all").output() {
            Ok(done) if done.status.success() => {}
            Ok(done) => eprintln!("warning: {}", String::from_utf8_lossy(&done.stderr).trim()),
            Err(error) => eprintln!("warning: cannot run yolofs docker detach: {error}"),
        }
        // The next sample must not share the machine with a daemon that is still going.
        let gone = |pid| !std::path::Path::new(&format!("/proc/{pid}")).exists();
        if let Some(pid) = pid {
            let _reported_above = wait_for("end of the daemon", Duration::from_secs(10), || {
                Ok(gone(pid).then_some(()))
            });
        }
    }
}
