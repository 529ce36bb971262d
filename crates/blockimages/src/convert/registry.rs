//! Images in registries: to be converted, or converted already.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use blocks::Digest;
use oci::registry::{Access, FoundManifest, RegistryConfig, Repository, Target};
use oci::{CONFIG_MAX, Descriptor, ImageConfig, LayerBlob, Manifest, Platform, Reference};

use super::annotations::{BLOB_DIGEST, BLOB_SIZE, TARGET_DIGEST};
use super::base::BaseImage;
use super::content::content_of;
use super::{ConvertError, SourceImage, StoredLayer};
use crate::error::file;
use crate::turbo::unpack;
use crate::{DeviceConfig, LowerConfig};

/// An image in a registry.
#[derive(Debug)]
pub struct RegistryImage {
    repository: Repository,
    digest: Digest,
    manifest: Manifest,
    config: Vec<u8>,
    parsed: ImageConfig,
    /// Where blobs of this repository are, as overlaybd's configurations have it.
    blob_url: String,
}

impl RegistryImage {
    /// Finds an image for this machine. Its layers are pulled one by one, when they are converted.
    ///
    /// # Errors
    /// If the registry's response is not valid, or there is no such image.
    pub fn find(
        reference: &Reference,
        config: &RegistryConfig,
        watch: oci::Watch<'_>,
    ) -> Result<Self, ConvertError> {
        let repository = Repository::open(reference, Access::Pull, config)?;
        let target = Target::of(reference);
        let found = repository.image(&target, &Platform::host(), &mut *watch)?;
        let found: Option<(FoundManifest, Manifest)> = found;
        let (found, manifest) =
            found.ok_or_else(|| ConvertError::NoImage(reference.to_string()))?;
        let config_bytes = fetch_config(&repository, &manifest.config, watch)?;
        let parsed = ImageConfig::decode(&config_bytes)?;
        parsed.expect_layers(manifest.layers.len())?;
        let scheme = match config.transport {
            oci::registry::Transport::Plain => "http",
            oci::registry::Transport::Tls => "https",
        };
        let (host, name) = (reference.registry(), reference.repository());
        Ok(Self {
            repository,
            digest: found.digest,
            manifest,
            config: config_bytes,
            parsed,
            blob_url: format!("{scheme}://{host}/v2/{name}/blobs"),
        })
    }

    /// Returns the digest of its manifest.
    #[must_use]
    pub const fn digest(&self) -> Digest {
        self.digest
    }

    /// Returns the digests of the blobs that its layers' data is in, the lowest first.
    #[must_use]
    pub fn layers(&self) -> Vec<Digest> {
        self.manifest.layers.iter().map(data_of).collect()
    }

    /// Returns its repository.
    #[must_use]
    pub const fn repository(&self) -> &Repository {
        &self.repository
    }

    /// Returns the configuration of an image that is a block image: its layers are read on demand. The metadata
    /// of turboOCI layers are fetched into `dir`, where the image is to be; without one, nothing is fetched, and
    /// the configuration cannot be used.
    ///
    /// # Errors
    /// If its layers are not in overlaybd's format, or metadata cannot be fetched.
    pub fn block_config(
        &self,
        dir: Option<&Path>,
        watch: oci::Watch<'_>,
    ) -> Result<DeviceConfig, ConvertError> {
        let mut lowers = Vec::new();
        for layer in &self.manifest.layers {
            let lower = match (layer.annotations.get(TARGET_DIGEST), dir) {
                (Some(target), Some(dir)) => {
                    Some(self.turbo_lower(layer, target, dir, &mut *watch)?)
                }
                _ => block_lower(layer),
            };
            lowers.push(lower.ok_or(ConvertError::Rule {
                rule: "its layers are no block images: convert it first (yolofs block convert)",
            })?);
        }
        Ok(DeviceConfig {
            repo_blob_url: self.blob_url.clone(),
            manifest: Some(self.digest),
            lowers,
            ..DeviceConfig::default()
        })
    }
}

