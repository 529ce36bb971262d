//! What lies in Docker's directory: images, and the directories of their layers.
//!
//! Docker need not run for that, and need not be asked each time something changes. The layout is
//! as old as Docker 1.10: `image/overlay2/imagedb/content/sha256/<image>` is the configuration of
//! an image, and `image/overlay2/layerdb/sha256/<chain>/cache-id` names the directory of a layer
//! in `overlay2`. A *chain* ID is the digest of a layer and of all below it, because Docker keeps
//! a layer once for each stack that it is part of.

use std::fs::{self, File};
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context as _, ensure};
use blocks::Digest;
use engine::ConfigFile;

/// Most bytes of an image's configuration; containerd has the same limit for what it pulls.
const CONFIG_MAX: u64 = 8 << 20;
/// Most bytes in the name of a layer's directory: 64 digits, or 71 characters of old.
const CACHE_ID_MAX: u64 = 256;
/// Most images that are looked at.
const IMAGES_MAX: usize = 10_000;

/// Docker's directory.
#[derive(Clone, Debug)]
pub struct DataRoot(PathBuf);

/// An image in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootImage {
    /// Docker's image ID.
    pub id: Digest,
    /// Its layers, the lowest first.
    pub layers: Vec<RootLayer>,
}

/// A layer in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootLayer {
    /// The digest of its content.
    pub diff_id: Digest,
    /// The digest of it and all below.
    pub chain: Digest,
    /// The directory with its files.
    pub dir: PathBuf,
}

/// When something was added or removed last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stamp([Option<SystemTime>; 2]);

impl DataRoot {
    /// Looks at Docker's directory at a path.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self(dir.into())
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    fn image_db(&self) -> PathBuf {
        self.0.join("image/overlay2/imagedb/content/sha256")
    }

    fn layer_db(&self) -> PathBuf {
        self.0.join("image/overlay2/layerdb/sha256")
    }

    /// Returns a stamp that differs from an earlier one if images or layers came or went since.
    pub fn stamp(&self) -> Stamp {
        let changed = |dir: PathBuf| fs::metadata(dir).and_then(|meta| meta.modified()).ok();
        Stamp([changed(self.image_db()), changed(self.layer_db())])
    }

    /// Returns all images. One that is half there, because Docker is adding or removing it, is
    /// left out.
    ///
    /// # Errors
    /// If the directory of the images cannot be read, unless there is none yet.
    pub fn images(&self) -> anyhow::Result<Vec<RootImage>> {
        let dir = self.image_db();
        let entries = match fs::read_dir(&dir) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.with_context(|| format!("reading {}", dir.display()))?,
        };
        let names = entries.flatten().map(|entry| entry.file_name());
        let ids = names.filter_map(|name| format!("sha256:{}", name.to_str()?).parse().ok());
        let mut images = Vec::new();
        for id in ids.take(IMAGES_MAX) {
            match self.image(id) {
                Ok(image) => images.push(image),
                Err(error) => log::debug!("image {} is left out: {error:#}", id.short()),
            }
        }
        images.sort_by_key(|image| image.id);
        Ok(images)
    }

    fn image(&self, id: Digest) -> anyhow::Result<RootImage> {
        let config = read(&self.image_db().join(id.hex()), CONFIG_MAX)?;
        let config: ConfigFile = serde_json::from_slice(&config).context("reading its JSON")?;
        let mut layers: Vec<RootLayer> = Vec::new();
        for diff_id in config.rootfs.diff_ids {
            let chain = match layers.last() {
                None => diff_id,
                Some(below) => chain_of(&below.chain, &diff_id),
            };
            let dir = self.layer_dir(&chain)?;
            layers.push(RootLayer {
                diff_id,
                chain,
                dir,
            });
        }
        Ok(RootImage { id, layers })
    }

    /// Returns the directory of a layer's files.
    fn layer_dir(&self, chain: &Digest) -> anyhow::Result<PathBuf> {
        let path = self.layer_db().join(chain.hex()).join("cache-id");
        let name = read(&path, CACHE_ID_MAX)?;
        let name = String::from_utf8(name).context("reading the name of a layer's directory")?;
        let name = name.trim();
        ensure!(
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric()),
            "{name:?} is not a layer directory"
        );
        Ok(self.0.join("overlay2").join(name).join("diff"))
    }

    /// Returns whether Docker still has the layer there. Docker takes a layer out of its records
    /// before it touches the directory, so a layer that is found is not being removed.
    pub fn has(&self, layer: &RootLayer) -> bool {
        self.layer_dir(&layer.chain)
            .is_ok_and(|dir| dir == layer.dir)
    }
}

/// Returns the chain ID of a layer on top of others (OCI image specification, `ChainID`).
fn chain_of(below: &Digest, diff_id: &Digest) -> Digest {
    oci::digest_of(format!("{below} {diff_id}").as_bytes())
}

fn read(path: &Path, limit: u64) -> anyhow::Result<Vec<u8>> {
    let reading = || format!("reading {}", path.display());
    let file = File::open(path).with_context(reading)?;
    let mut bytes = Vec::new();
    file.take(limit + 1)
        .read_to_end(&mut bytes)
        .with_context(reading)?;
    ensure!(
        bytes.len() as u64 <= limit,
        "{} has more than {limit} bytes",
        path.display()
    );
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: PathBuf, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn images_and_their_layers_are_found_without_docker() {
        let dir = tempfile::tempdir().unwrap();
        let root = DataRoot::new(dir.path());
        assert_eq!(root.images().unwrap(), []);
        let (below, above) = (Digest([1; 32]), Digest([2; 32]));
        let chain = chain_of(&below, &above);
        write(root.layer_db().join(below.hex()).join("cache-id"), "abc\n");
        let (image, half) = (Digest([9; 32]), Digest([8; 32]));
        let config = serde_json::json!({"rootfs": {"type": "layers", "diff_ids": [below, above]}});
        write(root.image_db().join(image.hex()), &config.to_string());
        write(root.image_db().join(half.hex()), "{");
        let before = root.stamp();
        assert_eq!(root.images().unwrap(), [], "a layer of it is not there yet");
        write(root.layer_db().join(chain.hex()).join("cache-id"), "def");
        assert_ne!(root.stamp(), before);
        let images = root.images().unwrap();
        assert_eq!(images.len(), 1);
        assert_eq!(images[0].id, image);
        let top = &images[0].layers[1];
        assert_eq!(top.dir, dir.path().join("overlay2/def/diff"));
        assert!(root.has(top));
        // What Docker does first when it removes a layer.
        let chain_dir = root.layer_db().join(chain.hex());
        fs::rename(&chain_dir, root.layer_db().join("x-removing")).unwrap();
        assert!(!root.has(top));
    }

    #[test]
    fn no_name_leads_out_of_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let root = DataRoot::new(dir.path());
        let layer = Digest([1; 32]);
        let path = root.layer_db().join(layer.hex()).join("cache-id");
        for bad in ["../../etc", "", "a/b", "."] {
            write(path.clone(), bad);
            assert!(root.layer_dir(&layer).is_err(), "{bad:?}");
        }
        write(path, &"a".repeat(300));
        assert!(root.layer_dir(&layer).is_err());
    }
}
