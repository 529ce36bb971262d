//! Containers of a recorded image, run by Docker.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use engine::docker::{Health, RunRequest};
use engine::{Docker, Follow, Followed, LocalImage};

use crate::container_engine::{Engine, Running, Start};
use crate::undo::{Guard, LABEL, Undo};
use crate::until::{Checks, Until};
use host::run_dir::process_start;

/// How often Docker runs a health check that we wait for. Each run is a process in the container,
/// so more would slow down what is recorded.
const CHECK_EVERY: &str = "500ms";

/// An image in Docker's store.
#[derive(Debug)]
pub(crate) struct DockerEngine {
    docker: Docker,
    host: Option<String>,
    image: LocalImage,
    label: String,
}

impl DockerEngine {
    /// Finds an image.
    ///
    /// # Errors
    /// If Docker has no such image, or keeps its layers where we cannot mount over them.
    pub(crate) fn open(host: Option<&str>, reference: &str) -> anyhow::Result<Self> {
        let host = host.map(str::to_owned);
        let docker = Docker::new(host.clone());
        let info = docker.info()?;
        ensure!(
            !info.is_rootless,
            "this Docker is rootless: its layers are in a mount namespace of its own, where \
             recorders cannot be mounted; record the image with another engine, or from oci:DIR"
        );
        let image = docker.image(reference)?;
        let pid = std::process::id();
        Ok(Self {
            docker,
            host,
            image,
            label: format!("{pid}-{}", process_start(pid)?),
        })
    }
}

impl Engine for DockerEngine {
    fn image(&self) -> &LocalImage {
        &self.image
    }

    fn check_is_there(&self) -> anyhow::Result<()> {
        let id = self.image.image.to_string();
        ensure!(
            !self.docker.described(&[id])?.is_empty(),
            "the image was deleted while it was recorded"
        );
        Ok(())
    }

    fn promise(&self, guard: &mut Guard, _runs: u16) -> anyhow::Result<()> {
        guard.promise(Undo::DockerContainers {
            host: self.host.clone(),
            label: self.label.clone(),
        })
    }

    fn start(&self, start: &Start<'_>) -> anyhow::Result<Box<dyn Running>> {
        let mut options = Vec::new();
        if matches!(start.until, Until::Healthy(Checks::Often)) {
            // Before the user's own options, which win.
            options.extend(["--health-interval", CHECK_EVERY].map(str::to_owned));
        }
        options.extend_from_slice(start.options);
        let started = Instant::now();
        let id = self.docker.run(&RunRequest {
            image: self.image.image.to_string(),
            labels: BTreeMap::from([(LABEL.to_owned(), self.label.clone())]),
            options,
            command: start.command.to_vec(),
        })?;
        let output = self.docker.logs(&id)?;
        Ok(Box::new(DockerContainer {
            docker: self.docker.clone(),
            id,
            started,
            output,
        }))
    }
}

#[derive(Debug)]
struct DockerContainer {
    docker: Docker,
    id: String,
    started: Instant,
    output: Follow,
}

impl DockerContainer {
    fn look(&self) -> anyhow::Result<engine::docker::Container> {
        self.docker
            .container(&self.id)?
            .context("the container was removed during the recording")
    }
}

impl Running for DockerContainer {
    fn started(&self) -> Instant {
        self.started
    }

    fn output(&mut self, patience: Duration) -> Followed {
        self.output.next(patience)
    }

    fn exit_code(&mut self) -> anyhow::Result<Option<i64>> {
        let seen = self.look()?;
        Ok((!seen.is_running).then_some(seen.exit_code))
    }

    fn is_healthy(&mut self) -> anyhow::Result<bool> {
        Ok(self.look()?.health == Health::Healthy)
    }

    fn pid(&mut self) -> anyhow::Result<Option<u32>> {
        Ok(Some(self.look()?.pid).filter(|pid| *pid != 0))
    }

    fn kill(&mut self) -> anyhow::Result<()> {
        // Its work is done: there is nothing to wait for.
        Ok(self.docker.stop(&self.id, Duration::ZERO)?)
    }
}
