//! Block images of containers: the node serves each as a device, with its file system mounted.
//!
//! An image is described in `<root>/devices/<number>`, where the number is that of the snapshot of its topmost layer.
//! The node mounts it there, fetches its blobs on demand, and keeps it until that snapshot is removed.

mod own;
mod places;
mod retired;
mod whence;

use std::error::Error;
use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use blockimages::{CONFIG_NAME, DeviceConfig, LowerConfig, unpacked_lower};
use blocks::Digest;
use node_api::client::{CallError, NodeClient};
use node_api::device::{DeviceKind, DeviceSpec, DeviceView};
use node_api::image::{ImageSpec, Prefetch, RegistrySpec, StartPlanState};
pub use snapshotter::DeviceForm;
use snapshotter::{
    BlockDir, BlockError, BlockImages, OwnDevice, Snapshot, SnapshotId, Usage, WantedDevice,
};

use super::first_boot::FirstBootsHand;
use host::interrupt::Interrupt;
use host::mount_table::kind_at;
use host::run_dir::RunDir;
use layers::patient_node::PatientClient;
pub(super) use places::DeviceId;
use places::DevicePlaces;
use rawio::private;
pub(super) use retired::Retired;
use whence::Whence;

/// What is said if there is no node.
const NOBODY: &str = "no node runs, which would serve it: start yolofs node";

/// How long a node that went away may take to come back: its keeper starts it again at once.
const COMES_BACK: Duration = Duration::from_secs(10);

/// How block images are served.
#[derive(Clone, Debug)]
pub struct BlockImageSettings {
    /// Where what is fetched of blobs is kept; `None` for a directory in the root.
    pub cache: Option<PathBuf>,
    /// Most bytes of the cache.
    pub cache_bytes: u64,
    /// What is fetched that nobody has read yet.
    pub background: Prefetch,
    /// How containers get a device that they write to, on images where that is possible, unless a label says otherwise;
    /// `None` for an overlay.
    pub own_device: Option<DeviceForm>,
    /// Bytes that containers may write to devices of their own, unless a label says otherwise.
    pub own_limit: Option<u64>,
    /// How registries are talked to.
    pub registry: RegistrySpec,
}

/// Has the node serve block images.
#[derive(Debug)]
pub(super) struct NodeBlockImages {
    places: DevicePlaces,
    node: PatientClient,
    whence: Whence,
    store: PathBuf,
    options: ImageSpec,
    own_device: Option<DeviceForm>,
    own_limit: Option<u64>,
    retired: Arc<Retired>,
    first_boots: Arc<FirstBootsHand>,
}

