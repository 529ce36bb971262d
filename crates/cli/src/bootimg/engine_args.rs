//! Where the engines are that run container images.

use std::path::PathBuf;

use engine::containerd::{DEFAULT_ADDRESS, DEFAULT_SNAPSHOTTER};
use recording::image_recording::Engines;

#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Images")]
pub(super) struct EngineArgs {
    /// The Docker daemon to use [default: the docker client's choice]
    #[arg(long, value_name = "HOST", env = "DOCKER_HOST")]
    pub(super) docker_host: Option<String>,
    /// Where containerd listens
    #[arg(
        long,
        value_name = "SOCKET",
        env = "CONTAINERD_ADDRESS",
        default_value = DEFAULT_ADDRESS
    )]
    containerd: PathBuf,
    /// Containerd's snapshotter that has the image unpacked
    #[arg(
        long,
        value_name = "NAME",
        env = "CONTAINERD_SNAPSHOTTER",
        default_value = DEFAULT_SNAPSHOTTER
    )]
    snapshotter: String,
    /// Where layouts and archives are unpacked for the recording
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub(super) scratch: PathBuf,
}

impl EngineArgs {
    pub(super) fn engines(&self) -> Engines {
        Engines {
            docker_host: self.docker_host.clone(),
            containerd: self.containerd.clone(),
            snapshotter: self.snapshotter.clone(),
        }
    }
}