impl From<RegistryImage> for BaseImage {
    fn from(image: RegistryImage) -> Self {
        Self {
            digest: image.digest,
            manifest: image.manifest,
            config: image.config,
        }
    }
}

impl RegistryImage {
    fn turbo_lower(
        &self,
        layer: &Descriptor,
        target: &str,
        dir: &Path,
        watch: oci::Watch<'_>,
    ) -> Result<LowerConfig, ConvertError> {
        let within = Path::new("turbo").join(layer.digest.hex());
        let metadata = dir.join(&within);
        fs::create_dir_all(&metadata).map_err(file("making", &metadata))?;
        rawio::trusted::expect_own(dir).map_err(file("writing to", dir))?;
        let packed = metadata.join("packed");
        self.repository.pull_blob(layer, &packed, &mut *watch)?;
        let mut lower = unpack(&packed, &metadata)?;
        if lower.gzip_index.is_empty() {
            // A plain tar: nothing else says how long it is.
            let digest = target.parse().map_err(|_| ConvertError::Rule {
                rule: "a layer refers to what is no digest",
            })?;
            let size = self.repository.blob_size(digest, watch)?;
            lower.size = size.ok_or(ConvertError::NoTarget { digest })?;
        }
        fs::remove_file(&packed).map_err(file("removing", &packed))?;
        for name in [&mut lower.file, &mut lower.gzip_index] {
            if !name.is_empty() {
                *name = within.join(&*name).display().to_string();
            }
        }
        target.clone_into(&mut lower.target_digest);
        Ok(lower)
    }
}

/// Returns the digest of the blob that a layer's data is in: of a turboOCI layer, that of the layer that it refers to.
#[must_use]
pub fn data_of(layer: &Descriptor) -> Digest {
    let target = layer.annotations.get(TARGET_DIGEST);
    let target = target.and_then(|target| target.parse().ok());
    target.unwrap_or(layer.digest)
}

/// Returns a layer that has its data.
fn block_lower(layer: &Descriptor) -> Option<LowerConfig> {
    Some(LowerConfig {
        digest: layer.annotations.get(BLOB_DIGEST)?.clone(),
        size: layer.annotations.get(BLOB_SIZE)?.parse().ok()?,
        content: content_of(layer),
        ..LowerConfig::default()
    })
}

impl SourceImage for RegistryImage {
    fn config(&self) -> &[u8] {
        &self.config
    }

    fn diff_ids(&self) -> &[Digest] {
        &self.parsed.diff_ids
    }

    fn layer(
        &self,
        number: usize,
        scratch: &Path,
        watch: oci::Watch<'_>,
    ) -> Result<LayerBlob, ConvertError> {
        let layer = &self.manifest.layers[number];
        let path = scratch.join("layer");
        self.repository.pull_blob(layer, &path, watch)?;
        let blob = LayerBlob::from_file(&path, self.parsed.diff_ids[number]);
        Ok(blob.map_err(file("opening", &path))?)
    }

    fn stored(&self, number: usize) -> Result<StoredLayer, ConvertError> {
        let layer = &self.manifest.layers[number];
        Ok(StoredLayer {
            digest: layer.digest,
            size: layer.size,
            media_type: layer.media_type.clone(),
            file: None,
        })
    }

    fn blob_url(&self) -> &str {
        &self.blob_url
    }
}

fn fetch_config(
    repository: &Repository,
    config: &Descriptor,
    watch: oci::Watch<'_>,
) -> Result<Vec<u8>, ConvertError> {
    if config.size > CONFIG_MAX {
        let rule = "its configuration has more than 8 MiB";
        return Err(ConvertError::Rule { rule });
    }
    let mut bytes = Vec::new();
    let mut take = |piece: &[u8]| {
        bytes.extend_from_slice(piece);
        ControlFlow::Continue(())
    };
    repository.stream_blob(config, &mut take, watch)?;
    Ok(bytes)
}
