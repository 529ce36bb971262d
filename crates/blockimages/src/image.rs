//! Opening images: which blobs they are made of, and where each is.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use blocks::Digest;
use lsmt::{FileStorage, Layer, ReadAt, SegmentBudget, Stack};

use crate::config::Place;
use crate::disk_file;
use crate::error::file;
use crate::reads::Reading;
use crate::turbo::open_layer as open_turbo_layer;
use crate::upper::OwnedUpper;
use crate::{BlobSource, DeviceConfig, ImageError, LayeredDevice, RemoteLayer, Start};

/// Opens an image by its configuration (`config.v1.json`, or the directory that has it). Names in it
/// are relative to it. An image with a writable layer is owned by the device that is returned.
///
/// # Errors
/// If another process owns the writable layer.
/// If the configuration or a layer cannot be read, or is invalid; if a layer is not on this machine
/// and there is no `remote` source.
pub fn open_image(
    path: &Path,
    remote: Option<&dyn BlobSource>,
) -> Result<LayeredDevice, ImageError> {
    open_image_from(path, remote, &Start::default())
}

/// Opens an image like [`open_image`], with the plan of its start, and records its reads if requested.
///
/// # Errors
/// As [`open_image`].
pub fn open_image_from(
    path: &Path,
    remote: Option<&dyn BlobSource>,
    start: &Start,
) -> Result<LayeredDevice, ImageError> {
    let (config, path) = DeviceConfig::read(path)?;
    let base = path.parent().unwrap_or(Path::new("."));
    let began = start.began.unwrap_or_else(Instant::now);
    // All that has to be fetched before the device is there.
    let _opening = Reading::begun(began, Some(Arc::clone(&start.ending)));
    let layers = started_layers(&config, &path, remote, start)?;
    let device = match config.writable() {
        Some(upper) => LayeredDevice::writable(OwnedUpper::open(upper, base, layers)?)?,
        None => LayeredDevice::new(Stack::of_shared(layers).map_err(ImageError::Stack)?),
    };
    Ok(device.ended_by(Arc::clone(&start.ending)))
}

/// Opens the sealed layers of an image as one.
pub(crate) fn open_lowers(
    config: &DeviceConfig,
    path: &Path,
    remote: Option<&dyn BlobSource>,
) -> Result<Stack, ImageError> {
    Stack::of_shared(lower_layers(config, path, remote)?).map_err(ImageError::Stack)
}

/// Opens the sealed layers of the image that has this configuration at `path`, from the bottom.
pub(crate) fn lower_layers(
    config: &DeviceConfig,
    path: &Path,
    remote: Option<&dyn BlobSource>,
) -> Result<Vec<Arc<Layer>>, ImageError> {
    started_layers(config, path, remote, &Start::default())
}

fn started_layers(
    config: &DeviceConfig,
    path: &Path,
    remote: Option<&dyn BlobSource>,
    start: &Start,
) -> Result<Vec<Arc<Layer>>, ImageError> {
    let base = path.parent().unwrap_or(Path::new("."));
    let budget = SegmentBudget::default();
    let mut elsewhere = Vec::new();
    let mut layers = Vec::new();
    for (number, lower) in (0..).zip(&config.lowers) {
        if lower.is_turbo() {
            let from = (remote, start, &budget);
            let opened = open_turbo_layer(number, lower, base, &config.repo_blob_url, from);
            layers.push(Some(opened?));
            continue;
        }
        match lower.place(base) {
            Place::Local(path) => layers.push(Some(local_layer(number, &path, start, &budget)?)),
            Place::Remote { digest, .. } if digest.is_empty() => {
                let rule = "a layer has neither a file nor a digest";
                let path = path.to_owned();
                return Err(ImageError::Rule { path, rule });
            }
            Place::Remote { digest, size } => {
                layers.push(None);
                elsewhere.push(RemoteLayer {
                    number,
                    digest,
                    size,
                    content: lower.content,
                });
            }
        }
    }
    if let Some(first) = elsewhere.first() {
        let remote = remote.ok_or_else(|| ImageError::Remote {
            digest: first.digest.clone(),
        })?;
        let opened = remote.open(&config.repo_blob_url, &elsewhere, start, &budget)?;
        let missing = layers.iter_mut().filter(|layer| layer.is_none());
        for (place, layer) in missing.zip(opened) {
            *place = Some(layer);
        }
    }
    Ok(layers.into_iter().flatten().map(Arc::new).collect())
}

/// The uncompressed content of a layer.
#[derive(Clone)]
pub struct OpenedContent {
    /// The digest of its blob.
    pub digest: Digest,
    /// The content.
    pub content: Arc<dyn ReadAt>,
}

impl std::fmt::Debug for OpenedContent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenedContent")
            .field("digest", &self.digest)
            .finish_non_exhaustive()
    }
}

/// Opens the uncompressed contents of an image's sealed layers that have a digest, and their data in their own blob; those
/// that are not on this machine are left out if there is no `remote` source.
///
/// # Errors
/// As [`open_image`].
pub fn open_contents(
    path: &Path,
    remote: Option<&dyn BlobSource>,
) -> Result<Vec<OpenedContent>, ImageError> {
    let (config, path) = DeviceConfig::read(path)?;
    let base = path.parent().unwrap_or(Path::new("."));
    let mut contents = Vec::new();
    for (number, lower) in (0..).zip(&config.lowers) {
        let digest = lower.digest.parse::<Digest>().ok();
        let Some(digest) = digest.filter(|_| !lower.is_turbo()) else {
            continue;
        };
        let (blob, name): (Arc<dyn ReadAt>, _) = match (lower.place(base), remote) {
            (Place::Local(path), _) => {
                let opened = disk_file::open(&path).map_err(file("opening the layer", &path))?;
                (
                    Arc::new(FileStorage::new(opened)),
                    path.display().to_string(),
                )
            }
            (Place::Remote { digest, size }, Some(remote)) => {
                let layer = RemoteLayer {
                    number,
                    digest,
                    size,
                    content: None,
                };
                let start = Start::default();
                let blob = remote.blob(&config.repo_blob_url, &layer, start.of_layer(number))?;
                (blob, layer.digest)
            }
            (Place::Remote { .. }, None) => continue,
        };
        let content = lsmt::open_content(blob).map_err(|source| ImageError::Layer {
            number: number as usize + 1,
            name,
            source,
        })?;
        contents.push(OpenedContent { digest, content });
    }
    Ok(contents)
}

/// Opens a layer of this machine; `number` is its place, from the bottom.
fn local_layer(
    number: u32,
    path: &Path,
    start: &Start,
    budget: &SegmentBudget,
) -> Result<Layer, ImageError> {
    let opened = disk_file::open(path).map_err(file("opening the layer", path))?;
    let content = lsmt::open_content(Arc::new(FileStorage::new(opened)));
    let start = start.of_layer(number);
    let layer = content.and_then(|content| Layer::open_within(start.watched(content), budget));
    layer.map_err(|source| ImageError::Layer {
        number: number as usize + 1,
        name: path.display().to_string(),
        source,
    })
}
