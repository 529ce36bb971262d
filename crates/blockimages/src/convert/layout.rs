//! The directory of converted images: an OCI layout, a configuration for each image, and the records
//! of the layers (docs/block-image-format.md).

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use blocks::{Digest, Tree};
use lsmt::{Codec, FileStorage};
use nix::fcntl::{Flock, FlockArg};
use oci::{Descriptor, Index, Manifest, OCI_CONFIG, OCI_INDEX, OCI_MANIFEST};
use rawio::{private, regular, trusted};
use serde::{Deserialize, Serialize};

use super::annotations::{
    BLOB_DIGEST, BLOB_FS_TYPE, BLOB_SIZE, CONTENT_ROOT, TARGET_DIGEST, TARGET_MEDIA_TYPE, VERSION,
};
use super::content::content_of_file;
use super::{ConvertError, ConvertOptions, ConvertedLayer, DataPlace, FileSystem, TurboLayer};
use crate::error::file;
use crate::turbo::GZIP_INDEX;
use crate::{CONFIG_NAME, ContentRoot, DeviceConfig, ImageError};

/// A blob is a tar of its own, which nothing compresses.
const OCI_LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
/// A tar of turboOCI metadata.
const OCI_LAYER_GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
/// Where turboOCI metadata are, each in a directory of its digest.
const TURBO: &str = "turbo";
const REF_NAME: &str = "org.opencontainers.image.ref.name";

/// Where layers of registries are while they are converted.
const INCOMING: &str = ".incoming";

/// The versions of overlaybd's layers.
const VERSION_OF_DATA: &str = "0.1.0";
const VERSION_OF_METADATA: &str = "0.1.0-turbo.ociv1";

/// Documents are small; an index of thousands of images has some hundred kilobytes.
const DOCUMENT_MAX: u64 = 64 << 20;

/// The data of a layer that the layers above need.
#[derive(Debug)]
pub(super) struct MadeLayer {
    pub(super) tree: Tree,
    /// The first block of each regular file, in the order of the tree.
    pub(super) places: Vec<u32>,
    /// The first block behind it.
    pub(super) end_block: u32,
}

/// A blob of the layout.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Blob {
    pub(super) digest: Digest,
    pub(super) size: u64,
}

/// A layer that was converted before.
#[derive(Debug)]
pub(super) struct ChainRecord {
    pub(super) layer: MadeLayer,
    pub(super) blob: Blob,
    /// The root of its content, unless it is turboOCI metadata.
    pub(super) content: Option<ContentRoot>,
    /// Of turboOCI metadata, the digest of the uncompressed tar.
    pub(super) diff_id: Option<Digest>,
}

/// A record as it is written; its tree is a file of its own.
#[derive(Serialize, Deserialize)]
struct Written {
    version: u32,
    blob: Blob,
    tree: Blob,
    places: Vec<u32>,
    end_block: u32,
    /// Missing in older records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    content: Option<ContentRoot>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    diff_id: Option<Digest>,
}

/// Version of [`Written`], and of everything that decides what is in a blob.
const RECORD_VERSION: u32 = 1;

/// A layout that this process may change.
#[derive(Debug)]
pub(super) struct Layout {
    dir: PathBuf,
    name: String,
    _lock: Flock<File>,
}

impl Layout {
    pub(super) fn open(dir: &Path, name: &str) -> Result<Self, ConvertError> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let taken = ["blobs", "chains", TURBO].contains(&name) || name.starts_with('.');
        if name.is_empty() || taken || !name.bytes().all(fits) {
            return Err(ConvertError::Name {
                name: name.chars().take(80).collect(),
            });
        }
        fs::create_dir_all(dir).map_err(file("making the layout", dir))?;
        trusted::expect_own(dir).map_err(file("writing to", dir))?;
        for part in ["blobs/sha256", "chains", name] {
            let part = dir.join(part);
            fs::create_dir_all(&part).map_err(file("making the layout", part))?;
        }
        let lock = dir.join(".lock");
        let opened = private::open_or_create(&lock).map_err(file("opening", &lock))?;
        let locked = Flock::lock(opened, FlockArg::LockExclusiveNonblock);
        let this = Self {
            dir: dir.into(),
            name: name.to_owned(),
            _lock: locked.map_err(|_| ConvertError::InUse(dir.into()))?,
        };
        let mark = dir.join("oci-layout");
        if !mark.exists() {
            write(&mark, br#"{"imageLayoutVersion":"1.0.0"}"#)?;
        }
        this.remove_unfinished();
        Ok(this)
    }

