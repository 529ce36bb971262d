//! Snapshots that were committed to layers of a block image, and the image that they are on.

use std::path::PathBuf;

use blocks::Digest;
use containerd_client::services::v1::InfoRequest;
use containerd_client::services::v1::snapshots::{Info, Kind, StatSnapshotRequest};
use distribution::image::{CONFIG_MAX, DOCUMENT_MAX, Manifest};

use super::Containerd;
use super::repositories::manifest as pulled;
use crate::error::EngineError;

/// The label of a snapshot with the blob of its layer, as overlaybd's snapshotter sets it.
const COMMITTED: &str = "containerd.io/snapshot/overlaybd.localcommitpath";
/// Snapshots of a stack: overlaybd's limit of layers.
const SNAPSHOTS_MAX: usize = 255;

/// What was committed on an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotStack {
    /// The blobs of the committed layers, the lowest first.
    pub blobs: Vec<PathBuf>,
    /// The chain ID of the image's layers below.
    pub chain: Digest,
}

/// An image, as it is in the content store.
#[derive(Clone, Debug)]
pub struct StackBase {
    /// Its name.
    pub reference: String,
    /// The digest of its manifest.
    pub digest: Digest,
    /// Its manifest.
    pub manifest: Manifest,
    /// Its configuration, as it is written.
    pub config: Vec<u8>,
    /// The repositories that it was pulled from, as in `docker.io/library/nginx`; without the ports of registries.
    pub repositories: Vec<String>,
}

impl Containerd {
    /// Returns the layers of a committed snapshot that are in no image.
    ///
    /// # Errors
    /// If containerd does not respond, if there is no such snapshot, or if it or one below is not committed to a layer of a
    /// block image.
    pub fn snapshot_stack(&self, key: &str) -> Result<SnapshotStack, EngineError> {
        let doing = format!("looking for the layers of the snapshot {key}");
        let failed = |said: String| EngineError::Failed {
            doing: doing.clone(),
            said,
        };
        let mut blobs = Vec::new();
        let mut name = key.to_owned();
        for _ in 0..SNAPSHOTS_MAX {
            let info = self.snapshot_info(&doing, &name)?;
            let info = info.ok_or_else(|| failed(format!("there is no snapshot {name}")))?;
            let Some(blob) = info.labels.get(COMMITTED) else {
                return match name.parse() {
                    Ok(chain) => {
                        blobs.reverse();
                        Ok(SnapshotStack { blobs, chain })
                    }
                    Err(_) if info.kind() == Kind::Active => Err(failed(format!(
                        "{name} is not committed: end its container, and commit it (ctr snapshots commit NAME {name})"
                    ))),
                    Err(_) => Err(failed(format!(
                        "{name} is no layer of a block image: its container wrote to an overlay, and not to a device of \
                         its own (overlaybd.writable)"
                    ))),
                };
            };
            blobs.push(PathBuf::from(blob));
            name = info.parent;
        }
        Err(failed("it has too many snapshots below".to_owned()))
    }

    fn snapshot_info(&self, doing: &str, key: &str) -> Result<Option<Info>, EngineError> {
        let answer = self.call(doing, async |client| {
            let request = StatSnapshotRequest {
                snapshotter: self.snapshotter.clone(),
                key: key.to_owned(),
            };
            client.snapshots().stat(self.request(request)).await
        })?;
        Ok(answer.and_then(|answer| answer.info))
    }

    /// Returns the image with just the layers of a chain ID; `None` if it is not here any more.
    ///
    /// # Errors
    /// If containerd does not respond, or lacks a document of it.
    pub fn stack_base(&self, chain: &Digest) -> Result<Option<StackBase>, EngineError> {
        let Some(described) = self.with_chain(chain)? else {
            return Ok(None);
        };
        let reference = described.reference;
        let doing = format!("reading what the image {reference} is made of");
        let digest = described.manifest;
        let answer = self.call(&doing, async |client| {
            let request = InfoRequest {
                digest: digest.to_string(),
            };
            client.content().info(self.request(request)).await
        })?;
        let Some(info) = answer.and_then(|answer| answer.info) else {
            return Ok(None);
        };
        let size = u64::try_from(info.size).unwrap_or_default();
        let bytes = self.document(&doing, &digest, size, DOCUMENT_MAX)?;
        let manifest = Manifest::decode(&bytes).map_err(|error| EngineError::Answer {
            doing: doing.clone(),
            why: error.to_string(),
        })?;
        let about = &manifest.config;
        let config = self.document(&doing, &about.digest, about.size, CONFIG_MAX)?;
        Ok(Some(StackBase {
            reference,
            digest,
            manifest,
            config,
            repositories: pulled(info).repositories,
        }))
    }
}
