//! Images of another image and new layers on top of it: what a container has changed, pushed without its image.
//!
//! The image below is in a registry already. Its layers are not read: the registry has them in the same repository, or
//! takes them from another one of its own. The configuration and the manifest depend on the image and the layers alone,
//! so that the same layers make the same image, whoever pushes them, and whenever.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use blocks::Digest;
use lsmt::FileStorage;
use oci::registry::{Repository, Target};
use oci::{Descriptor, ImageConfig, Manifest, OCI_CONFIG, OCI_MANIFEST};
use serde_json::{Value, json};

use super::annotations::{BLOB_DIGEST, BLOB_FS_TYPE, TARGET_DIGEST};
use super::base::BaseImage;
use super::layout::{Scratch, block_layer};
use super::{ConvertError, data_of};
use crate::ContentRoot;
use crate::error::file;

/// What the history of an image says of a layer.
const CREATED_BY: &str = "yolofs block commit";

/// A layer that is to be put on an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewLayer {
    /// Its file: a sealed layer in overlaybd's format, in its tar or without it.
    pub file: PathBuf,
    /// Its digest, if that is known.
    pub digest: Option<Digest>,
}

/// Such an image, which is to be pushed.
#[derive(Debug)]
pub struct StackedImage {
    below: Vec<Descriptor>,
    above: Vec<StackedLayer>,
    config: Vec<u8>,
    manifest: Vec<u8>,
    digest: Digest,
}

#[derive(Debug)]
struct StackedLayer {
    blob: Descriptor,
    file: PathBuf,
    tar: Option<[Vec<u8>; 2]>,
}

/// Where the layers of the image below are taken from that the repository lacks.
#[derive(Debug, Default)]
pub struct LayersFrom<'a> {
    /// Other repositories of the same registry (`library/nginx`).
    pub repositories: Vec<String>,
    /// A repository that they are pulled from, and the directory that they go to meanwhile, which must not be there.
    pub elsewhere: Option<(&'a Repository, PathBuf)>,
}

/// How a blob came to a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Arrival {
    /// It was there.
    There,
    /// The registry took it from another repository.
    Mounted,
    /// It was pulled from another registry, and pushed.
    Copied,
    /// It was pushed.
    Pushed,
    /// It is not there. Only in a dry run.
    Missing,
}

/// A blob of an image that was pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct ArrivedBlob {
    /// Its digest.
    pub digest: Digest,
    /// Its bytes.
    pub size: u64,
    /// How it came there.
    pub how: Arrival,
}

/// What a push did.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct StackPushed {
    /// The digest of the manifest.
    pub manifest: Digest,
    /// The layers, the lowest first.
    pub layers: Vec<ArrivedBlob>,
    /// How many of them are new.
    pub new_layers: usize,
    /// Bytes of blobs that were sent.
    pub bytes: u64,
}

impl StackedImage {
    /// Describes the image of `layers`, the lowest first, on `base`. They were written on the layers `below`, the lowest
    /// first, as far as their digests are known.
    ///
    /// # Errors
    /// If the image below is no block image or not the one that they were written on, or if one of them cannot be read or
    /// is no sealed layer.
    pub fn new(
        base: &BaseImage,
        below: &[Option<Digest>],
        layers: &[NewLayer],
    ) -> Result<Self, ConvertError> {
        let of_base = &base.manifest.layers;
        if !of_base
            .iter()
            .all(|layer| layer.annotations.contains_key(BLOB_DIGEST))
        {
            return Err(ConvertError::Rule {
                rule: "the image below has layers that are no block images: convert it (yolofs block convert)",
            });
        }
        check_stack(of_base, below)?;
        if layers.is_empty() {
            return Err(ConvertError::Rule {
                rule: "there is no layer above those of the image below: commit the changes first",
            });
        }
        let fs_type = of_base.last();
        let fs_type = fs_type.and_then(|layer| layer.annotations.get(BLOB_FS_TYPE));
        let opened = layers
            .iter()
            .map(|layer| StackedLayer::open(layer, fs_type.map(String::as_str)));
        let opened: Vec<_> = opened.collect::<Result<_, _>>()?;
        let config = config_of(base, &opened)?;
        let above: Vec<_> = opened.into_iter().map(|(layer, _)| layer).collect();
        let blobs = above.iter().map(|layer| layer.blob.clone());
        let manifest = Manifest {
            schema_version: 2,
            media_type: OCI_MANIFEST.to_owned(),
            artifact_type: None,
            config: described(OCI_CONFIG, &config),
            layers: of_base.iter().cloned().chain(blobs).collect(),
            subject: None,
            annotations: base.manifest.annotations.clone(),
        };
        let manifest = serde_json::to_vec(&manifest)?;
        Ok(Self {
            below: of_base.clone(),
            above,
            digest: oci::digest_of(&manifest),
            config,
            manifest,
        })
    }

