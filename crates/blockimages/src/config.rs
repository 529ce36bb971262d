//! What an image is made of: overlaybd's `config.v1.json`.
//!
//! Keys that are not known here are ignored, as overlaybd's own readers do.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use blocks::Digest;
use rawio::trusted;
use serde::{Deserialize, Serialize};

use crate::error::file;
use crate::{ContentRoot, ImageError};

/// No image has a configuration near this: 255 layers take some 50 KiB.
const CONFIG_MAX_BYTES: u64 = 1 << 20;

/// Names that a layer's blob may have in its directory, in the order in which they are looked for.
const BLOB_NAMES: [&str; 3] = ["overlaybd.commit", ".commit", "overlaybd.sealed"];

/// The name of the configuration in an image's directory.
pub const CONFIG_NAME: &str = "config.v1.json";

/// An image as its configuration describes it.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct DeviceConfig {
    /// Where blobs are that are not on this machine: `https://registry/v2/repository/blobs`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub repo_blob_url: String,
    /// The digest of the image's manifest in that registry, if it is known: a plan of its start may refer to it.
    /// overlaybd does not know it.
    #[serde(
        default,
        rename = "yolofsManifest",
        skip_serializing_if = "Option::is_none"
    )]
    pub manifest: Option<Digest>,
    /// The layers, the lowest first; an image with an upper may have none.
    #[serde(default)]
    pub lowers: Vec<LowerConfig>,
    /// A layer that can be written to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upper: Option<UpperConfig>,
}

/// One sealed layer.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct LowerConfig {
    /// The blob, if it is a file of this machine.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub file: String,
    /// The directory that has the blob, or will.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub dir: String,
    /// The digest of the blob as the registry has it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub digest: String,
    /// Its length.
    #[serde(skip_serializing_if = "is_zero")]
    pub size: u64,
    /// The original layer of a turboOCI image.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub target_file: String,
    /// The original layer's digest.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub target_digest: String,
    /// The index of the original layer, if it is compressed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub gzip_index: String,
    /// What its uncompressed content is, as the image's manifest says: data from elsewhere than the blob is verified by it.
    /// overlaybd does not know it.
    #[serde(rename = "yolofsContent", skip_serializing_if = "Option::is_none")]
    pub content: Option<ContentRoot>,
}

/// A writable layer.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(default)]
pub struct UpperConfig {
    /// The file with the index.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub index: String,
    /// The file with the data.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub data: String,
    /// Instead of both, the directory of an [`lsmt::LiveImage`]; overlaybd does not support it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub dir: String,
    /// Bytes of data that a pair of files may have, and a sixteenth more on the disk; 0 for any number. overlaybd does not
    /// know it.
    #[serde(rename = "yolofsLimit", skip_serializing_if = "is_zero")]
    pub limit: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
const fn is_zero(size: &u64) -> bool {
    *size == 0
}

/// The description of a sealed layer.
#[derive(Clone, Debug, Serialize)]
pub struct LayerStatus {
    /// The file, or the digest of one that is elsewhere.
    pub name: String,
    /// Whether it is on this machine.
    pub local: bool,
    /// Its size, if the configuration or the file has it.
    pub size: u64,
}

/// Where a layer's blob is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Local(PathBuf),
    Remote { digest: String, size: u64 },
}

impl DeviceConfig {
    /// Reads the configuration of an image: the file, or `config.v1.json` in the directory. Returns it with its path, whose
    /// directory is without links.
    ///
    /// # Errors
    /// If it cannot be read, is too long, or is invalid; if another user than root and this one can change or replace it.
    pub fn read(path: &Path) -> Result<(Self, PathBuf), ImageError> {
        let path = match path.is_dir() {
            true => path.join(CONFIG_NAME),
            false => path.to_owned(),
        };
        // It is believed like a command line: whoever can change it has us read and write files of his choice.
        let opened = trusted::open_file(&path);
        let (path, opened) = opened.map_err(file("using the configuration", &path))?;
        let mut text = Vec::new();
        let mut limited = opened.take(CONFIG_MAX_BYTES + 1);
        limited
            .read_to_end(&mut text)
            .map_err(file("reading", &path))?;
        if text.len() as u64 > CONFIG_MAX_BYTES {
            let rule = "it is longer than 1 MiB";
            return Err(ImageError::Rule { path, rule });
        }
        Ok((Self::decode(&text, &path)?, path))
    }

    /// Decodes the configuration that was found at `path`, as errors say.
    ///
    /// # Errors
    /// If it is invalid.
    pub fn decode(text: &[u8], path: &Path) -> Result<Self, ImageError> {
        let config: Self = serde_json::from_slice(text).map_err(|source| ImageError::Config {
            path: path.into(),
            source,
        })?;
        config.check(path)?;
        Ok(config)
    }

