//! What an image is made of: overlaybd's `config.v1.json`.
//!
//! Keys that are not known here are ignored, as overlaybd's own readers do.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::ImageError;
use crate::error::file;

/// No image has a configuration near this: 255 layers take some 50 KiB.
const CONFIG_MAX_BYTES: u64 = 1 << 20;

/// Names that a layer's blob may have in its directory, in the order in which they are looked for.
const BLOB_NAMES: [&str; 3] = ["overlaybd.commit", ".commit", "overlaybd.sealed"];

/// The name of the configuration in an image's directory.
pub const CONFIG_NAME: &str = "config.v1.json";

/// An image as its configuration describes it.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ImageConfig {
    /// Where blobs are that are not on this machine: `https://registry/v2/repository/blobs`.
    #[serde(default)]
    pub repo_blob_url: String,
    /// The layers, the lowest first.
    pub lowers: Vec<LowerConfig>,
    /// A layer that can be written to.
    #[serde(default)]
    pub upper: Option<UpperConfig>,
}

/// One sealed layer.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct LowerConfig {
    /// The blob, if it is a file of this machine.
    pub file: String,
    /// The directory that has the blob, or will.
    pub dir: String,
    /// The digest of the blob as the registry has it.
    pub digest: String,
    /// Its length.
    pub size: u64,
    /// The original layer of a turboOCI image.
    pub target_file: String,
    /// The original layer's digest.
    pub target_digest: String,
}

/// A writable layer.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct UpperConfig {
    /// The file with the index.
    pub index: String,
    /// The file with the data.
    pub data: String,
}

/// Where a layer's blob is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Local(PathBuf),
    Remote { digest: String, size: u64 },
}

impl ImageConfig {
    /// Reads the configuration of an image: the file, or `config.v1.json` in the directory.
    ///
    /// # Errors
    /// If it cannot be read, is too long, or is not what it should be.
    pub fn read(path: &Path) -> Result<(Self, PathBuf), ImageError> {
        let path = match path.is_dir() {
            true => path.join(CONFIG_NAME),
            false => path.to_owned(),
        };
        let opened = File::open(&path).map_err(file("opening", &path))?;
        let mut text = Vec::new();
        let mut limited = opened.take(CONFIG_MAX_BYTES + 1);
        limited
            .read_to_end(&mut text)
            .map_err(file("reading", &path))?;
        if text.len() as u64 > CONFIG_MAX_BYTES {
            let rule = "it is longer than 1 MiB";
            return Err(ImageError::Rule { path, rule });
        }
        let config: Self = match serde_json::from_slice(&text) {
            Ok(config) => config,
            Err(source) => return Err(ImageError::Config { path, source }),
        };
        config.check(&path)?;
        Ok((config, path))
    }

    fn check(&self, path: &Path) -> Result<(), ImageError> {
        let rule = match self {
            _ if self.lowers.is_empty() => "it has no layers",
            _ if self.lowers.len() > lsmt::LAYERS_MAX => "it has more than 255 layers",
            Self {
                upper: Some(upper), ..
            } if !upper.data.is_empty() => {
                "it has a writable layer, which an export cannot serve yet: commit it first"
            }
            _ if self.lowers.iter().any(LowerConfig::is_turbo) => {
                "it is a turboOCI image, which an export cannot serve yet"
            }
            _ => return Ok(()),
        };
        let path = path.to_owned();
        Err(ImageError::Rule { path, rule })
    }
}

impl LowerConfig {
    const fn is_turbo(&self) -> bool {
        !self.target_file.is_empty() || !self.target_digest.is_empty()
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