    /// Returns the digest of its manifest.
    #[must_use]
    pub const fn digest(&self) -> Digest {
        self.digest
    }

    /// Returns the bytes of the new layers.
    #[must_use]
    pub fn new_bytes(&self) -> u64 {
        self.above.iter().map(|layer| layer.blob.size).sum()
    }

    /// Looks which layers a repository has.
    ///
    /// # Errors
    /// If the registry does not respond, or refuses.
    pub fn look(
        &self,
        repository: &Repository,
        watch: oci::Watch<'_>,
    ) -> Result<StackPushed, ConvertError> {
        let mut layers = Vec::new();
        let above = self.above.iter().map(|layer| &layer.blob);
        for blob in self.below.iter().chain(above) {
            let how = match repository.has_blob(blob.digest, &mut *watch)? {
                true => Arrival::There,
                false => Arrival::Missing,
            };
            layers.push(arrived(blob, how));
        }
        Ok(self.pushed(layers, 0))
    }

    /// Pushes it as `target`: first the blobs that the repository lacks, so that whoever finds the image finds its blobs. The
    /// watch receives how many bytes were sent.
    ///
    /// # Errors
    /// If a blob cannot be read, if the registry refuses it, or if the watch cancels. What was pushed until then stays, and
    /// is not sent again the next time.
    pub fn push(
        &self,
        repository: &Repository,
        target: &Target,
        from: &LayersFrom<'_>,
        watch: oci::Watch<'_>,
    ) -> Result<StackPushed, ConvertError> {
        let (mut layers, mut bytes) = (Vec::new(), 0);
        for blob in &self.below {
            let mut told = |gone| watch(bytes + gone);
            bring_data(blob, repository, from, &mut told)?;
            let how = bring(blob, repository, from, &mut told)?;
            if how == Arrival::Copied {
                bytes += blob.size;
            }
            layers.push(arrived(blob, how));
        }
        for layer in &self.above {
            let mut told = |gone| watch(bytes + gone);
            let blob = &layer.blob;
            let how = match repository.has_blob(blob.digest, &mut told)? {
                true => Arrival::There,
                false => {
                    let content = layer.content()?;
                    repository.push_blob(blob.digest, blob.size, content, &mut told)?;
                    bytes += blob.size;
                    Arrival::Pushed
                }
            };
            layers.push(arrived(blob, how));
        }
        let (config, mut told) = (described(OCI_CONFIG, &self.config), |_| watch(bytes));
        if !repository.has_blob(config.digest, &mut told)? {
            let content = io::Cursor::new(&self.config);
            repository.push_blob(config.digest, config.size, content, &mut told)?;
        }
        repository.push_image(target, &self.manifest, &mut told)?;
        Ok(self.pushed(layers, bytes))
    }

    const fn pushed(&self, layers: Vec<ArrivedBlob>, bytes: u64) -> StackPushed {
        StackPushed {
            manifest: self.digest,
            layers,
            new_layers: self.above.len(),
            bytes,
        }
    }
}

const fn arrived(blob: &Descriptor, how: Arrival) -> ArrivedBlob {
    ArrivedBlob {
        digest: blob.digest,
        size: blob.size,
        how,
    }
}

fn described(media_type: &str, bytes: &[u8]) -> Descriptor {
    Descriptor::new(media_type, oci::digest_of(bytes), bytes.len() as u64)
}

