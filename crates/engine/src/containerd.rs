//! containerd, through its gRPC interface; containers are started through `ctr`.
//!
//! `ctr` is part of containerd, and makes the specification of a container from an
//! image: users, capabilities, mounts, seccomp. A second implementation would differ from it.
//!
//! The interface here is synchronous: each call waits for its response on a separate runtime, and
//! has a deadline. It must not be called from within another runtime.

mod blob;
mod chain;
mod content;
mod events;
mod lease;
mod repositories;
mod snapshots;
mod stacks;
mod tasks;
mod version;

use std::path::{Path, PathBuf};
use std::time::Duration;

use blocks::Digest;
use containerd_client::services::v1::{GetImageRequest, ListImagesRequest};
use containerd_client::tonic::metadata::{Ascii, MetadataValue};
use containerd_client::tonic::{Code, Request, Response, Status};
use containerd_client::{Client, types::Descriptor};
use distribution::image::RunConfig;

pub use blob::{BlobSink, BlobSource, KeptBlob, blob_pipe};
pub use chain::chain_ids;
pub use events::Events;
pub use lease::{Collected, KeptDocument, Labels, LayerAge, Lease, Prepared};
pub use repositories::PulledManifest;
pub use stacks::{SnapshotStack, StackBase};
pub use tasks::{CtrRun, Exec};
pub use version::version_at;

use crate::call::timed_out;
use crate::error::EngineError;
use crate::image::{LocalImage, LocalLayer};

/// How long containerd may take for what it only has to look up.
const LOOK_UP: Duration = Duration::from_secs(30);
/// The default address of containerd.
pub const DEFAULT_ADDRESS: &str = "/run/containerd/containerd.sock";
/// Its own snapshotter for overlayfs.
pub const DEFAULT_SNAPSHOTTER: &str = "overlayfs";

/// The label of a snapshot whose layers must be the plain directories, even if they are served:
/// those that are being recorded. Snapshotters without this label have plain directories only.
pub const PLAIN_LABEL: &str = "containerd.io/snapshot/yolofs.plain";

/// A namespace of a containerd.
#[derive(Debug)]
pub struct Containerd {
    address: PathBuf,
    namespace: String,
    namespace_header: MetadataValue<Ascii>,
    snapshotter: String,
    runtime: tokio::runtime::Runtime,
    client: ClientHandle,
}

/// What an image is made of, wherever it is unpacked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// Its name.
    pub reference: String,
    /// The digest of its configuration.
    pub image: Digest,
    /// The digest of its manifest for this platform.
    pub manifest: Digest,
    /// The diff IDs of its layers, the bottom one first.
    pub layers: Vec<Digest>,
    /// How it is run.
    pub config: RunConfig,
}

/// A name in containerd, and its target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedImage {
    /// The name.
    pub reference: String,
    /// The digest of its index or manifest.
    pub target: Digest,
}

/// The generated client tells nothing of itself.
struct ClientHandle(Client);

impl std::fmt::Debug for ClientHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Client")
    }
}

