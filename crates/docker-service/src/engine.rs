//! Which Docker, where it has its images, and whether their layers can be served in place.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use blocks::Digest;
use engine::Docker;
use engine::containerd::{DEFAULT_ADDRESS, DEFAULT_SNAPSHOTTER};
use engine::docker::{DockerInfo, ImageStore, Storage};

use super::data_root::DataRoot;
use super::image_store::StoreImages;
use super::images::Images;
use super::station::Station;

/// The snapshotter of ours: it serves layers by itself.
const OURS: &str = "yolofs";
/// Where a containerd listens that Docker runs itself.
const OWN_CONTAINERD: &str = "/run/docker/containerd/containerd.sock";
/// The namespace of Docker's images.
const NAMESPACE: &str = "moby";

/// A Docker daemon, and its directories.
#[derive(Clone, Debug)]
pub struct DockerEngine {
    /// Its socket, if not the client's own choice.
    pub host: Option<String>,
    /// Its directory; requested from the daemon if absent.
    pub data_root: Option<PathBuf>,
    /// The socket of the containerd that has its images; requested from the daemon if absent.
    pub containerd: Option<PathBuf>,
}

/// Where a Docker has its images.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DockerPlace {
    /// Its directory.
    pub data_root: PathBuf,
    /// The containerd that has the images, if it is not Docker itself.
    pub store: Option<ImageStore>,
}

impl DockerPlace {
    /// Returns its images. `station` is where the state of its service is kept.
    ///
    /// # Errors
    /// If the thread that follows their changes cannot be started.
    pub fn images(&self, station: &Station) -> anyhow::Result<Box<dyn Images>> {
        Ok(match &self.store {
            None => Box::new(DataRoot::new(&self.data_root)),
            Some(store) => Box::new(StoreImages::new(&self.data_root, store, &station.label())?),
        })
    }

    /// Returns whether a snapshotter of yolofs serves the layers: then nothing is attached.
    pub fn is_served_by_snapshotter(&self) -> bool {
        let snapshotter = self.store.as_ref().map(|store| store.snapshotter.as_str());
        snapshotter == Some(OURS)
    }
}

impl DockerEngine {
    fn docker(&self) -> Docker {
        Docker::new(self.host.clone())
    }

    /// Returns the directories of Docker's images.
    ///
    /// # Errors
    /// If Docker does not respond, or stores its layers in a way that cannot be served in place.
    pub fn place(&self) -> anyhow::Result<DockerPlace> {
        let (dir, store) = match &self.data_root {
            Some(dir) => (dir.clone(), self.store_beside(dir)),
            None => {
                let docker = self.docker();
                let info = docker
                    .info()
                    .context("finding Docker's directory (`data_root` names it)")?;
                check(&info)?;
                let store = match (&self.containerd, &info.storage) {
                    (Some(address), Storage::Containerd { snapshotter }) => {
                        Some(store_at(address, snapshotter))
                    }
                    _ => docker.store_of(&info)?,
                };
                (info.data_root, store)
            }
        };
        let data_root = dir
            .canonicalize()
            .with_context(|| format!("opening Docker's directory {}", dir.display()))?;
        Ok(DockerPlace { data_root, store })
    }

    /// Returns the containerd of a Docker that is not asked. Docker itself goes by whether the graph
    /// driver's directory has anything in it.
    fn store_beside(&self, data_root: &Path) -> Option<ImageStore> {
        if let Some(address) = &self.containerd {
            return Some(store_at(address, &snapshotter_of(data_root)));
        }
        let is_used = |dir: PathBuf| fs::read_dir(dir).is_ok_and(|mut dir| dir.next().is_some());
        if is_used(data_root.join("overlay2")) || is_used(data_root.join("image/overlay2")) {
            return None;
        }
        let sockets = [DEFAULT_ADDRESS, OWN_CONTAINERD].map(Path::new);
        let there = sockets.into_iter().find(|socket| socket.exists())?;
        Some(store_at(there, &snapshotter_of(data_root)))
    }

    /// Returns the ID of an image by its name.
    ///
    /// # Errors
    /// If Docker does not respond, or has no such image.
    pub fn image(&self, name: &str) -> anyhow::Result<Digest> {
        let name = name.strip_prefix("docker://").unwrap_or(name);
        Ok(self.docker().image_id(name)?)
    }
}

fn store_at(address: &Path, snapshotter: &str) -> ImageStore {
    ImageStore {
        address: address.to_owned(),
        namespace: NAMESPACE.to_owned(),
        snapshotter: snapshotter.to_owned(),
    }
}

/// Returns the snapshotter of a Docker that is not asked: it mounts roots of containers in a directory
/// of that name.
fn snapshotter_of(data_root: &Path) -> String {
    let is_ours = data_root.join("rootfs").join(OURS).exists();
    if is_ours { OURS } else { DEFAULT_SNAPSHOTTER }.to_owned()
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
        Storage::Containerd { snapshotter }
            if [OURS, DEFAULT_SNAPSHOTTER].contains(&snapshotter.as_str()) =>
        {
            Ok(())
        }
        Storage::Containerd { snapshotter } => bail!(
            "this Docker keeps its images in containerd with the snapshotter {snapshotter}; layers of \
             overlayfs can be served in place, and yolofs serves its own (\"storage-driver\" in \
             /etc/docker/daemon.json, docs/containerd.md)"
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
            containerd: None,
            is_rootless,
            remaps_users: false,
            has_live_restore: false,
        };
        check(&info).err().map(|error| error.to_string())
    }

    #[test]
    fn what_cannot_be_served_is_refused_and_told_apart() {
        assert_eq!(refusal(Storage::Overlay2, false), None);
        let why = refusal(Storage::Overlay2, true).unwrap();
        assert!(why.contains("rootless"), "{why}");
        let with = |snapshotter: &str| {
            let snapshotter = snapshotter.to_owned();
            refusal(Storage::Containerd { snapshotter }, false)
        };
        assert_eq!(with("overlayfs"), None);
        assert_eq!(with("yolofs"), None);
        let why = with("native").unwrap();
        assert!(why.contains("native") && why.contains("overlayfs"), "{why}");
        let driver = "btrfs".to_owned();
        let why = refusal(Storage::Other { driver }, false).unwrap();
        assert!(why.contains("btrfs") && why.contains("overlay2"), "{why}");
    }

    #[test]
    fn a_docker_that_is_not_asked_is_known_by_its_directories() {
        let dir = tempfile::tempdir().unwrap();
        let at = |containerd: Option<&str>| {
            let engine = DockerEngine {
                host: None,
                data_root: Some(dir.path().to_owned()),
                containerd: containerd.map(PathBuf::from),
            };
            engine.place().unwrap().store
        };
        let store = at(Some("/c.sock")).unwrap();
        assert_eq!(
            (&*store.snapshotter, &*store.namespace),
            ("overlayfs", "moby")
        );
        fs::create_dir_all(dir.path().join("rootfs/yolofs")).unwrap();
        assert_eq!(at(Some("/c.sock")).unwrap().snapshotter, "yolofs");
        fs::create_dir_all(dir.path().join("overlay2/l")).unwrap();
        assert_eq!(at(None), None);
    }
}
