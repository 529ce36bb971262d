//! The flags that say which Docker.

use std::path::PathBuf;

use docker_service::engine::DockerEngine;

/// The flags that say which Docker.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Docker")]
pub(super) struct EngineArgs {
    /// Docker's socket, such as unix:///run/docker.sock [default: the client's]
    #[arg(long, value_name = "HOST", env = "DOCKER_HOST", global = true)]
    docker_host: Option<String>,
    /// Docker's data directory; with it, Docker is not asked and need not run
    #[arg(long, value_name = "DIR", global = true)]
    data_root: Option<PathBuf>,
    /// The socket of the containerd that has Docker's images [default: what Docker says]
    #[arg(long, value_name = "SOCKET", global = true)]
    containerd: Option<PathBuf>,
}

impl EngineArgs {
    /// Returns what they say.
    pub(super) fn engine(&self) -> DockerEngine {
        DockerEngine {
            host: self.docker_host.clone(),
            data_root: self.data_root.clone(),
            containerd: self.containerd.clone(),
        }
    }
}
