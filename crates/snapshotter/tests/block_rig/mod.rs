//! A snapshotter with layers of block images, which somebody else makes directories and devices of.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use blocks::Digest;
use parking_lot::Mutex;
use snapshotter::{
    BlockDir, BlockError, BlockImages, Config, DeviceForm, Labels, Mount, OwnDevice, PlainLowers,
    Snapshot, SnapshotError, SnapshotId, Snapshotter, Unpacker, Usage, WantedDevice,
};

/// Chain IDs, as containerd writes them.
pub(crate) const CHAINS: [&str; 3] = [
    "sha256:1111111111111111111111111111111111111111111111111111111111111111",
    "sha256:2222222222222222222222222222222222222222222222222222222222222222",
    "sha256:3333333333333333333333333333333333333333333333333333333333333333",
];
pub(crate) const TARGET: &str = "containerd.io/snapshot/overlaybd/turbo-oci/target-digest";
pub(crate) const BLOBS: &str = "https://registry.test/v2/app/blobs";

/// Serves images from a directory of the test, or fails.
#[derive(Debug)]
pub(crate) struct Images {
    pub(crate) dir: PathBuf,
    pub(crate) knows: AtomicBool,
    pub(crate) fails: AtomicBool,
    /// The layers that were asked for last, and the snapshots that were removed.
    pub(crate) asked: Mutex<Vec<BlockDir>>,
    pub(crate) removed: Mutex<Vec<SnapshotId>>,
    /// The name of the image that a layer was asked for last.
    pub(crate) pulled: Mutex<Option<String>>,
    /// The snapshots whose devices were ended.
    pub(crate) ended: Mutex<Vec<SnapshotId>>,
    pub(crate) by_default: Mutex<Option<DeviceForm>>,
    /// What the label of the device said that was asked for last.
    pub(crate) quota: Mutex<Option<String>>,
}

impl BlockImages for Images {
    fn blobs_of(&self, _key: &str, _blob: &Digest, image: Option<&str>) -> Option<String> {
        *self.pulled.lock() = image.map(str::to_owned);
        self.knows.load(SeqCst).then(|| BLOBS.to_owned())
    }

    fn directory(
        &self,
        layers: &[BlockDir],
        _container: Option<&Snapshot>,
    ) -> Result<PathBuf, Box<dyn Error + Send + Sync>> {
        *self.asked.lock() = layers.to_vec();
        match self.fails.load(SeqCst) {
            true => Err("the registry is away".into()),
            false => Ok(self.dir.clone()),
        }
    }

    fn removed(&self, id: SnapshotId) {
        self.removed.lock().push(id);
    }

    fn device(
        &self,
        id: SnapshotId,
        wanted: WantedDevice<'_>,
        layers: &[BlockDir],
    ) -> Result<OwnDevice, BlockError> {
        *self.asked.lock() = layers.to_vec();
        *self.quota.lock() = wanted.quota.map(str::to_owned);
        if self.fails.load(SeqCst) {
            return Err("the node is away".into());
        }
        let path = match wanted.form {
            DeviceForm::Dir => PathBuf::from(format!("/devices/{id}")),
            DeviceForm::Dev => PathBuf::from(format!("/dev/loop{id}")),
        };
        Ok(OwnDevice {
            path,
            fs_type: "ext4",
        })
    }

    fn form_by_default(&self, layers: &[BlockDir]) -> Option<DeviceForm> {
        assert!(!layers.is_empty());
        *self.by_default.lock()
    }

    fn seal(&self, _id: SnapshotId, blob: &Path) -> Result<(Digest, u64), BlockError> {
        if self.fails.load(SeqCst) {
            return Err("it is mounted".into());
        }
        fs::write(blob, "blob").unwrap();
        Ok((Digest([5; 32]), 4))
    }

    fn device_usage(&self, _id: SnapshotId) -> Result<Usage, BlockError> {
        Ok(Usage {
            inodes: 3,
            bytes: 4096,
        })
    }

    fn device_ended(&self, id: SnapshotId) {
        self.ended.lock().push(id);
    }
}

/// A containerd of some version.
#[derive(Debug)]
pub(crate) struct Containerd {
    pub(crate) is_of_24: bool,
}

impl Unpacker for Containerd {
    fn takes_read_only_for_unpacked(&self) -> bool {
        self.is_of_24
    }
}

pub(crate) struct Rig {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) images: Arc<Images>,
}

impl Rig {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        fs::create_dir(&image).unwrap();
        let images = Arc::new(Images {
            dir: image,
            knows: AtomicBool::new(true),
            fails: AtomicBool::new(false),
            asked: Mutex::default(),
            removed: Mutex::default(),
            pulled: Mutex::default(),
            ended: Mutex::default(),
            by_default: Mutex::default(),
            quota: Mutex::default(),
        });
        Self { dir, images }
    }

    pub(crate) fn open(&self, is_of_24: bool) -> Snapshotter<PlainLowers> {
        let config = Config {
            root: self.dir.path().join("root"),
            upper: None,
            layers: None,
            unpacker: Some(Arc::new(Containerd { is_of_24 })),
            blocks: Some(Arc::clone(&self.images) as Arc<dyn BlockImages>),
        };
        Snapshotter::open(config, PlainLowers).unwrap()
    }
}

pub(crate) fn name(number: usize) -> String {
    format!("one/{number}/{}", CHAINS[number])
}

/// The labels that containerd gives a snapshot to unpack the layer of a block image into.
pub(crate) fn labels(number: usize, more: &[(&str, &str)]) -> Labels {
    let digest = Digest([u8::try_from(number).unwrap(); 32]).to_string();
    let labels = [
        ("containerd.io/snapshot.ref", CHAINS[number]),
        ("containerd.io/snapshot/overlaybd/blob-digest", &digest),
        ("containerd.io/snapshot/overlaybd/blob-size", "4096"),
    ];
    let labels = labels.iter().chain(more);
    labels
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

/// Has two layers pulled one after another; both exist before anything is unpacked.
pub(crate) fn pull(snapshotter: &Snapshotter<PlainLowers>) {
    for (number, parent) in [(0, None), (1, Some(name(0)))] {
        let key = format!("one/{number}/extract");
        let exists = snapshotter.prepare(&key, parent.as_deref(), labels(number, &[]));
        assert!(
            matches!(exists, Err(SnapshotError::AlreadyExists { .. })),
            "{exists:?}"
        );
        assert!(snapshotter.stat(&key).is_err());
    }
}

pub(crate) fn lowers(mounts: &[Mount]) -> &str {
    let [one] = mounts else { panic!("{mounts:?}") };
    let lowers = one
        .options
        .iter()
        .find_map(|option| option.strip_prefix("lowerdir="));
    lowers.unwrap_or(&one.source)
}
