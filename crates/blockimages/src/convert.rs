//! Makes block images of container images, layer by layer, without root and without devices.
//!
//! The device of a converted image is an EROFS or an ext4. Each layer appends the data of its files and the metadata of all
//! that is to be seen so far, and replaces the superblock: data of lower layers stays where it is. So a
//! layer's blob depends on nothing but the layers up to it and the options, and is made once for all images
//! that share them (docs/block-image-format.md).

mod annotations;
mod base;
mod chain;
mod content;
mod disk;
mod error;
mod filesystem;
mod layer;
mod layout;
mod push;
mod registry;
mod stacked;
mod turbo;

use std::path::{Path, PathBuf};

use blocks::Digest;
use lsmt::{BlobOptions, Compression, Wrapper};
use oci::LayerBlob;

pub use annotations::CONTENT_ROOT;
pub use base::BaseImage;
pub use chain::chain_id;
pub use content::content_of;
pub use disk::{ConvertedDisk, convert_disk, is_qcow2};
pub use error::ConvertError;
pub use filesystem::FileSystem;
pub(crate) use layout::write as write_file;
pub use lsmt::{Codec, ZFileOptions};
pub use push::{Pushed, push};
pub use registry::{RegistryImage, data_of};
pub use stacked::{Arrival, ArrivedBlob, LayersFrom, NewLayer, StackPushed, StackedImage};
pub use turbo::StoredLayer;

use crate::turbo::GZIP_INDEX;
use crate::{ContentRoot, DeviceConfig, LowerConfig};
use layer::{Below, LayerTask};
use layout::{ChainRecord, Layout, MadeLayer};

/// Where the data of a converted image is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DataPlace {
    /// In its blobs.
    #[default]
    Copied,
    /// In the layers of the container image, to which the blobs refer: turboOCI.
    Referred,
}

/// Options of a conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvertOptions {
    /// The file system of the device of a container image.
    pub file_system: FileSystem,
    /// Where the data of files is.
    pub data: DataPlace,
    /// How the blocks of blobs are compressed.
    pub compression: ZFileOptions,
    /// Bytes of the device: more than any image needs, since all layers of an image have to agree. Unused
    /// space takes none on the disk.
    pub virtual_size: u64,
}

impl Default for ConvertOptions {
    fn default() -> Self {
        Self {
            file_system: FileSystem::default(),
            data: DataPlace::default(),
            compression: ZFileOptions::default(),
            // What overlaybd's convertor takes.
            virtual_size: 64 << 30,
        }
    }
}

impl ConvertOptions {
    /// Returns how blobs are written: compressed, in the tar that registries see.
    #[must_use]
    pub const fn blob(&self) -> BlobOptions {
        BlobOptions {
            compression: Compression::ZFile(self.compression),
            wrapper: match self.data {
                DataPlace::Copied => Wrapper::Tar,
                // It is a file of a tar.
                DataPlace::Referred => Wrapper::None,
            },
        }
    }
}

/// An image that is to be converted, wherever it is.
pub trait SourceImage {
    /// Returns its configuration as it is written.
    fn config(&self) -> &[u8];

    /// Returns the digests of its uncompressed layers, the lowest first.
    fn diff_ids(&self) -> &[Digest];

    /// Returns a layer, which may have to be fetched: into the directory `scratch`, which is empty, and
    /// removed when the layer is converted.
    ///
    /// # Errors
    /// If it cannot be fetched, or the watch cancels.
    fn layer(
        &self,
        number: usize,
        scratch: &Path,
        watch: oci::Watch<'_>,
    ) -> Result<LayerBlob, ConvertError>;

    /// Returns a layer as the image has it.
    ///
    /// # Errors
    /// If it is not stored as a whole.
    fn stored(&self, number: usize) -> Result<StoredLayer, ConvertError>;

    /// Returns the address of its layers, as overlaybd's configurations have it; empty if they are on this
    /// machine.
    fn blob_url(&self) -> &str {
        ""
    }
}

impl SourceImage for oci::Image {
    fn config(&self) -> &[u8] {
        &self.config_bytes
    }

    fn diff_ids(&self) -> &[Digest] {
        &self.config.diff_ids
    }

    fn layer(&self, number: usize, _: &Path, _: oci::Watch<'_>) -> Result<LayerBlob, ConvertError> {
        Ok(self.layers[number].clone())
    }

    fn stored(&self, number: usize) -> Result<StoredLayer, ConvertError> {
        let layer = &self.layers[number];
        let rule = "its layers are no files of their own, which turboOCI refers to: use an OCI layout or a registry";
        let stored = layer.stored_digest().zip(layer.file());
        let (digest, file) = stored.ok_or(ConvertError::Rule { rule })?;
        Ok(StoredLayer {
            digest,
            size: layer.size(),
            media_type: layer.media_type.clone(),
            file: Some(file.into()),
        })
    }
}

/// An image that was converted.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Converted {
    /// The digest of its manifest.
    pub manifest: Digest,
    /// Its configuration for serving the device.
    pub config: PathBuf,
    /// Its layers, the lowest first.
    pub layers: Vec<ConvertedLayer>,
}

