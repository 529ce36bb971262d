//! Makes block images of container images, layer by layer, without root and without devices.
//!
//! The device of a converted image is an EROFS or an ext4. Each layer appends the data of its files and the metadata of all
//! that is to be seen so far, and replaces the superblock: data of lower layers stays where it is. So a
//! layer's blob depends on nothing but the layers up to it and the options, and is made once for all images
//! that share them (docs/block-image-format.md).

mod chain;
mod disk;
mod error;
mod filesystem;
mod layer;
mod layout;
mod push;
mod registry;

use std::path::{Path, PathBuf};

use blocks::Digest;
use lsmt::{BlobOptions, Compression, Wrapper};
use oci::LayerBlob;

pub use chain::chain_id;
pub use disk::{ConvertedDisk, convert_disk};
pub use error::ConvertError;
pub use filesystem::FileSystem;
pub(crate) use layout::write as write_file;
pub use lsmt::{Codec, ZFileOptions};
pub use push::{Pushed, push};
pub use registry::RegistryImage;

use crate::{DeviceConfig, LowerConfig};
use layer::{Below, LayerTask};
use layout::{ChainRecord, Layout, MadeLayer};

/// Options of a conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvertOptions {
    /// The file system of the device of a container image.
    pub file_system: FileSystem,
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
            wrapper: Wrapper::Tar,
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
}

/// Converts an image into the layout in `dir`, which is created if missing, under the name `name`.
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
    for (number, diff_id) in image.diff_ids().iter().enumerate() {
        let parent = chain;
        let this = chain_id(parent, *diff_id);
        chain = Some(this);
        let (ChainRecord { layer, blob }, reused) = match layout.record(this, options) {
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
        layers.push(ConvertedLayer {
            chain_id: this,
            digest: blob.digest,
            size: blob.size,
            reused,
        });
        below.add(layer);
    }
    let manifest = layout.write_image(image.config(), &layers, options)?;
    let lowers = layers.iter().map(|layer| LowerConfig {
        file: format!("../blobs/sha256/{}", layer.digest.hex()),
        digest: layer.digest.to_string(),
        size: layer.size,
        ..LowerConfig::default()
    });
    let config = layout.write_config(&DeviceConfig {
        repo_blob_url: String::new(),
        lowers: lowers.collect(),
        upper: None,
    })?;
    Ok(Converted {
        manifest,
        config,
        layers,
    })
}

/// Converts one layer, and puts its blob into the layout.
fn make(
    layout: &Layout,
    task: &LayerTask<'_>,
    layer: &LayerBlob,
    below: &Below,
    watch: oci::Watch<'_>,
) -> Result<ChainRecord, ConvertError> {
    let incoming = layout.new_blob()?;
    let layer: MadeLayer = task.write(layer, below, &incoming, watch)?;
    let blob = incoming.publish()?;
    Ok(ChainRecord { layer, blob })
}