impl NodeBlockImages {
    /// Returns what serves the block images of a root. The containerd at `containerd` says where they came from.
    pub(super) fn new(
        root: &Path,
        settings: &BlockImageSettings,
        containerd: &Path,
        store: PathBuf,
        run_dir: &RunDir,
        first_boots: Arc<FirstBootsHand>,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Self> {
        let places = DevicePlaces::of_root(root);
        let cache = settings.cache.clone().unwrap_or_else(|| root.join("blobs"));
        let cache = std::path::absolute(cache).context("finding the cache of blobs")?;
        let node = || PatientClient::new(NodeClient::of(run_dir), interrupt.clone());
        Ok(Self {
            retired: Arc::new(Retired::new(places.clone(), node())),
            places,
            node: node(),
            whence: Whence::new(containerd, settings.registry.plain_http),
            store,
            own_device: settings.own_device,
            own_limit: settings.own_limit,
            options: ImageSpec {
                cache: Some(cache),
                cache_bytes: settings.cache_bytes,
                background: settings.background,
                record: first_boots.are_recorded(),
                registry: settings.registry.clone(),
                ..ImageSpec::default()
            },
            first_boots,
        })
    }

    /// Returns what ends devices whose snapshots were removed.
    pub(super) const fn retired(&self) -> &Arc<Retired> {
        &self.retired
    }

    /// Has layers served, and returns where their file system is mounted, and what the node says of it if it does.
    fn serve(
        &self,
        layers: &[BlockDir],
        container: Option<&Snapshot>,
    ) -> anyhow::Result<(PathBuf, Option<DeviceView>)> {
        let top = layers.first().context("an image without layers")?.id;
        let top = DeviceId::Layers(top);
        let image = self.places.of(top);
        let [at, erofs] = self.places.mounts(top);
        private::keep(&self.places.dir).context("making the directory of devices")?;
        for dir in [&image, &at, &erofs] {
            make(dir)?;
        }
        let is_new = self.describe(&image, layers)?;
        let spec = DeviceSpec {
            name: self.places.name(top),
            image,
            kind: DeviceKind::File,
            at,
            erofs: Some(erofs.clone()),
            writable: false,
            suid_dev: false,
            loop_device: false,
            store: self.store.clone(),
            options: self.options.clone(),
        };
        spec.check()?;
        match self.node.ask(COMES_BACK, |node| node.attach(&spec)) {
            Ok(attached) => {
                if let Some(container) = container {
                    self.follow(container, layers, &attached.device);
                }
                return Ok((erofs, Some(attached.device)));
            }
            // Reads wait for the next node and its workers.
            Err(error) if is_mounted(&erofs) => {
                log::warn!("{}: {error:#}; using what is mounted", erofs.display());
            }
            Err(CallError::Nobody(_)) => anyhow::bail!(NOBODY),
            Err(error) => {
                if is_new {
                    // It may be that the registry was not found, and is asked for again.
                    drop(std::fs::remove_file(spec.image.join(CONFIG_NAME)));
                }
                return Err(error.into());
            }
        }
        Ok((erofs, None))
    }

    /// Has the start of a container made a plan of, if the device records it.
    fn follow(&self, container: &Snapshot, layers: &[BlockDir], device: &DeviceView) {
        let start = device.served.as_ref().and_then(|served| served.start);
        let is_recorded = start.is_some_and(|start| start.plan == StartPlanState::Recording);
        let top = layers.first().and_then(BlockDir::chain_id);
        if let (Some(top), true) = (top, is_recorded) {
            self.first_boots.follow(container, top, &device.name);
        }
    }

    /// Describes an image for the node, and returns whether it was not described like this before.
    fn describe(&self, image: &Path, layers: &[BlockDir]) -> anyhow::Result<bool> {
        let mut config = config_of(layers)?;
        let known = DeviceConfig::read(image).ok();
        if known.is_some_and(|(known, _)| is_of(&known, &config)) {
            return Ok(false);
        }
        if let Some(top) = layers.iter().find(|one| one.layer.blobs.is_some()) {
            config.repo_blob_url = {
                let (name, blob) = (&top.name, top.layer.digest);
                self.whence.with_port(name, blob, config.repo_blob_url)
            };
            let blobs: Vec<_> = layers.iter().rev().map(|one| one.layer.digest).collect();
            if let Some(said) = self.whence.manifest_of(&top.name, &blobs) {
                config.manifest = Some(said.manifest);
                for (lower, content) in config.lowers.iter_mut().zip(said.contents) {
                    lower.content = content;
                }
            }
        }
        write_config(image, &config)?;
        Ok(true)
    }
}

impl BlockImages for NodeBlockImages {
    fn blobs_of(&self, key: &str, blob: &Digest, image: Option<&str>) -> Option<String> {
        let blobs = self.whence.blobs_of(key, blob)?;
        Some(self.whence.with_port_of(image, blobs))
    }

    fn directory(
        &self,
        layers: &[BlockDir],
        container: Option<&Snapshot>,
    ) -> Result<PathBuf, Box<dyn Error + Send + Sync>> {
        Ok(self.serve(layers, container)?.0)
    }

    fn removed(&self, id: SnapshotId) {
        self.retired.add(DeviceId::Layers(id));
    }

    fn form_by_default(&self, layers: &[BlockDir]) -> Option<DeviceForm> {
        let form = self.own_device?;
        // One that cannot be served is refused, with the reason, when its overlay is to be mounted.
        let (dir, _) = self.serve(layers, None).ok()?;
        own::is_writable(&dir).then_some(form)
    }

    fn device(
        &self,
        id: SnapshotId,
        wanted: WantedDevice<'_>,
        layers: &[BlockDir],
    ) -> Result<OwnDevice, BlockError> {
        Ok(self.serve_own(id, wanted, layers)?)
    }

    fn seal(&self, id: SnapshotId, blob: &Path) -> Result<(Digest, u64), BlockError> {
        Ok(self.seal_own(id, blob)?)
    }

    fn device_usage(&self, id: SnapshotId) -> Result<Usage, BlockError> {
        Ok(self.usage_of_own(id)?)
    }

    fn device_ended(&self, id: SnapshotId) {
        self.retired.add(DeviceId::Own(id));
    }
}

/// Makes a directory if it is missing. What is mounted on it may be dead, and is not looked at.
fn make(dir: &Path) -> anyhow::Result<()> {
    match std::fs::create_dir(dir) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            Err(error).with_context(|| format!("making {}", dir.display()))
        }
        _ => Ok(()),
    }
}

fn is_mounted(dir: &Path) -> bool {
    kind_at(dir).is_ok_and(|kind| kind.is_some())
}

