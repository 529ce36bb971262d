//! turboOCI: only the metadata of an image are made, and refer to its layers for the data.

use std::io::Write as _;
use std::path::PathBuf;

use blocks::Digest;
use flate2::{Compression, GzBuilder};
use lsmt::MemoryStorage;
use oci::LayerBlob;

use super::ConvertError;
use super::layer::{Below, LayerTask};
use super::layout::{ChainRecord, Layout};
use crate::turbo::{GZIP_INDEX, MARKER};

const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// A layer as its image has it, to which metadata refer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredLayer {
    /// The digest of its bytes.
    pub digest: Digest,
    /// How many there are.
    pub size: u64,
    /// Its media type.
    pub media_type: String,
    /// Its file; none if it is in a registry.
    pub file: Option<PathBuf>,
}

/// Makes the metadata of a layer, and puts them into the layout.
pub(super) fn make(
    layout: &Layout,
    task: &LayerTask<'_>,
    layer: &LayerBlob,
    below: &Below,
    watch: oci::Watch<'_>,
) -> Result<ChainRecord, ConvertError> {
    let mut magic = [0; 4];
    let len = layer.open().and_then(|mut blob| blob.read(&mut magic));
    let len = len.map_err(reading)?;
    if magic == ZSTD_MAGIC {
        return Err(ConvertError::Rule {
            rule: "a layer is compressed with zstd, which turboOCI cannot refer to: convert it with its data",
        });
    }
    let storage = MemoryStorage::default();
    let made = task.write(layer, below, &storage, watch)?;
    let name = task.options.file_system.metadata_name();
    let mut files = vec![(name, storage.bytes()), (MARKER.to_owned(), Vec::new())];
    if magic[..len].starts_with(&GZIP_MAGIC) {
        let mut blob = layer.open().map_err(reading)?;
        let index = lsmt::make_gzip_index(&mut blob).map_err(reading)?;
        files.push((GZIP_INDEX.to_owned(), index));
    }
    let tar = tar_of(&files)?;
    let diff_id = oci::digest_of(&tar);
    let blob = layout.write_blob(&compressed(&tar)?)?;
    layout.write_turbo(blob.digest, &files)?;
    Ok(ChainRecord {
        layer: made,
        blob,
        content: None,
        diff_id: Some(diff_id),
    })
}

fn reading(source: std::io::Error) -> ConvertError {
    ConvertError::Turbo { source }
}

/// Makes a tar that is the same each time.
fn tar_of(files: &[(String, Vec<u8>)]) -> Result<Vec<u8>, ConvertError> {
    let mut tar = tar::Builder::new(Vec::new());
    for (name, bytes) in files {
        let mut header = tar::Header::new_ustar();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, name, &bytes[..])
            .map_err(reading)?;
    }
    tar.into_inner().map_err(reading)
}

fn compressed(bytes: &[u8]) -> Result<Vec<u8>, ConvertError> {
    // Without a time.
    let mut encoder = GzBuilder::new().write(Vec::new(), Compression::default());
    encoder.write_all(bytes).map_err(reading)?;
    encoder.finish().map_err(reading)
}
