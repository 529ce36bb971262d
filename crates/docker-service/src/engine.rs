//! Which Docker, and whether its layers can be served in place.

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use blocks::Digest;
use engine::Docker;
use engine::docker::{DockerInfo, Storage};

/// Which Docker, and where it keeps what it has.
#[derive(Clone, Debug)]
pub struct DockerEngine {
    /// Its socket, if not the client's own choice.
    pub host: Option<String>,
    /// Its directory, if it need not be asked.
    pub data_root: Option<PathBuf>,
}

impl DockerEngine {
    fn docker(&self) -> Docker {
        Docker::new(self.host.clone())
    }

    /// Returns Docker's directory.
    ///
    /// # Errors
    /// If Docker does not answer, or keeps its layers in a way that cannot be served in place.
    pub fn data_root(&self) -> anyhow::Result<PathBuf> {
        let dir = match &self.data_root {
            Some(dir) => dir.clone(),
            None => {
                let info = self
                    .docker()
                    .info()
                    .context("finding Docker's directory (or name it with --data-root)")?;
                check(&info)?;
                info.data_root
            }
        };
        dir.canonicalize()
            .with_context(|| format!("opening Docker's directory {}", dir.display()))
    }

    /// Returns the ID of an image by its name.
    ///
    /// # Errors
    /// If Docker does not answer, or has no such image.
    pub fn image(&self, name: &str) -> anyhow::Result<Digest> {
        let name = name.strip_prefix("docker://").unwrap_or(name);
        Ok(self.docker().image(name)?.image)
    }
}

/// Refuses what cannot work, and says what can.
fn check(info: &DockerInfo) -> anyhow::Result<()> {
    if info.is_rootless {
        bail!(
            "this Docker is rootless: its containers run in a mount namespace of their own, where \
             mounts of ours do not appear. Use Docker as root, or yolofs mount"
        );
    }
    match &info.storage {
        Storage::Overlay2 => Ok(()),
        Storage::Containerd { snapshotter } => bail!(
            "this Docker keeps its images in containerd (snapshotter {snapshotter}), not in \
             directories of its own. Have containerd use yolofs snapshotter: docs/containerd.md"
        ),
        Storage::Other { driver } => bail!(
            "this Docker keeps its layers with the storage driver {driver}; only those of \
             overlay2 can be served in place (\"storage-driver\" in /etc/docker/daemon.json)"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(storage: Storage, is_rootless: bool) -> Option<String> {
        let info = DockerInfo {
            version: "29.0.0".to_owned(),
            data_root: "/var/lib/docker".into(),
            storage,
            is_rootless,
            remaps_users: false,
            has_live_restore: false,
        };
        check(&info).err().map(|error| error.to_string())
    }

    #[test]
    fn only_overlay2_as_root_is_served_and_the_others_are_told_apart() {
        assert_eq!(refusal(Storage::Overlay2, false), None);
        let why = refusal(Storage::Overlay2, true).unwrap();
        assert!(why.contains("rootless"), "{why}");
        let snapshotter = "overlayfs".to_owned();
        let why = refusal(Storage::Containerd { snapshotter }, false).unwrap();
        assert!(why.contains("yolofs snapshotter"), "{why}");
        let driver = "btrfs".to_owned();
        let why = refusal(Storage::Other { driver }, false).unwrap();
        assert!(why.contains("btrfs") && why.contains("overlay2"), "{why}");
    }
}
