//! Docker's directory: images, and the directories of their layers.
//!
//! Docker need not run for this, and is not asked after each change. The layout is
//! as old as Docker 1.10: `image/overlay2/imagedb/content/sha256/<image>` is the configuration of
//! an image, and `image/overlay2/layerdb/sha256/<chain>/cache-id` names the directory of a layer
//! in `overlay2`. A *chain* ID is the digest of a layer and of all below it, because Docker keeps
//! a layer once for each stack that it is part of.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use blocks::Digest;
use oci::{CONFIG_MAX, ImageConfig};
use rawio::regular::{self, Links};
use serde::Deserialize;

use super::images::{Images, RootImage, RootLayer, Stamp};
use host::mount_table::{Standing, standing};

/// Most bytes in the name of a layer's directory: 64 digits, or 71 characters of old.
const CACHE_ID_MAX: u64 = 256;
/// Most bytes of the names of all images: some 200 a name.
const NAMES_MAX: u64 = 8 << 20;
/// Most images that are looked at.
const IMAGES_MAX: usize = 10_000;

/// Docker's directory.
#[derive(Clone, Debug)]
pub struct DataRoot(PathBuf);

impl DataRoot {
    /// Looks at Docker's directory at a path.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self(dir.into())
    }

    fn image_db(&self) -> PathBuf {
        self.0.join("image/overlay2/imagedb/content/sha256")
    }

    fn layer_db(&self) -> PathBuf {
        self.0.join("image/overlay2/layerdb/sha256")
    }

    /// Returns what images are called. That only people look at.
    fn names(&self) -> HashMap<Digest, String> {
        let path = self.0.join("image/overlay2/repositories.json");
        let names = read(&path, NAMES_MAX).and_then(|text| {
            let names: Repositories = serde_json::from_slice(&text)?;
            Ok(names)
        });
        let names = names.unwrap_or_else(|error| {
            log::debug!("images have no names: {error:#}");
            Repositories::default()
        });
        let tags = names.repositories.into_values().flatten();
        // A name with a digest says less.
        let (digests, tags): (Vec<_>, Vec<_>) = tags.partition(|(name, _)| name.contains('@'));
        let all = digests.into_iter().chain(tags);
        all.map(|(name, id)| (id, name)).collect()
    }

    fn image(&self, id: Digest, name: Option<&String>) -> anyhow::Result<RootImage> {
        let config = read(&self.image_db().join(id.hex()), CONFIG_MAX)?;
        let config = ImageConfig::decode(&config)?;
        let mut layers: Vec<RootLayer> = Vec::new();
        for diff_id in config.diff_ids {
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
        Ok(RootImage {
            id,
            config: id,
            name: name.cloned(),
            layers,
        })
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
}

impl Images for DataRoot {
    fn data_root(&self) -> &Path {
        &self.0
    }

    fn stamp(&self) -> Stamp {
        let changed = |dir: PathBuf| fs::metadata(dir).and_then(|meta| meta.modified()).ok();
        Stamp {
            changed: [changed(self.image_db()), changed(self.layer_db())],
            told: 0,
        }
    }

    /// None if Docker never had any.
    fn images(&self) -> anyhow::Result<Vec<RootImage>> {
        let dir = self.image_db();
        let entries = match fs::read_dir(&dir) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.with_context(|| format!("reading {}", dir.display()))?,
        };
        let files = entries.flatten().map(|entry| entry.file_name());
        let ids = files.filter_map(|name| format!("sha256:{}", name.to_str()?).parse().ok());
        let names = self.names();
        let mut images = Vec::new();
        for id in ids.take(IMAGES_MAX) {
            match self.image(id, names.get(&id)) {
                Ok(image) => images.push(image),
                Err(error) => log::debug!("image {} is left out: {error:#}", id.short()),
            }
        }
        images.sort_by_key(|image| image.id);
        Ok(images)
    }

    /// Docker takes a layer out of its records before it touches the directory, so a layer that is found
    /// is not being removed. Nothing keeps Docker from it.
    fn hold(&self, layer: &RootLayer) -> anyhow::Result<bool> {
        let dir = self.layer_dir(&layer.chain);
        Ok(dir.is_ok_and(|dir| dir == layer.dir))
    }

    fn release_all_but(&self, _: &BTreeSet<PathBuf>) -> anyhow::Result<()> {
        Ok(())
    }

    /// Where the directory's mount is private, which it is unless systemd made it shared, Docker mounts
    /// it over itself when it starts, and undoes that when it ends. A mount that we make in between would
    /// be hidden: out of our reach, and still in the way of Docker when it removes the layer.
    fn hides_mounts(&self) -> anyhow::Result<bool> {
        Ok(standing(&self.0)? == Standing::InPrivate)
    }
}

/// What Docker's file of names has.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Repositories {
    /// By the name without a tag, and by the name with it.
    repositories: HashMap<String, HashMap<String, Digest>>,
}

/// Returns the chain ID of a layer on top of others (OCI image specification, `ChainID`).
fn chain_of(below: &Digest, diff_id: &Digest) -> Digest {
    oci::digest_of(format!("{below} {diff_id}").as_bytes())
}

fn read(path: &Path, limit: u64) -> anyhow::Result<Vec<u8>> {
    let bytes = regular::read(path, Links::Followed, limit);
    bytes.with_context(|| format!("reading {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: PathBuf, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// `yolofs docker status` and the end of the daemon waited for whoever looked.
    #[test]
    fn a_pipe_in_the_place_of_an_image_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let root = DataRoot::new(dir.path());
        fs::create_dir_all(root.image_db()).unwrap();
        let pipe = root.image_db().join(Digest([1; 32]).hex());
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || tell.send(root.images().map(|images| images.len())));
        let seen = told.recv_timeout(std::time::Duration::from_secs(30));
        // Whether it is an error or passed over is not what this is about.
        drop(seen.expect("it waits for the pipe"));
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
        assert_eq!((images[0].id, images[0].config), (image, image));
        assert_eq!(images[0].name, None);
        let tags = serde_json::json!({"Repositories": {"app": {
            "app:1": image,
            "app@sha256:00": image,
        }}});
        let names = dir.path().join("image/overlay2/repositories.json");
        write(names, &tags.to_string());
        assert_eq!(root.images().unwrap()[0].name.as_deref(), Some("app:1"));
        let top = &images[0].layers[1];
        assert_eq!(top.dir, dir.path().join("overlay2/def/diff"));
        assert!(root.hold(top).unwrap());
        // What Docker does first when it removes a layer.
        let chain_dir = root.layer_db().join(chain.hex());
        fs::rename(&chain_dir, root.layer_db().join("x-removing")).unwrap();
        assert!(!root.hold(top).unwrap());
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
