//! Where the engines are that run container images.

use std::fmt::Display;
use std::path::PathBuf;

use anyhow::ensure;
use engine::ImageName;
use engine::containerd::{DEFAULT_ADDRESS, DEFAULT_SNAPSHOTTER};
use recording::image_recording::Engines;

/// Kept over a reboot, and on a disk: a root file system may be larger than memory.
const DEFAULT_SCRATCH: &str = "/var/tmp";

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
    /// Where layouts and archives are unpacked for the recording [default: /var/tmp]
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
}

impl EngineArgs {
    pub(super) fn engines(&self) -> Engines {
        Engines {
            docker_host: self.docker_host.clone(),
            containerd: self.containerd.clone(),
            snapshotter: self.snapshotter.clone(),
        }
    }

    /// Where this image is unpacked, if it is; refuses a directory for one that is not.
    pub(super) fn scratch(&self, name: &ImageName) -> anyhow::Result<PathBuf> {
        match name {
            ImageName::OciLayout { .. } | ImageName::DockerArchive { .. } => {}
            ImageName::Docker { .. } | ImageName::Containerd { .. } => self.refuse_scratch(name)?,
        }
        let chosen = self.scratch.clone();
        Ok(chosen.unwrap_or_else(|| DEFAULT_SCRATCH.into()))
    }

    /// Refuses a directory to unpack in for a source that is not unpacked.
    pub(super) fn refuse_scratch(&self, source: impl Display) -> anyhow::Result<()> {
        ensure!(
            self.scratch.is_none(),
            "--scratch is for oci: and docker-archive:, which are unpacked there, and {source} is neither"
        );
        Ok(())
    }
}