fn write_config(image: &Path, config: &DeviceConfig) -> anyhow::Result<()> {
    let path = image.join(CONFIG_NAME);
    let text = serde_json::to_vec(config).context("describing the image")?;
    let writing = || format!("writing {}", path.display());
    // Of several that write the same at once, each has its own file.
    let new = image.join(format!("{CONFIG_NAME}.{:?}", std::thread::current().id()));
    let mut file = File::create(&new).with_context(writing)?;
    file.write_all(&text)
        .and_then(|()| file.sync_all())
        .and_then(|()| std::fs::rename(&new, &path))
        .with_context(writing)
}

/// Returns the configuration of an image with these layers, the nearest first. All blobs are read from the repository
/// of the topmost layer that was not downloaded: an image has all its layers in one.
fn config_of(layers: &[BlockDir]) -> anyhow::Result<DeviceConfig> {
    let mut blobs = layers.iter().filter_map(|one| one.layer.blobs.clone());
    let lowers = layers.iter().rev().map(|one| match &one.layer.target {
        Some(target) => Ok(unpacked_lower(&one.dir, target)?),
        None => Ok(LowerConfig {
            dir: one.dir.display().to_string(),
            digest: one
                .layer
                .digest
                .map(|digest| digest.to_string())
                .unwrap_or_default(),
            size: one.layer.size,
            ..LowerConfig::default()
        }),
    });
    Ok(DeviceConfig {
        lowers: lowers.collect::<anyhow::Result<_>>()?,
        repo_blob_url: blobs.next().unwrap_or_default(),
        ..DeviceConfig::default()
    })
}

/// Returns whether a configuration has the layers of one that does not say yet what their content is.
fn is_of(known: &DeviceConfig, config: &DeviceConfig) -> bool {
    let lowers = known.lowers.iter().cloned();
    let lowers = lowers.map(|lower| LowerConfig {
        content: None,
        ..lower
    });
    lowers.eq(config.lowers.iter().cloned())
}

#[cfg(test)]
mod tests {
    use blockimages::ContentRoot;
    use snapshotter::BlockLayer;

    use super::*;

    #[test]
    fn an_image_is_described_from_the_bottom() {
        let layer = |number: u8, blobs: Option<&str>| BlockDir {
            id: SnapshotId(u64::from(number)),
            name: format!("default/{number}/chain"),
            layer: BlockLayer {
                digest: Some(Digest([number; 32])),
                size: 4096,
                target: None,
                blobs: blobs.map(str::to_owned),
            },
            dir: PathBuf::from(format!("/root/snapshots/{number}/fs")),
        };
        let of = "https://registry/v2/app/blobs";
        let layers = [layer(3, None), layer(2, Some(of)), layer(1, Some("other"))];
        let config = config_of(&layers).unwrap();
        assert_eq!(config.repo_blob_url, of);
        let digests: Vec<_> = config.digests().into_iter().flatten().collect();
        assert_eq!(digests, [1, 2, 3].map(|number| Digest([number; 32])));
        let dir = tempfile::tempdir().unwrap();
        write_config(dir.path(), &config).unwrap();
        write_config(dir.path(), &config).unwrap();
        assert_eq!(DeviceConfig::read(dir.path()).unwrap().0, config);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        // It stays as it is when it says more of these layers.
        let mut known = config.clone();
        known.lowers[1].content = Some(ContentRoot([7; 32]));
        assert!(is_of(&known, &config));
        known.lowers.pop();
        assert!(!is_of(&known, &config));
    }

    #[test]
    fn metadata_that_lead_elsewhere_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let target = Digest([9; 32]);
        let config = || {
            config_of(&[BlockDir {
                id: SnapshotId(1),
                name: "default/1/chain".to_owned(),
                layer: BlockLayer {
                    digest: Some(Digest([1; 32])),
                    size: 4096,
                    target: Some(target),
                    blobs: Some("https://registry/v2/app/blobs".to_owned()),
                },
                dir: dir.path().to_owned(),
            }])
        };
        let [metadata, index] = ["erofs.fs.meta", "gzip.meta"].map(|name| dir.path().join(name));
        std::os::unix::fs::symlink("/etc/shadow", &metadata).unwrap();
        std::fs::write(&index, "").unwrap();
        config().unwrap_err();
        std::fs::remove_file(&metadata).unwrap();
        std::fs::write(&metadata, "").unwrap();
        let found = config().unwrap();
        assert_eq!(found.lowers[0].file, metadata.to_str().unwrap());
        assert_eq!(found.lowers[0].gzip_index, index.to_str().unwrap());
        assert_eq!(found.digests(), [Some(target)]);
    }
}