    /// Removes what a process left unfinished that was killed.
    fn remove_unfinished(&self) {
        let path = |name| self.dir.join(name);
        let files =
            [path("blobs/sha256/.new"), path(".raw")].map(|path| (fs::remove_file(&path), path));
        let dir = (fs::remove_dir_all(path(INCOMING)), path(INCOMING));
        for (removed, path) in files.into_iter().chain([dir]) {
            if let Err(error) = removed
                && error.kind() != std::io::ErrorKind::NotFound
            {
                log::warn!("cannot remove {}: {error}", path.display());
            }
        }
    }

    pub(super) fn blob_path(&self, digest: Digest) -> PathBuf {
        blob_path(&self.dir, digest)
    }

    fn record_path(&self, chain: Digest, options: &ConvertOptions) -> PathBuf {
        let codec = match options.compression.codec {
            Codec::Lz4 => "lz4",
            Codec::Zstd => "zstd",
        };
        let (block, size) = (options.compression.block_size, options.virtual_size);
        let fs = match options.file_system {
            // Records are older than the choice.
            FileSystem::Erofs => "",
            FileSystem::Ext4 => "-ext4",
        };
        let data = match options.data {
            DataPlace::Copied => "",
            DataPlace::Referred => "-turbo",
        };
        let name = format!("{}-{codec}-{block}-{size}{fs}{data}.json", chain.hex());
        self.dir.join("chains").join(name)
    }

    /// Returns the record of a layer; `None` if one of its files is missing.
    pub(super) fn record(&self, chain: Digest, options: &ConvertOptions) -> Option<ChainRecord> {
        let path = self.record_path(chain, options);
        let written: Written = serde_json::from_slice(&read(&path).ok()?).ok()?;
        let size = fs::metadata(self.blob_path(written.blob.digest))
            .ok()?
            .len();
        let tree = read(&self.blob_path(written.tree.digest)).ok()?;
        let dir = self.turbo_dir(written.blob.digest);
        let unpacked = options.data == DataPlace::Copied
            || dir.join(options.file_system.metadata_name()).exists();
        let whole = unpacked
            && written.version == RECORD_VERSION
            && size == written.blob.size
            && oci::digest_of(&tree) == written.tree.digest;
        let layer = MadeLayer {
            tree: Tree::decode(&tree).ok()?,
            places: written.places,
            end_block: written.end_block,
        };
        whole.then_some(ChainRecord {
            layer,
            blob: written.blob,
            content: written.content,
            diff_id: written.diff_id,
        })
    }

    /// Adds the root of its content to a record that an older version wrote; `None` if its blob is not what it was.
    pub(super) fn complete(
        &self,
        chain: Digest,
        options: &ConvertOptions,
        mut record: ChainRecord,
    ) -> Option<ChainRecord> {
        if options.data == DataPlace::Copied && record.content.is_none() {
            let layer = record.blob.digest;
            let read = summed(&self.blob_path(layer));
            let added = read.and_then(|(found, content)| {
                record.content = Some(content);
                match found.digest == layer {
                    true => self.keep(chain, options, &record),
                    false => Err(ConvertError::OtherLayer {
                        path: self.blob_path(layer),
                        found: found.digest,
                    }),
                }
            });
            if let Err(error) = added {
                log::warn!("the layer {layer} is made again: {error}");
                return None;
            }
        }
        Some(record)
    }

    /// Stores the record of a layer.
    pub(super) fn keep(
        &self,
        chain: Digest,
        options: &ConvertOptions,
        record: &ChainRecord,
    ) -> Result<(), ConvertError> {
        let written = Written {
            version: RECORD_VERSION,
            blob: record.blob,
            tree: self.write_blob(&record.layer.tree.encode())?,
            places: record.layer.places.clone(),
            end_block: record.layer.end_block,
            content: record.content,
            diff_id: record.diff_id,
        };
        let bytes = serde_json::to_vec(&written)?;
        Ok(write(&self.record_path(chain, options), &bytes)?)
    }

    /// Stores the record of a layer under another chain ID of it, unless it is there.
    pub(super) fn keep_too(
        &self,
        chain: Digest,
        options: &ConvertOptions,
        record: &ChainRecord,
    ) -> Result<(), ConvertError> {
        match self.record_path(chain, options).exists() {
            true => Ok(()),
            false => self.keep(chain, options, record),
        }
    }