/// Fails unless layers are those of an image.
fn check_stack(of_base: &[Descriptor], below: &[Option<Digest>]) -> Result<(), ConvertError> {
    let expected: Vec<_> = of_base.iter().map(data_of).collect();
    let differs = |number: usize| {
        let found = below.get(number).copied().flatten();
        found.is_some_and(|found| found != expected[number])
    };
    let other = (0..expected.len()).find(|number| differs(*number));
    let other =
        other.or_else(|| (below.len() != expected.len()).then(|| below.len().min(expected.len())));
    match other {
        None => Ok(()),
        Some(number) => Err(ConvertError::OtherStack {
            number: number + 1,
            layers: below.len(),
            of_base: expected.len(),
        }),
    }
}

/// Brings the layer that a turboOCI layer refers to.
fn bring_data(
    layer: &Descriptor,
    repository: &Repository,
    from: &LayersFrom<'_>,
    watch: oci::Watch<'_>,
) -> Result<(), ConvertError> {
    if !layer.annotations.contains_key(TARGET_DIGEST) {
        return Ok(());
    }
    let digest = data_of(layer);
    if repository.has_blob(digest, &mut *watch)? || is_mounted(digest, repository, from, watch)? {
        return Ok(());
    }
    Err(ConvertError::NoTarget { digest })
}

fn is_mounted(
    digest: Digest,
    repository: &Repository,
    from: &LayersFrom<'_>,
    watch: oci::Watch<'_>,
) -> Result<bool, ConvertError> {
    for name in &from.repositories {
        if repository.mount_blob(digest, name, &mut *watch)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Brings a layer of the image below to a repository.
fn bring(
    blob: &Descriptor,
    repository: &Repository,
    from: &LayersFrom<'_>,
    watch: oci::Watch<'_>,
) -> Result<Arrival, ConvertError> {
    if repository.has_blob(blob.digest, &mut *watch)? {
        return Ok(Arrival::There);
    }
    if is_mounted(blob.digest, repository, from, &mut *watch)? {
        return Ok(Arrival::Mounted);
    }
    let (elsewhere, dir) = from.elsewhere.as_ref().ok_or(ConvertError::NoLayer {
        digest: blob.digest,
    })?;
    let made = std::fs::DirBuilder::new().mode(0o700).create(dir);
    made.map_err(file("making", dir))?;
    let scratch = Scratch(dir.clone());
    let path = scratch.0.join("blob");
    elsewhere.pull_blob(blob, &path, &mut |_| watch(0))?;
    let content = File::open(&path).map_err(file("opening", &path))?;
    repository.push_blob(blob.digest, blob.size, content, watch)?;
    Ok(Arrival::Copied)
}

impl StackedLayer {
    /// Opens a layer, and returns what it says of itself, too.
    fn open(layer: &NewLayer, fs_type: Option<&str>) -> Result<(Self, String), ConvertError> {
        let path = &layer.file;
        let opened = File::open(path).map_err(file("opening", path))?;
        let len = opened.metadata().map_err(file("reading", path))?.len();
        let storage = Arc::new(FileStorage::new(opened));
        let range = lsmt::blob_range(&*storage)?;
        let tar = (range == (0..len)).then(|| lsmt::tar_around(len));
        let content = lsmt::open_content(storage)?;
        let root = ContentRoot::of(&content).map_err(file("reading", path))?;
        let about = lsmt::Layer::open(content)?;
        let message = String::from_utf8_lossy(&about.info().message).into_owned();
        let mut this = Self {
            blob: Descriptor::new("", Digest([0; 32]), 0),
            file: path.clone(),
            tar,
        };
        let sum = oci::digest_and_len(this.content()?);
        let (digest, size) = sum.map_err(file("reading", path))?;
        if this.tar.is_none() && layer.digest.is_some_and(|expected| expected != digest) {
            return Err(ConvertError::OtherLayer {
                path: path.clone(),
                found: digest,
            });
        }
        this.blob = block_layer((digest, size), fs_type, Some(root));
        Ok((this, message))
    }

    /// Returns what is pushed.
    fn content(&self) -> Result<Content, ConvertError> {
        let path: &Path = &self.file;
        let opened = File::open(path).map_err(file("opening", path))?;
        let [before, behind] = self.tar.clone().unwrap_or_default();
        Ok(Content {
            len: opened.metadata().map_err(file("reading", path))?.len(),
            opened,
            before,
            behind,
            at: 0,
        })
    }
}

/// A file, perhaps in a tar that is not on the disk.
struct Content {
    opened: File,
    len: u64,
    before: Vec<u8>,
    behind: Vec<u8>,
    at: u64,
}

impl Content {
    /// Returns the bytes at a place in one of the buffers.
    fn within(bytes: &[u8], at: u64) -> &[u8] {
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        bytes.get(at..).unwrap_or_default()
    }
}

impl Read for Content {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let file_at = self.before.len() as u64;
        let file_end = file_at + self.len;
        let count = if self.at < file_at {
            Self::within(&self.before, self.at).read(buf)?
        } else if self.at < file_end {
            let left = usize::try_from(file_end - self.at).unwrap_or(usize::MAX);
            let most = buf.len().min(left);
            self.opened.read(&mut buf[..most])?
        } else {
            Self::within(&self.behind, self.at - file_end).read(buf)?
        };
        self.at += count as u64;
        Ok(count)
    }
}

impl Seek for Content {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let SeekFrom::Start(at) = to else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let within = at.saturating_sub(self.before.len() as u64);
        self.opened.seek(SeekFrom::Start(within.min(self.len)))?;
        self.at = at;
        Ok(at)
    }
}

