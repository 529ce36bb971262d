//! Images that yolofs serves: `yolofs docker attach`, as a user calls it.

use std::time::Duration;

use anyhow::Context as _;
use serde::Deserialize;

use super::engine::Docker;
use super::program::Program;
use crate::process::run_ok;
use crate::programs::{Programs, Served, json};

/// Attaching reads boot images from the store and pushes them into the page cache.
const DEADLINE: Duration = Duration::from_secs(120);

/// Images whose layers are mounted in place, until they are detached by dropping this.
#[derive(Debug)]
pub struct Attached<'a> {
    programs: &'a Programs,
    docker: &'a Docker,
}

/// What of `yolofs docker status --json` the rig looks at.
#[derive(Debug, Deserialize)]
struct Status {
    served: Served,
}

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
        let mut command = programs.yolofs();
        command.args(["docker", "attach", "--wait-prewarm"]);
        command.env("DOCKER_HOST", docker.address());
        let mut names: Vec<_> = images.iter().map(|program| program.image()).collect();
        names.sort_unstable();
        names.dedup();
        command.args(names);
        run_ok(command, DEADLINE).context("attaching images")?;
        Ok(Self { programs, docker })
    }

    /// Returns what its daemon was asked so far.
    ///
    /// # Errors
    /// If it does not say.
    pub fn served(&self) -> anyhow::Result<Served> {
        let mut command = self.programs.yolofs();
        command.args(["docker", "status"]);
        command.env("DOCKER_HOST", self.docker.address());
        Ok(json::<Status>(command)?.served)
    }
}

impl Drop for Attached<'_> {
    fn drop(&mut self) {
        let mut command = self.programs.yolofs();
        command.args(["docker", "detach", "--all"]);
        command.env("DOCKER_HOST", self.docker.address());
        // Not `run_ok`: that one gives up when interrupted, and this must be done all the more.
        match command.output() {
            Ok(done) if done.status.success() => {}
            Ok(done) => eprintln!("warning: {}", String::from_utf8_lossy(&done.stderr).trim()),
            Err(error) => eprintln!("warning: cannot run yolofs docker detach: {error}"),
        }
    }
}