/// One of its layers.
#[derive(Clone, Debug, serde::Serialize)]
pub struct ConvertedLayer {
    /// The digest of the layers up to this one, as OCI defines it.
    pub chain_id: Digest,
    /// The digest of the blob.
    pub digest: Digest,
    /// Its bytes.
    pub size: u64,
    /// Whether the layout had it already.
    pub reused: bool,
    /// The layer that has its data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<Digest>,
    #[serde(skip)]
    content: Option<ContentRoot>,
    #[serde(skip)]
    turbo: Option<TurboLayer>,
}

/// What else there is to a layer whose data is elsewhere.
#[derive(Clone, Debug)]
struct TurboLayer {
    /// The digest of the uncompressed tar of its metadata.
    diff_id: Digest,
    stored: StoredLayer,
    /// Whether the layer is compressed.
    has_index: bool,
}

/// Converts an image into the layout in `dir`, which is created if missing, under the name `name`. Layers of an image that
/// was converted there may be below others, which are the changes of a container: these become layers on top of them.
/// The watch receives how many bytes of layers were read.
///
/// # Errors
/// If a layer does not match its digest or breaks a rule, if the device is too small, if another process
/// changes the layout, or if the watch cancels.
pub fn convert(
    image: &dyn SourceImage,
    dir: &Path,
    name: &str,
    options: &ConvertOptions,
    watch: oci::Watch<'_>,
) -> Result<Converted, ConvertError> {
    let layout = Layout::open(dir, name)?;
    let mut below = Below::default();
    let mut layers = Vec::new();
    let mut chain: Option<Digest> = None;
    // As the converted image names it.
    let mut block_chain: Option<Digest> = None;
    for (number, diff_id) in image.diff_ids().iter().enumerate() {
        let parent = chain;
        let this = chain_id(parent, *diff_id);
        chain = Some(this);
        let stored = match options.data {
            DataPlace::Copied => None,
            DataPlace::Referred => Some(image.stored(number)?),
        };
        let known = layout.record(this, options);
        let (record, reused) = match known.and_then(|known| layout.complete(this, options, known)) {
            Some(record) => (record, true),
            None => {
                let task = LayerTask {
                    chain_id: this,
                    parent,
                    options,
                };
                let scratch = layout.scratch()?;
                let blob = image.layer(number, &scratch.0, &mut *watch)?;
                let record = make(&layout, &task, &blob, &below, &mut *watch)?;
                layout.keep(this, options, &record)?;
                (record, false)
            }
        };
        if options.data == DataPlace::Copied {
            // Layers that somebody stacks on the converted image are converted on top of what was made here.
            let converted = chain_id(block_chain, record.blob.digest);
            layout.keep_too(converted, options, &record)?;
            block_chain = Some(converted);
        }
        let turbo = stored.zip(record.diff_id);
        let turbo = turbo.map(|(stored, diff_id)| TurboLayer {
            diff_id,
            stored,
            has_index: layout.has_gzip_index(record.blob.digest),
        });
        layers.push(ConvertedLayer {
            chain_id: this,
            digest: record.blob.digest,
            size: record.blob.size,
            reused,
            target: turbo.as_ref().map(|turbo| turbo.stored.digest),
            content: record.content,
            turbo,
        });
        below.add(record.layer);
    }
    let manifest = layout.write_image(image.config(), &layers, options)?;
    let config = layout.write_config(&DeviceConfig {
        repo_blob_url: image.blob_url().to_owned(),
        lowers: layers
            .iter()
            .map(|layer| layer.lower(options.file_system))
            .collect(),
        ..DeviceConfig::default()
    })?;
    Ok(Converted {
        manifest,
        config,
        layers,
    })
}

impl ConvertedLayer {
    /// Returns its part of a configuration in the directory of the image.
    fn lower(&self, file_system: FileSystem) -> LowerConfig {
        let hex = self.digest.hex();
        let Some(turbo) = &self.turbo else {
            return LowerConfig {
                file: format!("../blobs/sha256/{hex}"),
                digest: self.digest.to_string(),
                size: self.size,
                content: self.content,
                ..LowerConfig::default()
            };
        };
        let TurboLayer { stored, .. } = turbo;
        let name = file_system.metadata_name();
        LowerConfig {
            file: format!("../turbo/{hex}/{name}"),
            gzip_index: match turbo.has_index {
                true => format!("../turbo/{hex}/{GZIP_INDEX}"),
                false => String::new(),
            },
            size: if turbo.has_index { 0 } else { stored.size },
            target_digest: stored.digest.to_string(),
            target_file: match &stored.file {
                Some(file) => file.display().to_string(),
                None => String::new(),
            },
            ..LowerConfig::default()
        }
    }
}

/// Converts one layer, and puts its blob into the layout.
fn make(
    layout: &Layout,
    task: &LayerTask<'_>,
    layer: &LayerBlob,
    below: &Below,
    watch: oci::Watch<'_>,
) -> Result<ChainRecord, ConvertError> {
    if task.options.data == DataPlace::Referred {
        return turbo::make(layout, task, layer, below, watch);
    }
    let incoming = layout.new_blob()?;
    let layer: MadeLayer = task.write(layer, below, incoming.storage(), watch)?;
    let (blob, content) = incoming.publish()?;
    Ok(ChainRecord {
        layer,
        blob,
        content: Some(content),
        diff_id: None,
    })
}