/// Returns the configuration of an image with more layers, each with what it says of itself.
fn config_of(base: &BaseImage, layers: &[(StackedLayer, String)]) -> Result<Vec<u8>, ConvertError> {
    let known = ImageConfig::decode(&base.config)?.diff_ids.len();
    let mut config: Value = serde_json::from_slice(&base.config)?;
    if let Some(diff_ids) = config["rootfs"]["diff_ids"].as_array_mut() {
        let new = layers.iter().map(|(layer, _)| &layer.blob.digest);
        diff_ids.extend(new.map(|digest| Value::from(digest.to_string())));
    }
    let of_layers = |history: &Vec<Value>| {
        let with_layer = history
            .iter()
            .filter(|entry| entry["empty_layer"] != Value::Bool(true));
        with_layer.count() == known
    };
    // An image that tells less than all of its history would tell something wrong of the new layers.
    if let Some(history) = config["history"]
        .as_array_mut()
        .filter(|all| of_layers(all))
    {
        history.extend(layers.iter().map(|(_, message)| match message.as_str() {
            "" => json!({"created_by": CREATED_BY}),
            message => json!({"created_by": CREATED_BY, "comment": message}),
        }));
    }
    Ok(serde_json::to_vec(&config)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_in_its_tar_from_any_place() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("blob");
        let inner: Vec<u8> = (0..5000_u32).map(|n| n.to_le_bytes()[0]).collect();
        std::fs::write(&path, &inner).unwrap();
        let tar = lsmt::tar_around(5000);
        let whole = [&tar[0][..], &inner, &tar[1]].concat();
        let layer = StackedLayer {
            blob: Descriptor::new("", Digest([0; 32]), 0),
            file: path,
            tar: Some(tar),
        };
        let mut content = layer.content().unwrap();
        for at in [
            0,
            1,
            1535,
            1536,
            1537,
            6535,
            6536,
            6537,
            whole.len() as u64,
            100_000,
        ] {
            content.seek(SeekFrom::Start(at)).unwrap();
            let mut found = Vec::new();
            content.read_to_end(&mut found).unwrap();
            let from = usize::try_from(at).unwrap().min(whole.len());
            assert!(found == whole[from..], "from {at}");
        }
    }

    #[test]
    fn layers_belong_on_the_image_that_they_were_written_on() {
        let base = [1, 2].map(|byte| Descriptor::new("", Digest([byte; 32]), 1));
        let check = |below: &[Option<u8>]| {
            let below: Vec<_> = below
                .iter()
                .map(|byte| byte.map(|byte| Digest([byte; 32])))
                .collect();
            match check_stack(&base, &below) {
                Ok(()) => 0,
                Err(ConvertError::OtherStack { number, .. }) => number,
                Err(error) => panic!("{error}"),
            }
        };
        assert_eq!(check(&[Some(1), Some(2)]), 0);
        assert_eq!(check(&[Some(1), None]), 0);
        assert_eq!(check(&[Some(3), Some(2)]), 1);
        assert_eq!(check(&[Some(1), Some(1)]), 2);
        assert_eq!(check(&[Some(1)]), 2);
        assert_eq!(check(&[Some(1), Some(2), Some(3)]), 3);
    }
}