    /// Makes the directory where a layer may be fetched to.
    pub(super) fn scratch(&self) -> Result<Scratch, ConvertError> {
        let path = self.dir.join(INCOMING);
        fs::create_dir_all(&path).map_err(file("making", &path))?;
        Ok(Scratch(path))
    }

    /// Begins a blob.
    pub(super) fn new_blob(&self) -> Result<Incoming, ConvertError> {
        let path = self.dir.join("blobs/sha256/.new");
        let mut options = File::options();
        let options = options.read(true).write(true).create(true).truncate(true);
        let opened = options.open(&path).map_err(file("making", &path))?;
        Ok(Incoming {
            dir: self.dir.clone(),
            storage: FileStorage::new(opened),
            path,
        })
    }

    fn turbo_dir(&self, digest: Digest) -> PathBuf {
        self.dir.join(TURBO).join(digest.hex())
    }

    /// Returns whether turboOCI metadata are of a layer that is compressed.
    pub(super) fn has_gzip_index(&self, digest: Digest) -> bool {
        self.turbo_dir(digest).join(GZIP_INDEX).exists()
    }

    /// Stores turboOCI metadata for who serves the image.
    pub(super) fn write_turbo(
        &self,
        digest: Digest,
        files: &[(String, Vec<u8>)],
    ) -> Result<(), ConvertError> {
        let dir = self.turbo_dir(digest);
        fs::create_dir_all(&dir).map_err(file("making", &dir))?;
        // What a record looks for comes last.
        for (name, bytes) in files.iter().rev() {
            write(&dir.join(name), bytes)?;
        }
        Ok(())
    }

    pub(super) fn write_blob(&self, bytes: &[u8]) -> Result<Blob, ImageError> {
        let digest = oci::digest_of(bytes);
        write(&self.blob_path(digest), bytes)?;
        let size = bytes.len() as u64;
        Ok(Blob { digest, size })
    }

    /// Writes configuration and manifest of an image of these layers, and lists it.
    pub(super) fn write_image(
        &self,
        config: &[u8],
        layers: &[ConvertedLayer],
        options: &ConvertOptions,
    ) -> Result<Digest, ConvertError> {
        let mut config: serde_json::Value = serde_json::from_slice(config)?;
        let digests: Vec<_> = layers
            .iter()
            .map(|layer| layer.diff_id().to_string().into())
            .collect();
        config["rootfs"]["diff_ids"] = serde_json::Value::Array(digests);
        let config = self.write_blob(&serde_json::to_vec(&config)?)?;
        let manifest = Manifest {
            schema_version: 2,
            media_type: OCI_MANIFEST.to_owned(),
            artifact_type: None,
            config: Descriptor::new(OCI_CONFIG, config.digest, config.size),
            layers: layers
                .iter()
                .map(|layer| descriptor(layer, options.file_system))
                .collect(),
            subject: None,
            annotations: std::collections::BTreeMap::new(),
        };
        let manifest = self.write_blob(&serde_json::to_vec(&manifest)?)?;
        self.list(manifest)?;
        Ok(manifest.digest)
    }

    /// Adds a manifest to the index, in the place of what had its name.
    fn list(&self, manifest: Blob) -> Result<(), ConvertError> {
        let path = self.dir.join("index.json");
        let mut index = match path.exists() {
            true => Index::decode(&read(&path)?)?,
            false => Index {
                schema_version: 2,
                media_type: OCI_INDEX.to_owned(),
                manifests: Vec::new(),
            },
        };
        let named = |entry: &Descriptor| entry.annotations.get(REF_NAME) == Some(&self.name);
        index.manifests.retain(|entry| !named(entry));
        let mut entry = Descriptor::new(OCI_MANIFEST, manifest.digest, manifest.size);
        let name = self.name.clone();
        entry.annotations.insert(REF_NAME.to_owned(), name);
        index.manifests.push(entry);
        Ok(write(&path, &serde_json::to_vec(&index)?)?)
    }

    /// Writes the configuration that an export reads, and returns where it is.
    pub(super) fn write_config(&self, config: &DeviceConfig) -> Result<PathBuf, ConvertError> {
        let path = self.dir.join(&self.name).join(CONFIG_NAME);
        write(&path, &serde_json::to_vec_pretty(config)?)?;
        Ok(path)
    }
}