    fn check(&self, path: &Path) -> Result<(), ImageError> {
        let rule = match self {
            _ if self.lowers.is_empty() && self.writable().is_none() => "it has no layers",
            _ if self.lowers.len() > lsmt::LAYERS_MAX => "it has more than 255 layers",
            _ if self.upper.as_ref().is_some_and(UpperConfig::is_unclear) => {
                "its upper needs an index and data, or a directory, and not both"
            }
            _ if self
                .upper
                .as_ref()
                .is_some_and(|upper| upper.limit > 0 && !upper.dir.is_empty()) =>
            {
                "its upper is a directory, which cannot have a limit"
            }
            _ => return Ok(()),
        };
        let path = path.to_owned();
        Err(ImageError::Rule { path, rule })
    }
}

impl DeviceConfig {
    /// Returns the directories in which the writable layer is written, if there is one; relative names are within
    /// `base`.
    #[must_use]
    pub fn written_places(&self, base: &Path) -> Vec<PathBuf> {
        let Some(upper) = self.writable() else {
            return Vec::new();
        };
        if !upper.dir.is_empty() {
            return vec![base.join(&upper.dir)];
        }
        let files = [&upper.data, &upper.index].map(|file| base.join(file));
        // They may be links, and a journal is made beside the data's name.
        let behind = files.iter().filter_map(|file| file.canonicalize().ok());
        let files = behind.chain(files.iter().cloned());
        files
            .filter_map(|file| Some(file.parent()?.to_owned()))
            .collect()
    }

    /// Returns the files of its sealed layers that are on this machine; relative names are within `base`.
    #[must_use]
    pub fn read_places(&self, base: &Path) -> Vec<PathBuf> {
        let mut places = Vec::new();
        for lower in &self.lowers {
            if let Place::Local(path) = lower.place(base) {
                places.push(path);
            }
            let others = [&lower.target_file, &lower.gzip_index].into_iter();
            places.extend(
                others
                    .filter(|name| !name.is_empty())
                    .map(|name| base.join(name)),
            );
        }
        places
    }

    /// Returns how many more bytes may be written to the writable layer, if it has a limit; relative names are within
    /// `base`. A sixteenth is kept for what a file system writes of itself.
    #[must_use]
    pub fn bytes_left(&self, base: &Path) -> Option<u64> {
        use std::os::unix::fs::MetadataExt as _;
        let upper = self.writable().filter(|upper| upper.limit > 0)?;
        let data = base.join(&upper.data).metadata();
        // Whole sectors that are there, whatever the block size.
        let taken = data.map_or(0, |about| about.blocks() * lsmt::SECTOR);
        Some((upper.limit - upper.limit / 16).saturating_sub(taken))
    }

    /// Returns the writable layer; one without files counts as none, as in overlaybd.
    #[must_use]
    pub fn writable(&self) -> Option<&UpperConfig> {
        self.upper.as_ref().filter(|upper| !upper.is_empty())
    }
}

impl UpperConfig {
    const fn is_empty(&self) -> bool {
        self.index.is_empty() && self.data.is_empty() && self.dir.is_empty()
    }

    const fn is_unclear(&self) -> bool {
        let files = !self.index.is_empty() && !self.data.is_empty();
        !self.is_empty()
            && (self.index.is_empty() != self.data.is_empty() || files != self.dir.is_empty())
    }
}

impl DeviceConfig {
    /// Returns the digests of the blobs that the sealed layers' data is in, the lowest first, as far as they are known: of
    /// a turboOCI layer, that of the layer that it refers to.
    #[must_use]
    pub fn digests(&self) -> Vec<Option<Digest>> {
        let lowers = self.lowers.iter();
        lowers.map(|lower| lower.data().parse().ok()).collect()
    }
}

impl LowerConfig {
    /// Returns whether it refers to a layer of a container image for its data.
    pub(crate) const fn is_turbo(&self) -> bool {
        !self.target_file.is_empty() || !self.target_digest.is_empty()
    }

    fn data(&self) -> &str {
        match self.is_turbo() {
            true => &self.target_digest,
            false => &self.digest,
        }
    }

    /// Returns the file of a layer with its data, if it is on this machine.
    pub(crate) fn local(&self, base: &Path) -> Option<PathBuf> {
        match self.place(base) {
            Place::Local(path) if !self.is_turbo() => Some(path),
            _ => None,
        }
    }

    pub(crate) fn status(&self, base: &Path) -> LayerStatus {
        match self.place(base) {
            Place::Local(path) => LayerStatus {
                size: path.metadata().map_or(self.size, |about| about.len()),
                name: path.display().to_string(),
                local: true,
            },
            Place::Remote { digest, size } => LayerStatus {
                name: digest,
                local: false,
                size,
            },
        }
    }

    /// Returns where the blob is; relative names are within `base`.
    pub(crate) fn place(&self, base: &Path) -> Place {
        if !self.file.is_empty() {
            return Place::Local(base.join(&self.file));
        }
        if !self.dir.is_empty() {
            let dir = base.join(&self.dir);
            let found = BLOB_NAMES.map(|name| dir.join(name));
            if let Some(found) = found.into_iter().find(|path| path.exists()) {
                return Place::Local(found);
            }
        }
        Place::Remote {
            digest: self.digest.clone(),
            size: self.size,
        }
    }
}