impl Containerd {
    /// Connects to the containerd that listens at `address`.
    ///
    /// # Errors
    /// If no process responds there, or the namespace is invalid.
    pub fn connect(
        address: &Path,
        namespace: &str,
        snapshotter: &str,
    ) -> Result<Self, EngineError> {
        let doing = format!("connecting to containerd at {}", address.display());
        let failed = |said: String| EngineError::Failed {
            doing: doing.clone(),
            said,
        };
        let namespace_header = namespace
            .parse()
            .map_err(|_| failed(format!("{namespace:?} is no namespace")))?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| failed(error.to_string()))?;
        let connecting = runtime
            .block_on(async { tokio::time::timeout(LOOK_UP, Client::from_path(address)).await });
        let client = connecting
            .map_err(|_| timed_out(&doing, LOOK_UP))?
            .map_err(|error| failed(with_causes(&error)))?;
        Ok(Self {
            address: address.to_owned(),
            namespace: namespace.to_owned(),
            namespace_header,
            snapshotter: snapshotter.to_owned(),
            runtime,
            client: ClientHandle(client),
        })
    }

    /// Returns an image with the directory of each layer.
    ///
    /// # Errors
    /// If there is no such image, it is not unpacked, or its snapshotter has no directories.
    pub fn image(&self, reference: &str) -> Result<LocalImage, EngineError> {
        let described = self.described(reference)?.ok_or_else(|| {
            let namespace = &self.namespace;
            EngineError::NoImage {
                engine: format!("containerd's namespace {namespace}"),
                reference: reference.to_owned(),
                hint: format!(
                    "containerd knows only full names, as docker.io/library/nginx:1.25; try ctr \
                     -n {namespace} images ls"
                ),
            }
        })?;
        let dirs = self.layer_dirs(reference, &described.layers)?;
        let layers = described.layers.iter().zip(dirs);
        Ok(LocalImage {
            reference: described.reference.clone(),
            names: vec![described.reference],
            image: described.image,
            manifest: Some(described.manifest),
            layers: layers
                .map(|(diff_id, dir)| LocalLayer {
                    diff_id: *diff_id,
                    dir,
                })
                .collect(),
            config: described.config,
        })
    }

    /// Returns the description of an image, or `None` if there is no such image.
    ///
    /// # Errors
    /// If containerd does not respond, or lacks a document of the image.
    pub fn described(&self, reference: &str) -> Result<Option<Described>, EngineError> {
        let doing = format!("asking containerd for the image {reference}");
        let name = reference.to_owned();
        let answer = self.call(&doing, async |client| {
            let request = self.request(GetImageRequest { name });
            client.images().get(request).await
        })?;
        let target = answer
            .and_then(|answer| answer.image)
            .and_then(|image| image.target);
        target
            .map(|target| self.describe(reference, &target))
            .transpose()
    }

    /// Returns all names of images with their targets.
    ///
    /// # Errors
    /// If containerd does not respond.
    pub fn names(&self) -> Result<Vec<NamedImage>, EngineError> {
        let doing = "asking containerd for its images";
        let answer = self.call(doing, async |client| {
            let filters = Vec::new();
            let request = self.request(ListImagesRequest { filters });
            client.images().list(request).await
        })?;
        let images = answer.map(|answer| answer.images).unwrap_or_default();
        let named = images.into_iter().filter_map(|image| {
            Some(NamedImage {
                target: image.target?.digest.parse().ok()?,
                reference: image.name,
            })
        });
        Ok(named.collect())
    }

    /// Returns the first image whose layers, all of them, have this chain ID: the image of a container
    /// whose snapshot is prepared on the snapshot of that name.
    ///
    /// # Errors
    /// If containerd does not respond.
    pub fn with_chain(&self, chain: &Digest) -> Result<Option<Described>, EngineError> {
        let doing = "asking containerd for its images";
        let answer = self.call(doing, async |client| {
            let filters = Vec::new();
            let request = self.request(ListImagesRequest { filters });
            client.images().list(request).await
        })?;
        for image in answer.map(|answer| answer.images).unwrap_or_default() {
            let Some(target) = image.target else { continue };
            // Images of other platforms, or without all of their documents, are nobody's.
            let Ok(described) = self.describe(&image.name, &target) else {
                continue;
            };
            if chain_ids(&described.layers).last() == Some(chain) {
                return Ok(Some(described));
            }
        }
        Ok(None)
    }

    fn describe(&self, reference: &str, target: &Descriptor) -> Result<Described, EngineError> {
        let doing = format!("reading what the image {reference} is made of");
        let (manifest, config) = self.manifest(&doing, target)?;
        let image = config.digest;
        let config = self.image_config(&doing, &config)?;
        Ok(Described {
            reference: reference.to_owned(),
            image,
            manifest,
            layers: config.diff_ids,
            config: config.run,
        })
    }

    fn request<T>(&self, body: T) -> Request<T> {
        let mut request = Request::new(body);
        let header = self.namespace_header.clone();
        request
            .metadata_mut()
            .insert("containerd-namespace", header);
        request
    }

    /// Makes a call; what is not there is `None`.
    fn call<T>(
        &self,
        doing: &str,
        call: impl AsyncFnOnce(&Client) -> Result<Response<T>, Status>,
    ) -> Result<Option<T>, EngineError> {
        self.call_within(LOOK_UP, doing, call)
    }

    /// Makes a call that may take so long; what is not there is `None`.
    fn call_within<T>(
        &self,
        patience: Duration,
        doing: &str,
        call: impl AsyncFnOnce(&Client) -> Result<Response<T>, Status>,
    ) -> Result<Option<T>, EngineError> {
        match self.try_call(patience, doing, call)? {
            Ok(answer) => Ok(Some(answer)),
            Err(Code::NotFound) => Ok(None),
            Err(_) => Err(EngineError::Failed {
                doing: doing.to_owned(),
                said: "it is there already".to_owned(),
            }),
        }
    }

    /// Makes a call that may take so long; what is not there, or there already, is no error.
    fn try_call<T>(
        &self,
        patience: Duration,
        doing: &str,
        call: impl AsyncFnOnce(&Client) -> Result<Response<T>, Status>,
    ) -> Result<Result<T, Code>, EngineError> {
        let answer = self
            .runtime
            .block_on(async { tokio::time::timeout(patience, call(&self.client.0)).await });
        match answer {
            Err(_) => Err(timed_out(doing, patience)),
            Ok(Ok(answer)) => Ok(Ok(answer.into_inner())),
            Ok(Err(status)) if matches!(status.code(), Code::NotFound | Code::AlreadyExists) => {
                Ok(Err(status.code()))
            }
            Ok(Err(status)) => Err(EngineError::Failed {
                doing: doing.to_owned(),
                said: status.message().to_owned(),
            }),
        }
    }
}

/// The transport's own message says only that there was an error in the transport.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