/// Returns the descriptor of a layer with its data, as overlaybd's snapshotter looks for it.
pub(super) fn block_layer(
    blob: (Digest, u64),
    file_system: Option<&str>,
    content: Option<ContentRoot>,
) -> Descriptor {
    let mut described = annotated(OCI_LAYER, blob, file_system, VERSION_OF_DATA);
    let root = content.map(|root| (CONTENT_ROOT.to_owned(), root.to_string()));
    described.annotations.extend(root);
    described
}

fn annotated(
    kind: &str,
    (digest, size): (Digest, u64),
    file_system: Option<&str>,
    version: &str,
) -> Descriptor {
    let mut described = Descriptor::new(kind, digest, size);
    let annotations = [
        (BLOB_DIGEST, Some(digest.to_string())),
        (BLOB_SIZE, Some(size.to_string())),
        (BLOB_FS_TYPE, file_system.map(str::to_owned)),
        (VERSION, Some(version.to_owned())),
    ];
    let annotations = annotations.into_iter();
    let annotations = annotations.filter_map(|(key, value)| Some((key.to_owned(), value?)));
    described.annotations.extend(annotations);
    described
}

fn descriptor(layer: &ConvertedLayer, file_system: FileSystem) -> Descriptor {
    let (blob, name) = ((layer.digest, layer.size), Some(file_system.name()));
    let Some(TurboLayer { stored, .. }) = &layer.turbo else {
        return block_layer(blob, name, layer.content);
    };
    let mut described = annotated(OCI_LAYER_GZIP, blob, name, VERSION_OF_METADATA);
    let (digest, kind) = (stored.digest.to_string(), stored.media_type.clone());
    let target = [(TARGET_DIGEST, digest), (TARGET_MEDIA_TYPE, kind)];
    let target = target.map(|(key, value)| (key.to_owned(), value));
    described.annotations.extend(target);
    described
}

impl ConvertedLayer {
    /// Returns what the configuration of an image calls it.
    fn diff_id(&self) -> Digest {
        self.turbo
            .as_ref()
            .map_or(self.digest, |turbo| turbo.diff_id)
    }
}

pub(super) fn blob_path(dir: &Path, digest: Digest) -> PathBuf {
    dir.join("blobs/sha256").join(digest.hex())
}

/// A blob that is being written. It is removed unless it is published.
#[derive(Debug)]
pub(super) struct Incoming {
    dir: PathBuf,
    path: PathBuf,
    storage: FileStorage,
}

impl Incoming {
    pub(super) const fn storage(&self) -> &FileStorage {
        &self.storage
    }

    /// Makes the blob durable, and gives it its name. Returns the root of its content, too.
    pub(super) fn publish(self) -> Result<(Blob, ContentRoot), ConvertError> {
        lsmt::Storage::sync(&self.storage).map_err(file("syncing", &self.path))?;
        let (blob, content) = summed(&self.path)?;
        let to = blob_path(&self.dir, blob.digest);
        fs::rename(&self.path, &to).map_err(file("naming", to))?;
        Ok((blob, content))
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        // Published, it has another name.
        let _gone = fs::remove_file(&self.path);
    }
}

/// Reads a blob: what registries call it, and the root of its content.
fn summed(path: &Path) -> Result<(Blob, ContentRoot), ConvertError> {
    let opened = File::open(path).map_err(file("opening", path))?;
    let (digest, size) = oci::digest_and_len(opened).map_err(file("reading", path))?;
    Ok((Blob { digest, size }, content_of_file(path)?))
}

/// A directory that is removed when this is dropped.
#[derive(Debug)]
pub(super) struct Scratch(pub(super) PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            log::warn!("cannot remove {}: {error}", self.0.display());
        }
    }
}

pub(super) fn read(path: &Path) -> Result<Vec<u8>, ImageError> {
    use std::io::Read as _;
    let opened = File::open(path).map_err(file("opening", path))?;
    let mut bytes = Vec::new();
    let read = opened.take(DOCUMENT_MAX).read_to_end(&mut bytes);
    read.map_err(file("reading", path))?;
    Ok(bytes)
}

/// Writes a file atomically. What is in the place of the file that is written first goes: it may be a pipe, or a link.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<(), ImageError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    let part = PathBuf::from(name);
    let mut opened = regular::create_anew(&part).map_err(file("making", &part))?;
    let written = opened.write_all(bytes).and_then(|()| opened.sync_all());
    written.map_err(file("writing", &part))?;
    fs::rename(&part, path).map_err(file("naming", path))
}
